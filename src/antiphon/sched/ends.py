"""Ends outside of upstream's own loop: each is reported once, with its error if it has one."""

from __future__ import annotations

from collections.abc import Iterable

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import Request, RequestStatus

from antiphon.errors import AntiphonError, PreemptedError
from antiphon.sched.coordinator import Coordinator
from antiphon.sched.handoff_record import Ending

NO_BLOCKS = (
    "the stage ran out of cache blocks and cannot compute a request again; raise kv_cache_bytes or "
    "lower max_num_seqs"
)
GIVEN_UP = (
    "the stage was put to sleep while the request waited there, and cannot compute it again; make "
    "it once more when the stage is awake"
)


class EndsMixin(Scheduler):
    """Finishes requests between steps; an idle engine still speaks."""

    coordinator: Coordinator
    _endings: list[Request]  # finished outside a step; reported by the next update
    _victims: list[str]  # preempted, in a stage that cannot compute them again

    def fail_requests(self, uids: Iterable[str], error: AntiphonError) -> None:
        """End these requests with `error`; the others go on."""
        uids = [uid for uid in uids if uid in self.requests]
        for uid in uids:
            self.coordinator.fail(uid, error)
        self._finish_now(uids, RequestStatus.FINISHED_ERROR)

    def take_endings(self) -> list[EngineCoreOutput]:
        """The ends that no update has reported; for the host, after a step that raised."""
        endings, self._endings = self._endings, []
        return [self._ending(request) for request in endings]

    def _end_victims(self, why: str = NO_BLOCKS) -> None:
        """Not within upstream's loop, which still has them in hand."""
        victims, self._victims = self._victims, []
        self.fail_requests(victims, PreemptedError(why))

    def _end_handed_over(self, endings: Iterable[Ending]) -> None:
        """End the requests whose hand-off was what they lived for, or has failed."""
        for ending in endings:
            if ending.error is None:
                self._finish_now([ending.uid], RequestStatus.FINISHED_STOPPED)
            else:
                self.fail_requests([ending.uid], ending.error)

    def _finish_now(self, uids: Iterable[str], status: RequestStatus) -> None:
        """Finish requests outside upstream's own loop; the next update reports them."""
        self._endings.extend(self.finish_requests(uids, status))

    def _report_endings(
        self, outputs: dict[int, EngineCoreOutputs]
    ) -> dict[int, EngineCoreOutputs]:
        endings, self._endings = self._endings, []
        for request in endings:
            group = outputs.setdefault(request.client_index, EngineCoreOutputs())
            group.outputs.append(self._ending(request))
        return outputs

    def _ending(self, request: Request) -> EngineCoreOutput:
        error = self.coordinator.report(request.request_id)
        return EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=[],
            finish_reason=request.get_finished_reason() if error is None else FinishReason.ERROR,
            stop_reason=None if error is None else error.message,
            events=request.take_events(),
            trace_headers=request.trace_headers,
        )
