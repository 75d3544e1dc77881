"""Drop-ins in which systemd keeps perphd's run-time properties, and emptying them on restore.

systemd writes a drop-in for every property and never removes it. Left unchanged, it would override edits of
the unit's own file until the next boot. Removing it is no solution: systemd remembers its path until the next
daemon-reload, reports the unit as changed on disk, and ``systemctl edit`` and ``cat`` fail on the missing
file. perphd therefore replaces its content by a comment and keeps its modification time, until the next boot
or the removal of the package (its prerm).

A drop-in that existed before belongs to an administrator (``systemctl set-property --runtime``) and is left
unchanged. One that did not exist, or was such a comment, is marked before systemd is asked. The marks are in
``/run`` and last as long as the drop-ins; reading them requires no daemon.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from perphd.domain.errors import KernelError
from perphd.host.fs import KernelFs, read_text
from perphd.host.systemd_properties import drop_ins

FOLDERS: Final = ("/run/systemd/system.control", "/run/systemd/transient")
"""Folders of run-time properties: for units with their own file, and for transient units."""
MARKS: Final = "/run/perphd/drop-ins"
GIVEN_BACK: Final = "# perphd has given this setting back. Nothing is set here.\n"
"""Content of an emptied drop-in; the package's prerm searches for this line."""


def touch(path: str) -> None:
    """Create an empty file and its parent folders."""
    Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    Path(path).touch(mode=0o600)


def empty(path: str) -> None:
    """Replace the content of a drop-in by a comment. Its modification time stays, because systemd compares it."""
    handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        status = os.fstat(handle)
        os.ftruncate(handle, 0)
        os.write(handle, GIVEN_BACK.encode())
        os.utime(handle, ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.close(handle)


class DropIns:
    """Tracks the drop-ins that perphd's requests create.

    ``empty``, ``mark`` and ``unmark`` change the file system; simulated hosts replace them.
    """

    def __init__(
        self,
        fs: KernelFs,
        empty: Callable[[str], None] = empty,
        mark: Callable[[str], None] = touch,
        unmark: Callable[[str], None] = os.unlink,
    ) -> None:
        self._fs, self._empty, self._mark, self._unmark = fs, empty, mark, unmark
        self._unmarked: set[str] = set()

    def expect(self, unit: str, file: str) -> None:
        """Before a request to systemd for this file, mark its drop-ins that do not exist yet."""
        for name in drop_ins(file):
            if any(self._fs.exists(path) and not self._is_emptied(path) for path in _places(unit, name)):
                continue
            try:
                self._mark(_mark(unit, name))
            except OSError:  # then only this process empties it later, and only if it sets nothing
                self._unmarked.add(_mark(unit, name))

    def given_back(self, unit: str, file: str) -> None:
        """After the file was restored, empty the drop-ins that perphd's requests created."""
        for name in drop_ins(file):
            mark = _mark(unit, name)
            is_own = self._fs.exists(mark)
            for path in _places(unit, name):
                if is_own or (mark in self._unmarked and self._sets_nothing(path)):
                    with suppress(OSError):  # it does not exist, or a sandbox forbids it: leave it unchanged
                        self._empty(path)
            self._unmarked.discard(mark)
            if is_own:
                with suppress(OSError):
                    self._unmark(mark)
        with suppress(OSError):  # it contains other marks, or does not exist
            os.rmdir(f"{MARKS}/{unit}")

    def _is_emptied(self, path: str) -> bool:
        try:
            return self._fs.read(path) in (GIVEN_BACK.encode(), b"")
        except KernelError:
            return False

    def _sets_nothing(self, path: str) -> bool:
        """True if the drop-in only states that the property has no value."""
        try:
            lines = read_text(self._fs, path).splitlines()
        except KernelError:
            return False
        said = [line for line in lines if line.strip() and line[0] not in "#["]
        return all(line.rstrip().endswith(("=", "=infinity", "=0")) for line in said)


def _places(unit: str, name: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{unit}.d/50-{name}.conf" for folder in FOLDERS)


def _mark(unit: str, name: str) -> str:
    return f"{MARKS}/{unit}/{name}"
