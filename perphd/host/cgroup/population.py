"""Being told at once when a cgroup that was empty gets its first process: batch that starts is seen before it harms.

``cgroup.events`` says ``populated 1`` while a process lives in the group or below it, and its readers are notified when
that changes (Documentation/admin-guide/cgroup-v2.rst). cgroup v1 has nothing like it.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Callable
from typing import Final

from perphd.domain.errors import ParseError, kernel_error
from perphd.host.notified import Notified

FILE: Final = "cgroup.events"
_POPULATED = re.compile(rb"^populated ([01])$", re.MULTILINE)
_MOST_BYTES = 4096


class PopulationWatch:
    """Watches one cgroup2 directory until ``close``. Needs a running asyncio loop.

    Nobody is told when the group is removed: the watch is silent then, also about another group of that name.

    Args:
        directory: the real directory, such as ``/sys/fs/cgroup/batch.slice``.
        on_started: called, from the loop, when the group had no process and has one.

    Raises:
        KernelError: the file cannot be opened or read (Gone: there is no such cgroup).
        ParseError: it does not say whether the group is populated.
        RuntimeError: no asyncio loop is running.
    """

    def __init__(self, directory: str, on_started: Callable[[], None]) -> None:
        self.path = f"{directory}/{FILE}"
        self._on_started = on_started
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as exc:
            raise kernel_error(exc, self.path, "open") from exc
        try:
            self.populated = self._read()
        except BaseException as exc:
            os.close(self._fd)
            if isinstance(exc, OSError):
                raise kernel_error(exc, self.path, "read") from exc
            raise
        try:
            self._notified = Notified(self._fd, select.EPOLLPRI, self._ready)
        except OSError as exc:  # no descriptor is left for the epoll
            raise kernel_error(exc, self.path, "poll") from exc

    @property
    def closed(self) -> bool:
        """True after ``close``, or once it was seen that the cgroup has gone."""
        return self._notified.closed

    def close(self) -> None:
        """Give the descriptors back; closing twice is fine."""
        self._notified.close()

    def _read(self) -> bool:
        text = os.pread(self._fd, _MOST_BYTES, 0)
        found = _POPULATED.search(text)
        if found is None:
            raise ParseError(
                f"what {self.path} holds",
                text.decode(errors="replace"),
                "a line 'populated 0' or 'populated 1'",
            )
        return found[1] == b"1"

    def _ready(self, _: int) -> None:
        try:
            before, self.populated = self.populated, self._read()  # reading it is what quiets the descriptor
        except (OSError, ParseError):
            self.close()
            return
        if self.populated and not before:
            self._on_started()
