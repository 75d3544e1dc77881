"""Kernel files in which writing a unit's own cgroup file becomes a request to systemd.

Everything above this sees files: what is read, verified and recorded is what the kernel says, since systemd reports
success for values that the kernel refused. Below a delegated unit, and outside units, files are written directly.

What systemd does here outlives the cgroup: a unit that is started again has the properties that it had. So the
identity of a unit's directory is the unit, not the inode, and giving back reaches units that are not running.
"""

from __future__ import annotations

import errno
import os
import re
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from posixpath import basename, dirname
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from perphd.domain.errors import Busy, Gone, Invalid, KernelError
from perphd.host.cgroup.group import parent_list
from perphd.host.cgroup.hierarchy import Hierarchies, Layout
from perphd.host.cgroup.knobs import EMPTY_ALLOWED, same
from perphd.host.cgroup.lines import with_line
from perphd.host.fs import Identity, KernelFile, KernelFs, read_text, write_within
from perphd.host.systemd import is_systemd, owner_unit
from perphd.host.systemd_bus import Bus
from perphd.host.systemd_dropins import DropIns, touch
from perphd.host.systemd_given_up import Attributes, GivenUp
from perphd.host.systemd_properties import (
    ABSENT,
    DEVICE_FILES,
    FILES,
    IDLE_SINCE,
    line_properties,
    properties,
    whole_properties,
)

if TYPE_CHECKING:
    import rdt

FREEZE: Final = "cgroup.freeze"
SETTLE_S: Final = 0.5
"""systemd writes the file a little after it has answered; so long the file may take to show it."""
_STEP_S: Final = 0.005
UNIT_DEVICE: Final = -1
"""The device in the identity of a unit's directory, which no file system has."""
_SLICE: Final = re.compile(r"[A-Za-z0-9:_.\\@-]+\.slice", re.ASCII)
_UNIT: Final = re.compile(r"[A-Za-z0-9:_.\\@-]{1,245}\.(?:service|scope|slice|mount|socket|swap)", re.ASCII)


@runtime_checkable
class Lasting(Protocol):
    """Files whose values outlive their cgroup: giving back does not end with the cgroup."""

    def outlives(self, path: str) -> bool:
        """True if what is set in this file is set again when its cgroup is made anew."""

    def give_back_absent(self, path: str, text: str) -> bool:
        """The cgroup is not there: whoever makes it again shall not bring the value back. False: nothing outlives."""

    def given_back(self, path: str) -> str:
        """The file holds its original again: nothing of perphd's request shall be left. Returns why something is."""


@dataclass(frozen=True, slots=True)
class _Place:
    unit: str
    directory: str
    file: str


class UnitFs:
    """``fs`` with units written through ``bus``. Only for hosts with systemd and cgroup v2.

    ``version``: systemd's; ``unlink``, ``mark``, ``sleep``, ``given_up``: for hosts that are simulated.
    """

    def __init__(
        self,
        fs: KernelFs,
        hierarchies: Hierarchies,
        bus: Bus,
        *,
        version: int = IDLE_SINCE,
        unlink: Callable[[str], None] = os.unlink,
        mark: Callable[[str], None] = touch,
        sleep: Callable[[float], None] = time.sleep,
        given_up: GivenUp | None = None,
    ) -> None:
        self._fs, self._hierarchies, self._bus = fs, hierarchies, bus
        self._version, self._sleep = version, sleep
        self._drop_ins = DropIns(fs, unlink, mark)
        self._given_up = Attributes() if given_up is None else given_up
        unified = hierarchies.unified
        self._mount = "" if unified is None else unified.mount
        self._controllers = frozenset() if unified is None else unified.controllers

    @property
    def raw(self) -> rdt.Fs:
        """As ``fs``: resctrl is not systemd's."""
        return self._fs.raw  # type: ignore[attr-defined,no-any-return]

    # -- whose file is it ----------------------------------------------------------------------------------------

    def unit(self, directory: str) -> str:
        """The unit of this host's systemd whose own cgroup this directory is; empty if it is none."""
        if not self._mount or not directory.startswith(f"{self._mount}/") or not is_systemd(self._fs):
            return ""
        return unit_of(directory[len(self._mount) :])

    def _place(self, path: str) -> _Place | None:
        file = basename(path)
        if file not in FILES and file != FREEZE:
            return None
        unit = self.unit(dirname(path))
        return _Place(unit, dirname(path), file) if unit else None

    def _stands_for(self, path: str) -> str | None:
        """What a file stands for that is not there yet; None if it will not come by asking for it."""
        file = basename(path)
        if file not in ABSENT or file.partition(".")[0] not in self._controllers:
            return None
        if file == "cpu.idle" and self._version < IDLE_SINCE:
            return None
        if not self._fs.exists(dirname(path)) or self._place(path) is None:
            return None
        # io.bfq.weight and io.weight come with the controller, if this kernel has them.
        return ABSENT[file]

    # -- KernelFs ------------------------------------------------------------------------------------------------

    def open(self, path: str) -> KernelFile:
        """As ``fs``."""
        return self._fs.open(path)

    def read(self, path: str) -> bytes:
        """As ``fs``; a unit's file that its controller would bring reads as what it stands for.

        A list that was given up reads empty: that the kernel still shows in it all that there is, since it does not
        empty the list of a group with processes, ends whenever systemd switches the controller off.
        """
        try:
            raw = self._fs.read(path)
        except Gone:
            text = None if self._fs.exists(path) else self._stands_for(path)
            if text is None:
                raise
            return f"{text}\n".encode()
        return b"\n" if self._is_given_up(path, raw) else raw

    def _is_given_up(self, path: str, raw: bytes) -> bool:
        if basename(path) not in EMPTY_ALLOWED or not (text := raw.decode().strip()):
            return False
        place = self._place(path)
        if place is None or not self._given_up.holds(place.directory, place.file):
            return False
        return same(path, self._everything(path), text)

    def exists(self, path: str) -> bool:
        """As ``fs``, and true for a unit's file that its controller would bring."""
        if basename(path) == "cpu.idle" and self._version < IDLE_SINCE and self._place(path) is not None:
            return False  # this systemd has no word for it
        return self._fs.exists(path) or self._stands_for(path) is not None

    def listdir(self, path: str) -> list[str]:
        """As ``fs``."""
        return self._fs.listdir(path)

    def subdirectories(self, path: str) -> list[str]:
        """As ``fs``."""
        return self._fs.subdirectories(path)

    def identity(self, path: str) -> tuple[int, int]:
        """As ``fs``; of a unit's directory the unit itself, which stays the same when it is started again."""
        unit = self.unit(path)
        return (UNIT_DEVICE, zlib.crc32(unit.encode())) if unit else self._fs.identity(path)

    def write(self, path: str, data: bytes) -> None:
        """As ``fs``, or the request to systemd, until the file shows it or ``SETTLE_S`` have passed."""
        place = self._place(path)
        if place is None:
            self._fs.write(path, data)
            return
        text = data.decode().strip("\n")
        if place.file in DEVICE_FILES:
            text = self._ask_lines(place, path, text)
        else:
            self._ask(place, path, text)
        self._await(path, text)

    def write_within(self, path: str, data: bytes, identity: Identity) -> None:
        """See ``WritesWithin``. A unit is known by its name: it is the same one when it was started again meanwhile."""
        if self.unit(dirname(path)):
            self.write(path, data)
        else:
            write_within(self._fs, path, data, identity)

    def _ask_lines(self, place: _Place, path: str, line: str) -> str:
        """Ask for one disk's line with those that the others have; returns what the file is to show then."""
        now = self.read(path).decode().strip("\n")
        wanted = with_line(place.file, now, line)
        try:
            asked = line_properties(place.file, wanted, now)
        except (KeyError, ValueError) as exc:
            raise Invalid(path, "set through systemd", errno.EINVAL, line) from exc
        self._drop_ins.expect(place.unit, place.file)
        self._bus.set_properties(place.unit, asked)
        return wanted

    def _ask(self, place: _Place, path: str, text: str) -> None:
        if place.file == FREEZE:
            self._bus.freeze(place.unit, text == "1")
            return
        try:
            wanted = properties(place.file, text)
        except (KeyError, ValueError) as exc:
            raise Invalid(path, "set through systemd", errno.EINVAL, text) from exc
        self._drop_ins.expect(place.unit, place.file)
        if place.file in EMPTY_ALLOWED:
            self._given_up.discard(place.directory, place.file)
            if not text:
                self._release(place, path)
        self._bus.set_properties(place.unit, wanted)

    def _release(self, place: _Place, path: str) -> None:
        """Make the list hold everything that there is, before it is given up.

        The kernel does not take an empty list from a group with processes, and systemd does not say so. Nor must it
        be given up before the kernel shows everything: systemd writes a little later, and only what it was asked last.
        """
        everything = self._everything(path)
        if not everything or not self._fs.exists(path):
            return
        self._bus.set_properties(place.unit, properties(place.file, everything))
        if not self._await(path, everything):
            advice = "it is tried again; systemctl status shows whether systemd is busy"
            detail = f"systemd has not given it {everything} within {SETTLE_S:g} s"
            raise Busy(path, "give up", errno.ETIMEDOUT, "", detail, advice)
        self._given_up.add(place.directory, place.file)

    def _everything(self, path: str) -> str:
        """All CPUs or memory nodes of the host: those of a slice that is confined may become more again."""
        with suppress(KernelError):
            return read_text(self._fs, f"{self._mount}/{basename(path)}.effective")
        return parent_list(self._fs, path)

    def _await(self, path: str, text: str) -> bool:
        """True as soon as the file shows this text, or is gone; false if it does not in ``SETTLE_S``."""
        for _ in range(int(SETTLE_S / _STEP_S)):
            try:
                if same(path, text, read_text(self._fs, path)):
                    return True
            except Gone:
                return True
            if not text:
                return True
            self._sleep(_STEP_S)
        return False

    # -- what outlives the cgroup ----------------------------------------------------------------------------------

    def outlives(self, path: str) -> bool:
        """See ``Lasting``: true of a unit's properties."""
        place = self._place(path)
        return place is not None and place.file != FREEZE

    def give_back_absent(self, path: str, text: str) -> bool:
        """See ``Lasting``: the unit is not running; its properties go back all the same."""
        place = self._place(path)
        if place is None or self._fs.exists(place.directory):
            return False
        with suppress(Gone):  # systemd does not know the unit any more: nothing outlives it
            if place.file != FREEZE:
                self._bus.set_properties(place.unit, whole_properties(place.file, text))
        self.given_back(path)
        return True

    def given_back(self, path: str) -> str:
        """See ``Lasting``: drop-ins that perphd's requests made would hide what the unit's file says later."""
        place = self._place(path)
        if place is not None:
            self._drop_ins.given_back(place.unit, place.file)
        return ""  # what a sandbox keeps of them says no more than the original, and goes with the boot


def unit_of(cgroup: str) -> str:
    """The unit that this cgroup is, by its path alone; empty if it is none.

    Above a unit there are slices only. What has a unit's name within a service or scope is the business of another
    manager: that of a user, or the one in a container.
    """
    *above, name = cgroup.strip("/").split("/")
    if not all(_SLICE.fullmatch(part) for part in above) or not _UNIT.fullmatch(name):
        return ""
    return name.removeprefix("_")  # systemd's escape of names that are controllers' as well


def is_running_kernel(fs: KernelFs) -> bool:
    """True if ``fs`` shows this machine's own files, whose units the system bus is about."""
    try:
        status = os.stat("/proc")
        return fs.identity("/proc") == (status.st_dev, status.st_ino)
    except (OSError, KernelError):
        return False


def asks_systemd(fs: KernelFs, hierarchies: Hierarchies) -> bool:
    """True on a host where units are set through systemd: it is PID 1, and all is cgroup v2."""
    return hierarchies.layout is Layout.V2 and is_systemd(fs)


def unit_files(fs: KernelFs, hierarchies: Hierarchies, bus: Bus) -> KernelFs:
    """``fs``, with units written through systemd where that is how it is done."""
    return UnitFs(fs, hierarchies, bus) if asks_systemd(fs, hierarchies) else fs


def refusal(fs: KernelFs, hierarchies: Hierarchies, cgroup: str) -> str | None:
    """Why a cgroup must not be set, or None: a unit where ``fs`` asks systemd, else what lies below a delegated one."""
    owner = owner_unit(hierarchies, fs, cgroup)
    if owner is None:
        return None
    unified = hierarchies.unified
    if isinstance(fs, UnitFs) and unified is not None and fs.unit(unified.path(cgroup)):
        return None
    return owner.refusal() or None
