"""Keeps the names of the workloads in a file beside the socket, for the shells' completion."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from perphd.domain.status import AgentStatus

log = logging.getLogger("perphd")

NAME: Final = "workloads"
LOOK_EVERY_S: Final = 5.0


class NamesFile:
    """Replaces the file whenever the names change. Who may not ask the daemon may not read it either.

    Args:
        socket: the control socket's path; the file is beside it.
        read_gid: group whose members may read it; None: nobody else.
        status: the agent as a whole, now.
    """

    def __init__(self, socket: str, read_gid: int | None, status: Callable[[], AgentStatus]) -> None:
        self._path = Path(socket).with_name(NAME)
        self._read_gid, self._status = read_gid, status
        self._written: str | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look."""
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
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Write the file if the names are others. Completion is worth no complaint: a failure is tried again."""
        lines = (f"{item.spec.kind.value} {item.spec.name}\n" for item in self._status().workloads)
        text = "".join(lines)
        if text == self._written:
            return
        temporary = self._path.with_name(f".{NAME}.new")
        try:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            with os.fdopen(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
                if self._read_gid is not None:
                    with contextlib.suppress(PermissionError):  # then root alone can read it
                        os.fchown(file.fileno(), -1, self._read_gid)
                        os.fchmod(file.fileno(), 0o640)
                file.write(text)
            os.replace(temporary, self._path)
            self._written = text
        except OSError as exc:
            log.debug("%s: cannot be written: %s", self._path, exc)
