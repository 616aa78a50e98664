"""What `chat` asks a pipeline for, and where it goes: text on the terminal, the rest into files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from antiphon.errors import InvalidRequestError
from antiphon.pipeline.topology import Topology

SOUND = Path("reply.wav")
PICTURE = Path("reply.png")

_SHOWN = ("text", "audio", "image")
_SUFFIXES = {"audio": ".wav", "image": ".png"}


@dataclass(frozen=True, slots=True)
class Outputs:
    """Modalities to ask for, and the first files of sound and pictures; None: not into a file."""

    modalities: tuple[str, ...]
    sound: Path | None = None
    picture: Path | None = None


def choose_outputs(
    topology: Topology, entry: str, *, out: Path | None, text_only: bool, raw: bool
) -> Outputs:
    """What the entry gives and the options want.

    `out` names the file of its kind, by the suffix; what else the pipeline gives goes into its
    default file. Raises InvalidRequestError for options that the pipeline cannot serve.
    """
    possible = topology.outputs_from(entry)
    given = tuple(modality for modality in possible if modality in _SHOWN)
    gives = f"pipeline {topology.name} gives {', '.join(possible)}"
    if not given:
        raise InvalidRequestError(f"{gives}, which this command cannot show; use Python")
    if text_only:
        if "text" not in given:
            raise InvalidRequestError(f"--text-only needs text, and {gives}; leave it out")
        return Outputs(("text",))
    if raw and "audio" not in given:
        raise InvalidRequestError(f"--raw needs speech, and {gives}; leave it out")
    files: dict[str, Path] = {}
    if "audio" in given and not raw:
        files["audio"] = SOUND
    if "image" in given:
        files["image"] = PICTURE
    if out is not None:
        files[_kind(out, given, gives)] = out
    return Outputs(given, files.get("audio"), files.get("image"))


def _kind(out: Path, given: tuple[str, ...], gives: str) -> str:
    """Whether a file is for sound or for pictures."""
    written = [kind for kind in _SUFFIXES if kind in given]
    if not written:
        raise InvalidRequestError(f"--out needs speech or pictures, and {gives}; leave it out")
    suffix = out.suffix.lower()
    for kind in written:
        if suffix == _SUFFIXES[kind]:
            return kind
    if not suffix and written == ["audio"]:
        return "audio"
    right = " or ".join(_SUFFIXES[kind] for kind in written)
    raise InvalidRequestError(f"--out {out}: {gives}; name a {right} file")
