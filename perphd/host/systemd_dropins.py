"""The drop-ins in which systemd keeps the run-time properties that perphd asked for, and taking them away again.

systemd writes one for every property and never removes it by itself. Left behind, it would hide until the next boot
what the unit's own file says after an edit. One that was there before is an administrator's (``systemctl set-property
--runtime``) and stays. What was not there is marked before systemd is asked; the marks are as short-lived as the
drop-ins, in ``/run``, and need no daemon to be read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from posixpath import dirname
from typing import Final

from perphd.domain.errors import KernelError
from perphd.host.fs import KernelFs, read_text
from perphd.host.systemd_properties import drop_ins

FOLDERS: Final = ("/run/systemd/system.control", "/run/systemd/transient")
"""Where systemd keeps run-time properties: of units with a file of their own, and of transient ones."""
MARKS: Final = "/run/perphd/drop-ins"


def touch(path: str) -> None:
    """Make this empty file, and the folders that it is in."""
    Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    Path(path).touch(mode=0o600)


class DropIns:
    """``unlink``, ``mark`` and ``rmdir`` change the file system; hosts that are simulated bring their own."""

    def __init__(
        self,
        fs: KernelFs,
        unlink: Callable[[str], None] = os.unlink,
        mark: Callable[[str], None] = touch,
        rmdir: Callable[[str], None] = os.rmdir,
    ) -> None:
        self._fs, self._unlink, self._mark, self._rmdir = fs, unlink, mark, rmdir
        self._unmarked: set[str] = set()

    def expect(self, unit: str, file: str) -> None:
        """Before systemd is asked for what this file states: remember which of its drop-ins are not there yet."""
        for name in drop_ins(file):
            if any(self._fs.exists(path) for path in _places(unit, name)):
                continue
            try:
                self._mark(_mark(unit, name))
            except OSError:  # then it is taken away later only by this process, and only if it says nothing
                self._unmarked.add(_mark(unit, name))

    def given_back(self, unit: str, file: str) -> None:
        """The file holds its original again: take away what perphd's requests made, and nothing else."""
        for name in drop_ins(file):
            mark = _mark(unit, name)
            is_own = self._fs.exists(mark)
            for path in _places(unit, name):
                if is_own or (mark in self._unmarked and self._says_nothing(path)):
                    with suppress(OSError):  # a sandbox may forbid it: it then stays until the next boot
                        self._unlink(path)
                        self._rmdir(dirname(path))  # refused while anything else is in it
            self._unmarked.discard(mark)
            if is_own:
                with suppress(OSError):
                    self._unlink(mark)
        with suppress(OSError):  # others are in there, or there never was one
            os.rmdir(f"{MARKS}/{unit}")

    def _says_nothing(self, path: str) -> bool:
        """True if the drop-in says no more than that the property has no value."""
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
