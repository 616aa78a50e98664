"""What a request needs of the models' files before any stage sees it: prompts and a detokenizer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from antiphon.core.targets import load_target
from antiphon.errors import AdapterError, InvalidRequestError
from antiphon.orchestrator.api import OmniRequest
from antiphon.orchestrator.transcript import Transcript
from antiphon.pipeline.detokenize import Detokenizer, load_tokenizer
from antiphon.pipeline.entry import (
    AnyPrompt,
    EntryAdapter,
    EntryRequest,
    Prompt,
    SessionEntryAdapter,
)
from antiphon.pipeline.topology import Entry, Stage, StageKind, Topology


class Intake:
    """Entry adapters and tokenizers, loaded once; the constructor reads files.

    `models` are the checkpoint folders of the stages that are to run; `entries` limits the entries
    (None: all that lead to one of these stages). Raises TopologyError for an adapter that is not
    there.
    """

    def __init__(
        self, topology: Topology, models: Mapping[str, str], entries: Collection[str] | None
    ) -> None:
        self._topology = topology
        self._stages = frozenset(models)
        chosen = [e for e in topology.entries if entries is None or e.name in entries]
        # By entry and start: an entry with an ear has two of them.
        self._adapters = {
            (entry.name, start): _make_adapter(entry.name, adapter, models[start])
            for entry in chosen
            for start, adapter in _starts(entry)
            if start in models
        }
        self._tokenizers = {
            stage.output: load_tokenizer(models[stage.name])
            for stage in topology.stages
            if stage.output in ("text", "transcript") and stage.name in models
        }

    def prompts(self, request: OmniRequest, path: Sequence[Stage]) -> Sequence[AnyPrompt]:
        """The prompts that a request on `path` starts with; may take a while.

        Raises CallerError for a text that cannot be served, and for a request that needs what has
        been left out of this pipeline's start.
        """
        return self._adapter(request, path).prompts(_entry_request(request))

    def opening(self, request: OmniRequest, path: Sequence[Stage]) -> list[int]:
        """The one prompt that a session's conversation begins with. Raises as `prompts`."""
        prompts = self._session_adapter(request, path).prompts(_entry_request(request))
        if len(prompts) != 1:
            raise AdapterError(
                f"entry '{request.entry}' gave {len(prompts)} prompts for a session; give one"
            )
        (prompt,) = prompts
        if not isinstance(prompt, Prompt):
            return prompt
        if prompt.audio:
            raise InvalidRequestError("a session takes no audio; make requests")
        return prompt.token_ids

    def continuation(self, request: OmniRequest, path: Sequence[Stage]) -> list[int]:
        """What follows the last answer of a session when the request's text is said next."""
        return self._session_adapter(request, path).continuation(request.text)

    def check_session(self, request: OmniRequest, path: Sequence[Stage]) -> None:
        """Raise InvalidRequestError if the request's entry can hold no session on this path."""
        self._session_adapter(request, path)
        if any(turn.audio for turn in request.turns()):
            raise InvalidRequestError("a session takes no audio; make requests")

    def _session_adapter(self, request: OmniRequest, path: Sequence[Stage]) -> SessionEntryAdapter:
        adapter, stage = self._adapter(request, path), path[0]
        if stage.kind is not StageKind.AR:
            raise InvalidRequestError(
                f"entry {request.entry} leads to {stage.name}, a generation stage, which holds no"
                " session; make requests"
            )
        for edge in self._topology.edges_among(path):
            if edge.producer == stage.name and edge.kv is not None:
                raise InvalidRequestError(
                    f"entry {request.entry} leads to {stage.name}, which hands its KV cache on by"
                    f" edge {edge.name} and keeps no conversation; make requests"
                )
        if not isinstance(adapter, SessionEntryAdapter):
            raise InvalidRequestError(
                f"entry {request.entry} holds no session: its adapter continues no conversation;"
                " make requests"
            )
        return adapter

    def _adapter(self, request: OmniRequest, path: Sequence[Stage]) -> EntryAdapter:
        adapter = self._adapters.get((request.entry, path[0].name))
        absent = [stage.name for stage in path if stage.name not in self._stages]
        if adapter is None or absent:
            what = f"stage {absent[0]}" if absent else f"entry {request.entry}"
            raise InvalidRequestError(
                f"{what} was not started with this pipeline; ask for other modalities, or start it"
                " with more entries, modalities and inputs"
            )
        return adapter

    def detokenizer(self, request: OmniRequest, path: Sequence[Stage]) -> Detokenizer | None:
        """What turns the request's ids into text; None if it wants no text."""
        if request.wants("text") and any(stage.output == "text" for stage in path):
            return Detokenizer(self._tokenizers["text"])
        return None

    def transcript(self, request: OmniRequest, path: Sequence[Stage]) -> Transcript | None:
        """What writes down what is said in the request's audio; None if it is not wanted."""
        wanted = request.modalities or self._topology.outputs_from(request.entry)
        if "transcript" not in wanted:
            return None
        return Transcript(
            lambda: Detokenizer(self._tokenizers["transcript"]),
            answers=not any(stage.output == "text" for stage in path),
        )


def _starts(entry: Entry) -> list[tuple[str, str]]:
    """The stages that an entry's requests start at, each with the maker of their prompts."""
    starts = [(entry.stage, entry.adapter)]
    return starts if entry.ear is None else [*starts, (entry.ear.stage, entry.ear.adapter)]


def _make_adapter(entry: str, target: str, model: str) -> EntryAdapter:
    adapter: EntryAdapter = load_target(target, f"adapter of entry {entry}")(Path(model))
    return adapter


def _entry_request(request: OmniRequest) -> EntryRequest:
    """What the entry's adapter is given: one text, or a conversation that ends with it."""
    if not request.messages:
        audio = tuple(request.audio)
        return EntryRequest(text=request.text, audio=audio, params=request.params)
    return EntryRequest(messages=request.turns(), params=request.params)
