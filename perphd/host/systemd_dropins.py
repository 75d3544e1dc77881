"""Drop-ins in which systemd keeps perphd's run-time properties, and emptying them on restore.

systemd writes a drop-in for every property and never removes it. Left unchanged, it would override edits of
the unit's own file until the next boot. Removing it is not a solution: systemd remembers its path until the
next daemon-reload, reports the unit as changed on disk, and ``systemctl edit`` and ``cat`` fail on the
missing file. perphd therefore replaces its content with a comment and keeps its modification time, until the
next boot or the removal of the package (its prerm).

A drop-in that existed before belongs to an administrator (``systemctl set-property --runtime``) and is left
unchanged. A drop-in that did not exist, or held only such a comment, is marked before the request to systemd.
The marks are in ``/run`` and last as long as the drop-ins; reading them requires no daemon.

A mark holds the value of the file without the drop-in. If the restored value differs, the unit's owner has set it
meanwhile through the same drop-in, as kubelet does when it resizes a pod. That drop-in is left unchanged, because the
next daemon-reload would otherwise lose the owner's value.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from perphd.domain.errors import KernelError
from perphd.host.cgroup.knobs import EMPTY_ALLOWED, same
from perphd.host.fs import KernelFs, read_text
from perphd.host.systemd_properties import drop_ins

FOLDERS: Final = ("/run/systemd/system.control", "/run/systemd/transient")
"""Folders of run-time properties: for units with their own file, and for transient units."""
MARKS: Final = "/run/perphd/drop-ins"
GIVEN_BACK: Final = "# perphd has given this setting back. Nothing is set here.\n"
"""Content of an emptied drop-in; the package's prerm searches for this line."""


def mark(path: str, text: str) -> None:
    """Create a file with this text, and its parent folders."""
    Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    Path(path).write_text(text)
    Path(path).chmod(0o600)


def empty(path: str) -> None:
    """Replace the content of a drop-in with a comment. Its modification time stays, because systemd compares it."""
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
        mark: Callable[[str, str], None] = mark,
        unmark: Callable[[str], None] = os.unlink,
    ) -> None:
        self._fs, self._empty, self._mark, self._unmark = fs, empty, mark, unmark
        self._unmarked: set[str] = set()

    def expect(self, unit: str, file: str, now: str) -> None:
        """Before a request to systemd for this file, mark its drop-ins that do not exist yet.

        ``now``: the file's present text.
        """
        for name in drop_ins(file):
            if any(self._fs.exists(path) and not self._is_emptied(path) for path in _places(unit, name)):
                continue
            place = _mark(unit, name)
            if self._marked_text(place):
                continue  # an earlier request left no drop-in; the first mark has the value without one
            try:
                self._mark(place, f"{file} {now}\n")
            except OSError:  # then only this process empties it later, and only if it sets nothing
                self._unmarked.add(place)

    def given_back(self, unit: str, file: str, text_of: Callable[[str], str | None]) -> None:
        """After the file was restored, empty the drop-ins that perphd's requests created.

        ``text_of``: the present text of a file of this unit; None: it is gone.
        """
        for name in drop_ins(file):
            place = _mark(unit, name)
            is_own = self._fs.exists(place)
            is_owners = is_own and self._is_owners(place, text_of)
            for path in _places(unit, name):
                # The kernel shows all CPUs in a released list.
                if is_owners and not (file in EMPTY_ALLOWED and self._sets_nothing(path)):
                    continue
                if is_own or (place in self._unmarked and self._sets_nothing(path)):
                    with suppress(OSError):  # it does not exist, or a sandbox forbids it: leave it unchanged
                        self._empty(path)
            self._unmarked.discard(place)
            if is_own:
                with suppress(OSError):
                    self._unmark(place)
        with suppress(OSError):  # it contains other marks, or does not exist
            os.rmdir(f"{MARKS}/{unit}")

    def _is_owners(self, place: str, text_of: Callable[[str], str | None]) -> bool:
        """True if the file no longer has its text from before the drop-in: the unit's owner has then changed it."""
        file, _, before = self._marked_text(place).partition(" ")
        now = text_of(file) if file else None
        return now is not None and not same(f"/{file}", before, now)

    def _marked_text(self, place: str) -> str:
        """The text of a mark; empty if there is none, or if an earlier version made it without text."""
        try:
            return read_text(self._fs, place)
        except KernelError:
            return ""

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
