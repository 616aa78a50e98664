"""How a request enters its stage: what is wrong with it is told before upstream sees it."""

from __future__ import annotations

import msgspec

from antiphon.core.deadlines import effective_timeout
from antiphon.core.options import PROMPT_EDGE
from antiphon.errors import (
    AntiphonError,
    DuplicateRequestError,
    EmptyInputError,
    InvalidRequestError,
    StageStepError,
)
from antiphon.payload.ref import Ref
from antiphon.pipeline.topology import StageKind
from antiphon.sched.inputs import Wait
from antiphon.stage.engine import StageEngine
from antiphon.stage.messages import Submit
from antiphon.stage.spec import StageSpec
from antiphon.upstream.audio import HeardPrompt


class Admission:
    """Checks requests and hands them to scheduler and engine."""

    def __init__(self, spec: StageSpec, engine: StageEngine) -> None:
        self._spec = spec
        self._engine = engine
        self._scheduler = engine.scheduler

    def admit(self, submit: Submit) -> None:
        """Begin a request. Raises AntiphonError for one that cannot be; nothing is left of it."""
        try:
            self._enter(submit)
        except AntiphonError:
            raise
        except Exception as error:  # upstream's front end is as foreign as a model
            message = " ".join(str(error).split()) or "no message"
            raise StageStepError(
                f"stage '{self._spec.name}' could not take the request:"
                f" {type(error).__name__}: {message}"
            ) from error

    def _enter(self, submit: Submit) -> None:
        self._check(submit)
        heard = self._engine.prompt(submit)
        if submit.waits_for is None and self._spec.prompt_adapter is not None:
            self._plan(submit)
        else:
            self._add(submit, heard, self._wait(submit))

    def _plan(self, submit: Submit) -> None:
        """The stage's own adapter makes the prompt: the ids are its input and not the model's."""
        wait = Wait(PROMPT_EDGE, self._spec.input_wait_timeout_s)
        placeholder = msgspec.structs.replace(submit, token_ids=[], waits_for=PROMPT_EDGE)
        self._add(placeholder, HeardPrompt([], []), wait)
        ids = tuple(submit.token_ids)
        ref = Ref(submit.uid, PROMPT_EDGE, 0, end=True, token_ids=ids)
        self._scheduler.deliver(submit.uid, ref)

    def _add(self, submit: Submit, heard: HeardPrompt, wait: Wait | None) -> None:
        coordinator = self._scheduler.coordinator
        if error := self._scheduler.prompt_error(len(heard.token_ids)):
            raise error
        coordinator.expect(
            submit.uid,
            wait=wait,
            edges=submit.edges,
            params=submit.params,
            num_prompt_tokens=len(heard.token_ids),
            epoch=submit.epoch,
        )
        try:
            self._engine.add(submit, heard, in_chunks=wait is not None and wait.stream)
        except Exception:
            coordinator.forget(submit.uid)
            raise

    def _check(self, submit: Submit) -> None:
        if submit.uid in self._scheduler.requests:
            raise DuplicateRequestError(f"request {submit.uid} is still running")
        if self._spec.kind is StageKind.AR and not (submit.token_ids or submit.waits_for):
            raise EmptyInputError("the prompt is empty")
        if submit.session:
            self._check_session(submit)
        if submit.audio and self._spec.prompt_adapter is not None:
            raise InvalidRequestError(
                f"stage '{self._spec.name}' makes prompts of its own; it takes no audio"
            )

    def _check_session(self, submit: Submit) -> None:
        if submit.waits_for is not None:
            raise InvalidRequestError("a session's input comes from its caller alone")
        if submit.audio:
            raise InvalidRequestError("a session takes no audio; make requests")
        if self._spec.prompt_adapter is not None:
            raise InvalidRequestError(
                f"stage '{self._spec.name}' makes prompts of its own; a session cannot run there"
            )
        if any(edge.kv is not None for edge in self._spec.outputs):
            raise InvalidRequestError(
                f"stage '{self._spec.name}' hands over KV caches, which end with their request; "
                f"a session cannot run there"
            )

    def _wait(self, submit: Submit) -> Wait | None:
        if submit.waits_for is None:
            return None
        edge = next((e for e in self._spec.inputs if e.name == submit.waits_for), None)
        timeout = effective_timeout(self._spec.input_wait_timeout_s, submit.wait_timeout_s)
        return Wait(submit.waits_for, timeout, stream=edge is not None and edge.stream)
