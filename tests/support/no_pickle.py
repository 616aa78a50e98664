"""Makes unpickling fail in a process, and keeps a record of who tried.

Pickling alone is let through: vLLM hashes the blocks of its prefix cache by `pickle.dumps`, and
what nobody can read is no way to anywhere. `watch` replaces what the module offers before anybody
else imports it: in a stage's process by a `sitecustomize` that `hook` writes. While the file
`armed` is there every use is recorded, with its stack, and fails. An audit hook sees to what has
found the C implementation by another way.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Watch:
    """The folder that all watched processes of a test share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._armed = folder / "armed"

    def arm(self) -> None:
        """From now on unpickling fails in every watched process."""
        self._armed.touch()

    def disarm(self) -> None:
        self._armed.unlink(missing_ok=True)

    @property
    def uses(self) -> list[str]:
        """Stacks of those who tried."""
        return [path.read_text() for path in sorted(self.folder.glob("*.use"))]

    @property
    def watched(self) -> list[str]:
        """Command lines of the processes that are, or were, watched."""
        return [path.read_text() for path in sorted(self.folder.glob("*.watched"))]

    def hook(self) -> str:
        """Write a `sitecustomize`; the PYTHONPATH with which any Python is watched."""
        code = "import no_pickle, pathlib\n"
        code += f"no_pickle.Watch(pathlib.Path({str(self.folder)!r})).watch()\n"
        (self.folder / "sitecustomize.py").write_text(code)
        return os.pathsep.join([str(self.folder), str(Path(__file__).parent)])

    def watch(self) -> None:
        """Watch this process, for good."""
        (self.folder / f"{os.getpid()}.watched").write_text(" ".join(sys.orig_argv))
        pickle.load = self._refusing("load", pickle.load)
        pickle.loads = self._refusing("loads", pickle.loads)
        pickle.Unpickler = self._refusing_class("Unpickler", pickle.Unpickler)  # type: ignore[misc]
        sys.addaudithook(self._audit)

    def _refusing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._seen(name)
            return real(*args, **kwargs)

        return call

    def _refusing_class(self, name: str, real: Any) -> Any:
        seen = self._seen

        class Refusing(real):  # type: ignore[misc]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                seen(name)
                super().__init__(*args, **kwargs)

        return Refusing

    def _audit(self, event: str, args: object) -> None:
        if event == "pickle.find_class":
            self._seen(event)

    def _seen(self, what: str) -> None:
        if not self._armed.exists():
            return
        stack = "".join(traceback.format_stack(limit=12))
        number = len(list(self.folder.glob("*.use")))
        (self.folder / f"{number}-{os.getpid()}.use").write_text(f"{what}\n{stack}")
        raise RuntimeError(f"pickle.{what} is not to be used while requests are served")
