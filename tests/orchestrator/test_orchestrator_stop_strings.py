"""Stop strings, however the text is cut into deltas."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.orchestrator.stop_strings import StopStrings

LETTERS = st.text("ab", max_size=12)


def _shown(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    text = StopStrings(stops)
    shown = "".join(text.feed(piece) for piece in pieces)
    return (shown, True) if text.found else (shown + text.rest(), False)


@given(st.lists(LETTERS), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4))
def test_the_text_ends_before_a_stop_string(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)
    shown, found = _shown(pieces, stops)
    assert found == any(stop in whole for stop in stops)
    assert whole.startswith(shown)
    if found:
        assert any(whole.startswith(shown + stop) for stop in stops)
        assert not any(stop in shown for stop in stops)
    else:
        assert shown == whole


@given(st.lists(LETTERS), st.text("ab", min_size=1, max_size=4))
def test_where_it_is_cut_makes_no_difference(pieces: list[str], stop: str) -> None:
    whole = "".join(pieces)
    assert _shown(pieces, [stop]) == _shown([whole], [stop])
    assert _shown(pieces, [stop])[0] == whole.partition(stop)[0]


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    text = StopStrings(["\n\n", "END"])
    assert text.feed("so\n") == "so"
    assert text.feed("EN") == "\n"
    assert text.feed("d. E") == "ENd. "
    assert text.feed("ND more") == ""
    assert text.found
    assert text.feed("more") == ""
