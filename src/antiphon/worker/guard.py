"""The boundary behind which a request's adapters run: what they raise concerns that request."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

from antiphon.errors import AdapterError, AntiphonError, without_frames

P = ParamSpec("P")


def raised(call: Callable[P, None], *args: P.args, **kw: P.kwargs) -> AntiphonError | None:
    """What a call into an adapter raised, as an error of ours."""
    try:
        call(*args, **kw)
    except AntiphonError as error:
        return without_frames(error)
    except Exception as error:  # noqa: BLE001  adapters are foreign code
        return AdapterError(f"an adapter raised {type(error).__name__}: {error}")
    return None
