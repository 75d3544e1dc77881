"""Keeps the files up to date that other programs read: metrics, and the workloads' names.

The daemon replaces them while it runs, and removes them when it stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from perphd.domain.status import AgentStatus

log = logging.getLogger("perphd")

NAME: Final = "workloads"
"""File with the workloads' names, beside the socket, for shell completion."""
LOOK_EVERY_S: Final = 5.0
TELL_EVERY_S: Final = 60.0
"""Minimum time in seconds between two log lines about an unexpected failure."""


class KeptFile:
    """Calls ``renew`` every ``period_s``, and removes the file at the end, so that no program reads stale data."""

    def __init__(self, path: Path, period_s: float, renew: Callable[[], None]) -> None:
        self._path, self._period_s, self._renew = path, period_s, renew
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start updating the file."""
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
                    log.exception("%s: cannot be updated; retrying every %g s", self._path, self._period_s)
            await asyncio.sleep(self._period_s)


def replace_file(path: Path, data: bytes, mode: int, gid: int | None = None) -> None:
    """Replace a file that other programs read.

    The file is not synced, because a new version follows within seconds after a crash.

    Args:
        path: the file; its folder may belong to another user.
        data: the content.
        mode: its permissions.
        gid: a group that may read it too, if this process may set it; None: no group.

    Raises:
        OSError: it cannot be written; the old file stays.
    """
    temporary = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    # O_EXCL and O_NOFOLLOW: never follow or overwrite an existing file.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            if gid is not None:
                with contextlib.suppress(PermissionError):  # then only the file's owner can read it
                    os.fchown(file.fileno(), -1, gid)
                    os.fchmod(file.fileno(), mode | 0o040)
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


class Textfile(KeptFile):
    """The metrics for node_exporter's textfile collector. A missing folder is logged once and retried."""

    def __init__(self, path: str, period_s: float, page: Callable[[], bytes]) -> None:
        super().__init__(Path(path), period_s, self.write)
        self._page = page
        self._problem = ""

    def write(self) -> None:
        """Replace the file now. Only the first of repeated failures is logged; the old file stays."""
        try:
            replace_file(self._path, self._page(), 0o644)
        except OSError as exc:
            problem = f"metrics.textfile: {self._path}: cannot be written: {exc.strerror}"
            if problem != self._problem:
                log.error("%s; retried every %g s", problem, self._period_s)
            self._problem = problem
        else:
            self._problem = ""


class NamesFile(KeptFile):
    """The names of the workloads, for completion; readable by users with read access to the daemon.

    Args:
        socket: the control socket's path; the file is beside it.
        read_gid: group whose members may read it; None: only the owner.
        status: the agent's present status.
    """

    def __init__(self, socket: str, read_gid: int | None, status: Callable[[], AgentStatus]) -> None:
        super().__init__(Path(socket).with_name(NAME), LOOK_EVERY_S, self.look)
        self._read_gid, self._status = read_gid, status
        self._written: str | None = None

    def look(self) -> None:
        """Write the file if the names have changed.

        Failures are not reported, only retried: completion is optional.
        """
        lines = (f"{item.spec.kind.value} {item.spec.name}\n" for item in self._status().workloads)
        text = "".join(lines)
        if text == self._written:
            return
        try:
            replace_file(self._path, text.encode(), 0o600, self._read_gid)
            self._written = text
        except OSError as exc:
            log.debug("%s: cannot be written: %s", self._path, exc)
