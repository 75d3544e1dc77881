"""A file for other programs that is replaced while the daemon runs, and removed at the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

log = logging.getLogger("perphd")

TELL_EVERY_S: Final = 60.0
"""A failure that nobody foresaw is logged at most this often."""


class KeptFile:
    """Calls ``renew`` every ``period_s``, and removes the file at the end: one that stays would go on being read."""

    def __init__(self, path: Path, period_s: float, renew: Callable[[], None]) -> None:
        self._path, self._period_s, self._renew = path, period_s, renew
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to renew it."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop, and remove the file."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        with contextlib.suppress(OSError):
            self._path.unlink()

    async def _run(self) -> None:
        told_s: float | None = None
        while True:
            try:
                self._renew()
            except Exception:
                now_s = time.monotonic()
                if told_s is None or now_s - told_s >= TELL_EVERY_S:
                    told_s = now_s
                    log.exception("%s: cannot be renewed; tried again every %g s", self._path, self._period_s)
            await asyncio.sleep(self._period_s)


def replace_file(path: Path, data: bytes, mode: int, gid: int | None = None) -> None:
    """Replace a file that others read. Not synced: after a crash the next version comes in seconds.

    Args:
        path: what is replaced; the folder may be somebody else's.
        data: the content.
        mode: its permissions.
        gid: a group that may read it too, if this process may say so; None: nobody more.

    Raises:
        OSError: it cannot be written; the old file stays.
    """
    temporary = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    # Nothing that stands there already is followed or written into.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            if gid is not None:
                with contextlib.suppress(PermissionError):  # then its owner alone can read it
                    os.fchown(file.fileno(), -1, gid)
                    os.fchmod(file.fileno(), mode | 0o040)
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
