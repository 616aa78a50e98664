"""Whether the processes that compute for an engine are alive.

Seam: an executor with worker processes tells of the end of one, shuts the others down and refuses
all calls from then on. `EngineCoreProc` ends with it; whoever steps an `EngineCore` in its own
process has to look. Names used: `Executor.register_failure_callback`, `UniProcExecutor`,
`MultiprocExecutor.is_failed`.
"""

from __future__ import annotations

import threading

from vllm.v1.executor.abstract import Executor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor


class Workers:
    """Of one engine; asked by its thread."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._told = threading.Event()
        executor.register_failure_callback(self._told.set)

    @property
    def apart(self) -> bool:
        """Whether they are processes of their own."""
        return not isinstance(self._executor, UniProcExecutor)

    @property
    def failed(self) -> bool:
        """Whether one has ended: no call is answered any more.

        The callback comes when the others have been shut down, and calls fail before that.
        """
        executor = self._executor
        return self._told.is_set() or (
            isinstance(executor, MultiprocExecutor) and executor.is_failed
        )
