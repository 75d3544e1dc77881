"""The lock of a state directory, which admits one live process and names it to others."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from perphd.domain.errors import PerphError, kernel_error

LOCK: Final = "lock"


class JournalInUse(PerphError):
    """Another live process holds the journal. ``pid``: its process id, or 0 if it could not be read."""

    def __init__(self, state_dir: str, pid: int) -> None:
        self.pid = pid
        who = f"process {pid}" if pid else "another process"
        super().__init__(
            f"{state_dir}: the journal is in use by {who}: stop it first, since only one perphd may write to this host"
        )


def lock(state_dir: str) -> int:
    """Lock the directory, created if absent; closing the returned descriptor unlocks it.

    Returns -1 if the directory cannot be written; nothing can be recorded then, so perphd changes nothing.

    Raises:
        JournalInUse: a live process holds the lock.
        KernelError: the file system has no locks.
    """
    try:
        os.makedirs(state_dir, mode=0o700, exist_ok=True)
        fd = os.open(f"{state_dir}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        try:
            fd = os.open(f"{state_dir}/{LOCK}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return -1
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        os.close(fd)
        raise JournalInUse(state_dir, holder(state_dir)) from exc
    except OSError as exc:
        os.close(fd)
        advice = "the state directory must be on a file system with locks (flock), such as a local disk"
        raise kernel_error(exc, f"{state_dir}/{LOCK}", "lock", advice=advice) from exc
    with suppress(OSError):  # the pid only serves messages; the lock is already held
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def holder(state_dir: str) -> int:
    """Process id in the lock file, which may be dead; 0 if there is none."""
    try:
        return int(Path(state_dir, LOCK).read_text())
    except (OSError, ValueError):
        return 0
