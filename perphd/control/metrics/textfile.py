"""Writes the metrics to a file for node_exporter's textfile collector, which reads whole files only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("perphd")


class Textfile:
    """Replaces one file every ``period_s``, and removes it at the end: a file that stays would go on being read."""

    def __init__(self, path: str, period_s: float, page: Callable[[], bytes]) -> None:
        self._path, self._period_s, self._page = Path(path), period_s, page
        self._task: asyncio.Task[None] | None = None
        self._problem = ""

    async def start(self) -> None:
        """Begin to write; a folder that is missing is logged once and tried again."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop writing and remove the file."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        with contextlib.suppress(OSError):
            self._path.unlink()

    async def _run(self) -> None:
        while True:
            self.write()
            await asyncio.sleep(self._period_s)

    def write(self) -> None:
        """Replace the file now. A failure is logged when it begins; the old file stays."""
        try:
            _replace(self._path, self._page())
        except OSError as exc:
            problem = f"metrics.textfile: {self._path}: cannot be written: {exc.strerror}"
            if problem != self._problem:
                log.error("%s; tried again every %g s", problem, self._period_s)
            self._problem = problem
        else:
            self._problem = ""


def _replace(target: Path, data: bytes) -> None:
    """Replace a file that others read. Not synced: after a crash the next version comes in seconds."""
    temporary = target.with_name(f".{target.name}.new")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    # The folder may be somebody else's: nothing that stands there already is followed or written into.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(data)
        os.replace(temporary, target)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
