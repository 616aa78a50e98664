"""What a deployment says about the life of its stages' processes."""

from __future__ import annotations

import msgspec

from antiphon.core.supervision import RestartPolicy
from antiphon.errors import DeploymentError
from antiphon.pipeline.checks import check_timeout


class Supervision(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a replica is started again. Raises DeploymentError, starting with the field's name."""

    restarts: int = 5
    """Most times that a replica is started again within window_s; then it stays down. 0 never."""

    window_s: float = 600.0
    """Seconds after which an end of a replica counts no more."""

    backoff_s: float = 1.0
    """Seconds before a replica is started again; twice as many after each further end."""

    max_backoff_s: float = 30.0
    """Most seconds before a replica is started again."""

    silence_s: float = 20.0
    """Seconds without a sign of life after which a replica is ended, and started again; 0 never."""

    step_s: float = 300.0
    """Seconds that one step may take; then the replica is ended, and started again. 0 no limit."""

    def __post_init__(self) -> None:
        if self.restarts < 0:
            raise DeploymentError(f"restarts: {self.restarts} is negative; give 0 for never")
        for name in ("window_s", "backoff_s", "max_backoff_s", "silence_s", "step_s"):
            check_timeout(name, msgspec.structs.asdict(self)[name])
        if not self.window_s:
            raise DeploymentError("window_s: 0 is no time; give some seconds, or restarts: 0")

    @property
    def policy(self) -> RestartPolicy:
        """When a replica that has ended is started again."""
        return RestartPolicy(self.restarts, self.window_s, self.backoff_s, self.max_backoff_s)
