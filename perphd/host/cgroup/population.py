"""Notification when an empty cgroup gets its first process.

New batch is thus noticed before it interferes. ``cgroup.events`` says ``populated 1`` while a process is in
the group or a descendant, and readers are notified of changes (Documentation/admin-guide/cgroup-v2.rst).
cgroup v1 has no equivalent.
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

    The kernel does not report the removal of the group: the watch then stays silent, also about a new group of that
    name.

    Args:
        directory: the real directory, such as ``/sys/fs/cgroup/batch.slice``.
        on_started: called from the loop when the empty group gets a process.

    Raises:
        KernelError: the file cannot be opened or read (Gone: there is no such cgroup).
        ParseError: the file does not say whether the group is populated.
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
        """True after ``close``, or after the removal of the cgroup was noticed."""
        return self._notified.closed

    def close(self) -> None:
        """Close the descriptors; closing twice is allowed."""
        self._notified.close()

    def _read(self) -> bool:
        text = os.pread(self._fd, _MOST_BYTES, 0)
        found = _POPULATED.search(text)
        if found is None:
            raise ParseError(
                f"the content of {self.path}",
                text.decode(errors="replace"),
                "a line 'populated 0' or 'populated 1'",
            )
        return found[1] == b"1"

    def _ready(self, _: int) -> None:
        try:
            before, self.populated = self.populated, self._read()  # reading rearms the notification
        except (OSError, ParseError):
            self.close()
            return
        if self.populated and not before:
            self._on_started()
