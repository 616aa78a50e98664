"""The speakers of a checkpoint. Neither torch nor vllm is imported here: entries check requests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from antiphon.errors import InvalidRequestError, ModelUnavailableError
from antiphon.models.json_files import read_object
from antiphon.pipeline.suggest import did_you_mean

SPEAKER = "speaker"
"""The request's parameter that names the speaker, in upper or lower case."""

_USUAL = "ethan"  # transformers' `generate` has it as its default


def speakers_of(checkpoint: str | Path) -> dict[str, int]:
    """Codec ids by speaker's name, in the order of the checkpoint's configuration.

    Raises ModelUnavailableError if it has none.
    """
    file = Path(checkpoint) / "config.json"
    try:
        talker = read_object(file)["talker_config"]
        found = {str(name): int(code) for name, code in talker["speaker_id"].items()}
    except (ModelUnavailableError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelUnavailableError(
            f"{file} names no speakers (talker_config.speaker_id): {error}; this pipeline needs a"
            " checkpoint that speaks"
        ) from error
    if not found:
        raise ModelUnavailableError(
            f"{file} names no speakers (talker_config.speaker_id is empty); this pipeline needs a"
            " checkpoint that speaks"
        )
    return found


def choose_speaker(speakers: Mapping[str, int], name: object) -> int:
    """The codec id of a speaker; Ethan's for None, or the first one's where there is no Ethan.

    Raises InvalidRequestError, which lists them, for a name that is not there.
    """
    known = {speaker.lower(): code for speaker, code in speakers.items()}
    if name is None:
        return known.get(_USUAL, next(iter(known.values())))
    if not isinstance(name, str):
        raise InvalidRequestError(f"{SPEAKER} is {name!r}; give a name, one of {', '.join(known)}")
    if name.lower() not in known:
        raise InvalidRequestError(f"no {SPEAKER} is called {name!r}{did_you_mean(name, known)}")
    return known[name.lower()]
