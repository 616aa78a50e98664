"""Who owns the shared-memory files: a run lives as long as some process holds its lock.

Each process of a run holds a shared flock on `antiphon-{run}.lock`. The kernel releases it however
the process ends, so whoever gets the lock exclusively knows that the run is dead and may remove its
files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import tempfile
from collections.abc import Collection
from pathlib import Path

from antiphon import env
from antiphon.errors import ConnectorError

_KEPT = ".kept"
_RUN = re.compile(r"[A-Za-z0-9_]{1,32}")
_FILE = re.compile(r"antiphon-([A-Za-z0-9_]{1,32})(?:\.lock|-[0-9a-f]{32}(?:\.kept)?)")


def shm_directory() -> Path:
    """Where shared memory lives as files; an ordinary temporary folder where there is none.

    Raises SettingError if the operator has chosen one that is not there.
    """
    if (chosen := env.shm_dir()) is not None:
        return chosen
    shared = Path("/dev/shm")  # noqa: S108 - files in it have random names and mode 0600
    return shared if shared.is_dir() else Path(tempfile.gettempdir())


def new_run_token() -> str:
    """A name for a run that nobody can guess."""
    return secrets.token_hex(8)


def data_name(run: str, digest: str) -> str:
    """File name of a payload. `digest` has 32 hexadecimal digits."""
    return f"antiphon-{run}-{digest}"


def key_digest(key: str) -> str:
    """32 hexadecimal digits for a key, of which the first 8 are those of its group.

    A group is what stands before the first slash: all payloads of one unit have it.
    """
    group = key.partition("/")[0]
    return f"{_digest(group, 4)}{_digest(key, 12)}"


def _digest(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()


def kept_name(run: str, token: str) -> str:
    """File name of a segment that its producer keeps. `token` has 32 hexadecimal digits."""
    return f"{data_name(run, token)}{_KEPT}"


def kept_pattern(run: str) -> str:
    """What the names of all segments of a run match, for a glob."""
    return kept_name(run, "*")


def is_current(fd: int, path: Path) -> bool:
    """Whether `path` still names the file behind `fd`."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def check_owner(fd: int) -> None:
    """Raise PermissionError for a file of another user, who may have put it in ours' place."""
    if os.fstat(fd).st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "the file belongs to another user")


def is_ours(path: Path) -> bool:
    """Whether a file of this user's is there. Whoever sees a name may give it to a file of theirs,
    once the payload has been taken.
    """
    try:
        return path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def remove_file(path: Path) -> bool:
    """Whether it was there, and ours to remove: another user may have taken its place."""
    try:
        path.unlink()
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        return False
    return True


class RunLock:
    """Keeps a run alive; `close` removes all of the run if this was its last holder.

    Raises ConnectorError if the name is not made of 1 to 32 letters, digits and underscores, or if
    the lock file cannot be made.
    """

    def __init__(self, run: str, directory: Path | None = None) -> None:
        self.run = _checked(run)
        self._directory = shm_directory() if directory is None else directory
        try:
            self._fd = _lock(self._directory, run, fcntl.LOCK_SH)
        except OSError as error:
            raise ConnectorError(f"The run {run} cannot be joined: {error}.") from error

    def close(self) -> None:
        """Let go. May be called twice."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        try:
            # Not atomic, the shared lock goes first; of several last holders one gets through.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # somebody else keeps the run alive
        else:
            if is_current(fd, _lock_path(self._directory, self.run)):
                remove_run(self.run, self._directory)
        finally:
            os.close(fd)


def remove_run(run: str, directory: Path | None = None) -> int:
    """Remove all files of a run, held or not, the lock last. Returns how many but the lock.

    What another user has put beside them stays, as it is theirs to remove.
    """
    directory = shm_directory() if directory is None else directory
    removed = sum(map(remove_file, directory.glob(data_name(_checked(run), "*"))))
    remove_file(_lock_path(directory, run))
    return removed


def remove_payloads(run: str, groups: Collection[str], directory: Path | None = None) -> int:
    """Remove all payloads of a run whose keys are in one of these groups. Returns how many.

    For those that a producer has stored and told nobody of before it ended.
    """
    directory = shm_directory() if directory is None else directory
    beginnings = tuple(data_name(_checked(run), _digest(group, 4)) for group in groups)
    removed = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(beginnings) and not entry.name.endswith(_KEPT):
                removed += remove_file(Path(entry.path))
    return removed


def reclaim_dead_runs(directory: Path | None = None) -> int:
    """Remove the files of every run of this user that no process holds. Returns how many runs."""
    directory = shm_directory() if directory is None else directory
    reclaimed = 0
    for run in _runs_of_this_user(directory):
        try:
            fd = _lock(directory, run, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another user's, or no file at all: it must not keep us from starting
            continue
        if fd is None:
            continue
        try:
            remove_run(run, directory)
        finally:
            os.close(fd)
        reclaimed += 1
    return reclaimed


def _checked(run: str) -> str:
    """`run`, which becomes part of file names. Raises ConnectorError if it must not."""
    if not _RUN.fullmatch(run):
        raise ConnectorError(f"{run!r} cannot name a run: use letters, digits and underscores.")
    return run


def _runs_of_this_user(directory: Path) -> set[str]:
    runs = set()
    with os.scandir(directory) as entries:
        for entry in entries:
            match = _FILE.fullmatch(entry.name)
            if match is None:
                continue
            with contextlib.suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    runs.add(match[1])
    return runs


def _lock(directory: Path, run: str, operation: int) -> int | None:
    """A locked descriptor of the run's lock file; None if `operation` would have to wait."""
    path = _lock_path(directory, run)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        fd = os.open(path, flags, 0o600)
        try:
            check_owner(fd)  # before locking: a stranger who holds the lock would have us wait
            fcntl.flock(fd, operation)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:
            os.close(fd)
            raise
        if is_current(fd, path):
            return fd
        os.close(fd)  # removed between opening and locking: the name is free for a new file


def _lock_path(directory: Path, run: str) -> Path:
    return directory / f"antiphon-{run}.lock"
