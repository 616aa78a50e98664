"""Two stages in one process: rows or ids of the first become the prompt of the second."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
import torch
from transformers import LlamaForCausalLM

from antiphon.connector.inproc import InprocConnector
from antiphon.errors import from_wire
from antiphon.payload import wire
from antiphon.payload.ref import Ref
from antiphon.payload.types import Payload, per_token
from antiphon.stage.messages import Abort, Aborted, Deliver, Discard, Step, Used
from antiphon.testing.fault_table import Fault
from tiny import Driven, reference, reference_rows
from tiny_adapters import CALLS, SEEN

TOLERANCE = 1e-4
PROMPT = [5, 17, 80, 3, 44, 91, 12]


@pytest.fixture(scope="module")
def model_of_listener(model_b: str) -> LlamaForCausalLM:
    return reference(model_b)


@pytest.fixture
def speaker(roomy: Driven, listener: Driven) -> Iterator[Driven]:
    """Afterwards it learns what was used up, as the orchestrator would tell it: all it has sent."""
    roomy.clear()
    yield roomy
    for event in listener.events:
        if isinstance(event, Step):
            for edge, keys in event.used.items():
                roomy.host.handle(Used(edge, keys))
    outflow = roomy.scheduler.coordinator.outflow.statistics()
    assert not any(counts.chunks for counts in outflow.values())


@pytest.fixture
def hearer(listener: Driven) -> Driven:
    listener.clear()
    return listener


def speak(stage: Driven, uid: str, prompt: list[int], edge: str, max_tokens: int = 30) -> Ref:
    """Run a request on the first stage; the ref of its payload."""
    stage.submit(uid, prompt, sampling={"max_tokens": max_tokens}, edges=(edge,))
    stage.run()
    (ref,) = [ref for ref in stage.refs() if ref.uid == uid]
    found: Ref = ref
    return found


def continue_rows(
    model: LlamaForCausalLM, rows: torch.Tensor, num_tokens: int
) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens after a prompt of embeddings in transformers, and the last hidden states."""
    inputs = rows.unsqueeze(0)
    tokens: list[int] = []
    with torch.inference_mode():
        for _ in range(num_tokens):
            hidden = model.model(inputs_embeds=inputs).last_hidden_state[0]
            tokens.append(int(model.lm_head(hidden[-1]).argmax()))
            embedded = model.model.embed_tokens(torch.tensor([[tokens[-1]]]))
            inputs = torch.cat([inputs, embedded], dim=1)
    return tokens, hidden


def test_rows_become_the_next_stages_embeddings(
    speaker: Driven, hearer: Driven, model_of_listener: LlamaForCausalLM
) -> None:
    """The second stage answers as it would if it were given these embeddings by hand."""
    ref = speak(speaker, "a", PROMPT, "rows")
    hearer.submit("b", waits_for="rows", edges=("more",), sampling={"max_tokens": 20})
    assert not any(hearer.tokens("b"))
    hearer.host.handle(Deliver([("b", ref)]))
    hearer.run()
    rows = SEEN["rows", "a"].rows
    tokens, hidden = continue_rows(model_of_listener, rows, 20)
    assert hearer.tokens("b") == tokens
    given = SEEN["more", "b"]
    assert given.positions == list(range(len(rows) + 19))
    assert float((given.rows - hidden).abs().max()) < TOLERANCE
    hearer.discard()
    hearer.assert_empty()
    speaker.assert_empty()
    assert hearer.inspect().connector_entries == 0


def test_the_embeddings_matter(speaker: Driven, hearer: Driven) -> None:
    """Another prompt of the first stage gives another answer of the second: a negative control."""
    answers = []
    for uid, prompt in (("a", PROMPT), ("c", [PROMPT[0] + 1, *PROMPT[1:]])):
        ref = speak(speaker, uid, prompt, "rows")
        hearer.submit(f"{uid}2", waits_for="rows", sampling={"max_tokens": 20})
        hearer.host.handle(Deliver([(f"{uid}2", ref)]))
        hearer.run()
        answers.append(hearer.tokens(f"{uid}2"))
    assert answers[0] != answers[1]


def test_conditionings_share_the_prefix_cache_only_with_themselves(
    speaker: Driven, hearer: Driven
) -> None:
    """C30, C99: all row prompts have the same placeholder ids; the salt keeps them apart."""
    other = [PROMPT[0] + 1, *PROMPT[1:]]
    cached = []
    answers = []
    for uid, prompt in (("a", PROMPT), ("b", other), ("c", PROMPT)):
        ref = speak(speaker, uid, prompt, "rows", max_tokens=60)  # 66 rows: two full blocks
        hearer.submit(uid, waits_for="rows", sampling={"max_tokens": 20})
        hearer.host.handle(Deliver([(uid, ref)]))
        hearer.run()
        cached.append(hearer.cached_tokens(uid))
        answers.append(hearer.tokens(uid))
    assert cached == [0, 0, 64]
    assert answers[0] == answers[2] != answers[1]


def test_ids_become_the_next_stages_prompt(
    speaker: Driven, hearer: Driven, model_of_listener: LlamaForCausalLM
) -> None:
    ref = speak(speaker, "a", PROMPT, "ids", max_tokens=9)
    hearer.submit("b", waits_for="ids", edges=("more", "said"), sampling={"max_tokens": 5})
    hearer.host.handle(Deliver([("b", ref)]))
    hearer.run()
    tokens = SEEN["ids", "a"].tokens + hearer.tokens("b")
    assert len(tokens) == 14
    expected = reference_rows(model_of_listener, tokens)[:-1]
    assert float((SEEN["more", "b"].rows - expected).abs().max()) < TOLERANCE
    assert SEEN["said", "b"].tokens == hearer.tokens("b")
    hearer.discard()


def test_an_empty_end_finishes_the_waiting_request_at_once(hearer: Driven) -> None:
    """C115: it ends well, and says downstream that nothing comes."""
    hearer.submit("b", waits_for="rows", edges=("said",))
    hearer.host.handle(Deliver([("b", Ref("a", "rows", 0, end=True))]))
    hearer.run()
    assert [end.finish for end in hearer.endings("b")] == ["stop"]
    assert [(ref.edge, ref.end, ref.key is None) for ref in hearer.refs()] == [
        ("said", True, False)
    ]
    assert SEEN["said", "b"].tokens == []
    hearer.discard()
    hearer.assert_empty()


def test_a_waiting_request_is_no_work(hearer: Driven) -> None:
    hearer.submit("b", waits_for="rows")
    hearer.run()
    assert not hearer.host.has_work
    assert hearer.inspect().gated == 1
    hearer.abort("b")
    hearer.assert_empty()


@pytest.mark.parametrize(
    "flaw",
    [
        pytest.param("corrupt", marks=pytest.mark.fault("payload-corrupt")),
        pytest.param("missing", marks=pytest.mark.fault("payload-lost")),
        pytest.param("edge", marks=pytest.mark.fault("input-adapter-raises")),
        pytest.param("plan", marks=pytest.mark.fault("input-adapter-raises")),
        pytest.param("short", marks=pytest.mark.fault("input-adapter-raises")),
    ],
)
def test_a_bad_payload_fails_only_its_request(
    speaker: Driven, hearer: Driven, fault: Fault, flaw: str
) -> None:
    """C64, C85: corrupt bytes, a key that is not there, a wrong edge, an adapter that raises."""
    ref, good = (speak(speaker, uid, PROMPT, "rows") for uid in ("a", "g"))
    params = {"plan": {"broken": True}, "short": {"short": True}}.get(flaw, {})
    waits_for = "ids" if flaw == "edge" else "rows"
    if flaw == "corrupt":
        ref = msgspec.structs.replace(
            ref, fields=(msgspec.structs.replace(ref.fields[0], shape=(1, 2)),)
        )
    elif flaw == "missing":
        speaker.host.handle(Discard([str(ref.key)]))
        speaker.run()
    elif flaw == "edge":
        ref = msgspec.structs.replace(ref, edge="ids")
    hearer.submit("bad", waits_for=waits_for, params=params, edges=("said",))
    hearer.submit("good", waits_for="rows")
    hearer.host.handle(Deliver([("bad", ref), ("good", good)]))
    hearer.run()
    (end,) = hearer.endings("bad")
    assert end.finish == "error"
    assert end.error is not None
    assert type(from_wire(end.error)) is fault.error
    assert [end.finish for end in hearer.endings("good")] == ["length"]
    assert not [ref for ref in hearer.refs() if ref.uid == "bad"]
    hearer.assert_empty()
    assert hearer.inspect().connector_entries == speaker.inspect().connector_entries == 0
    if flaw == "edge":  # it was used up under the name that the test gave it
        speaker.host.handle(Used("rows", [str(ref.key)]))


def test_rows_of_a_wrong_width_fail_only_their_request(speaker: Driven, hearer: Driven) -> None:
    """I4: the request beside it is in the same steps, which would raise."""
    good = speak(speaker, "a", PROMPT, "rows")
    stored = InprocConnector("stage_tests", 1 << 20)
    payload = Payload({"rows": per_token(torch.zeros(3, 65))})
    nbytes = stored.put("wide", wire.encode(payload))
    bad = Ref("x", "rows", 0, True, "wide", nbytes, payload.specs())
    for uid in ("bad", "good"):
        hearer.submit(uid, waits_for="rows")
    hearer.host.handle(Deliver([("bad", bad), ("good", good)]))
    hearer.run()
    (end,) = hearer.endings("bad")
    assert end.error is not None
    assert end.error.code == "adapter"
    assert [end.finish for end in hearer.endings("good")] == ["length"]
    hearer.assert_empty()
    stored.close()


def test_a_prompt_that_does_not_fit_fails_only_its_request(
    speaker: Driven, hearer: Driven, engines: object
) -> None:
    """Rows of 255 positions leave room for one token; one more row does not."""
    ref = speak(speaker, "a", [1] * 200, "rows", max_tokens=56)
    hearer.submit("b", waits_for="rows", sampling={"max_tokens": 50})
    hearer.host.handle(Deliver([("b", ref)]))
    hearer.run()
    assert ref.fields[0].shape == (255, 64)
    assert len(hearer.tokens("b")) == 1
    assert [end.finish for end in hearer.endings("b")] == ["length"]


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_an_abort_while_the_payload_is_on_its_way(
    speaker: Driven, hearer: Driven, steps: int
) -> None:
    """Before the fetch, between fetch and first step, and in the first steps: nothing is left."""
    ref = speak(speaker, "a", PROMPT, "rows")
    hearer.submit("b", waits_for="rows", edges=("more",))
    hearer.host.handle(Deliver([("b", ref)]))
    for _ in range(steps):
        hearer.host.step()
    assert hearer.abort("b").uids == ["b"]
    hearer.assert_empty()
    assert speaker.inspect().connector_entries == 0


def test_a_payload_that_comes_after_the_abort_is_discarded(speaker: Driven, hearer: Driven) -> None:
    """C82: the late payload is deleted though another stage stored it."""
    ref = speak(speaker, "a", PROMPT, "rows")
    hearer.submit("b", waits_for="rows")
    hearer.abort("b")
    assert speaker.inspect().connector_entries == 1
    hearer.host.handle(Deliver([("b", ref)]))
    hearer.run()
    assert speaker.inspect().connector_entries == 0


def test_an_abort_of_an_unknown_request_is_acknowledged(hearer: Driven) -> None:
    """C66: nothing is known of it, which is what the acknowledgement says."""
    hearer.host.handle(Abort(["nobody"], 99))
    assert hearer.events[-1] == Aborted(["nobody"], 99)


def test_a_request_waits_no_longer_than_its_deadline(hearer: Driven) -> None:
    """C12, C9: the error names the edge; the idle engine delivers it."""
    hearer.submit("b", waits_for="rows", wait_timeout_s=0.001)
    hearer.submit("c", waits_for="rows")
    while not hearer.endings("b"):
        if hearer.host.has_work:  # nothing but the deadline makes it so
            hearer.host.step()
    (end,) = hearer.endings("b")
    assert end.error is not None
    assert end.error.code == "stage_input_timeout"
    assert "'rows'" in end.error.message
    assert hearer.endings("c") == []
    hearer.abort("c")
    hearer.assert_empty()


def test_the_adapters_are_called_once_per_payload(speaker: Driven, hearer: Driven) -> None:
    ref = speak(speaker, "a", PROMPT, "rows")
    hearer.submit("b", waits_for="rows")
    hearer.host.handle(Deliver([("b", ref)]))
    hearer.host.handle(Deliver([("b", ref)]))  # the same again, before the step
    hearer.run()
    hearer.host.handle(Deliver([("b", ref)]))  # and after the end
    hearer.run()
    assert CALLS["plan"] == 1
    assert len(hearer.endings("b")) == 1
