"""Keeps the names of the workloads in a file beside the socket, for the shells' completion."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from perphd.control.kept_file import KeptFile, replace_file
from perphd.domain.status import AgentStatus

log = logging.getLogger("perphd")

NAME: Final = "workloads"
LOOK_EVERY_S: Final = 5.0


class NamesFile(KeptFile):
    """Replaces the file whenever the names change. Who may not ask the daemon may not read it either.

    Args:
        socket: the control socket's path; the file is beside it.
        read_gid: group whose members may read it; None: nobody else.
        status: the agent as a whole, now.
    """

    def __init__(self, socket: str, read_gid: int | None, status: Callable[[], AgentStatus]) -> None:
        super().__init__(Path(socket).with_name(NAME), LOOK_EVERY_S, self.look)
        self._read_gid, self._status = read_gid, status
        self._written: str | None = None

    def look(self) -> None:
        """Write the file if the names are others. Completion is worth no complaint: a failure is tried again."""
        lines = (f"{item.spec.kind.value} {item.spec.name}\n" for item in self._status().workloads)
        text = "".join(lines)
        if text == self._written:
            return
        try:
            replace_file(self._path, text.encode(), 0o600, self._read_gid)
            self._written = text
        except OSError as exc:
            log.debug("%s: cannot be written: %s", self._path, exc)
