"""Kernel files on a systemd host: writing a unit's own cgroup file becomes a request to systemd.

Higher layers see files. Values are read, verified and recorded from the kernel, because systemd reports
success even for values that the kernel refused. Files inside delegated units and outside of units are written
directly.

A setting made through systemd outlives the cgroup: a restarted unit has the same properties. The identity of
a unit's directory is therefore the unit and not the inode, and restoring also covers units that are not
running.
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
from typing import TYPE_CHECKING, Final

from perphd.domain.errors import Busy, Gone, Invalid, KernelError
from perphd.host.cgroup.group import parent_list, with_offline
from perphd.host.cgroup.hierarchy import Hierarchies, Layout
from perphd.host.cgroup.knobs import EMPTY_ALLOWED, same
from perphd.host.cgroup.lines import with_line
from perphd.host.fs import (
    HeldFile,
    Identity,
    KernelFile,
    KernelFs,
    hold,
    read_text,
    text_or_empty,
    write_within,
)
from perphd.host.systemd import is_systemd, owner_unit
from perphd.host.systemd_bus import Bus
from perphd.host.systemd_dropins import DropIns
from perphd.host.systemd_given_up import Attributes, GivenUp
from perphd.host.systemd_properties import (
    ABSENT,
    DEVICE_FILES,
    FILES,
    IDLE_SINCE,
    line_properties,
    properties,
    unscaled,
    whole_properties,
)

if TYPE_CHECKING:
    import rdt

FREEZE: Final = "cgroup.freeze"
SETTLE_S: Final = 0.5
"""Seconds for which a file may take to show a value, since systemd writes it slightly after answering."""
_STEP_S: Final = 0.005
UNIT_DEVICE: Final = -1
"""Device number in the identity of a unit's directory, which no file system has."""
_SLICE: Final = re.compile(r"[A-Za-z0-9:_.\\@-]+\.slice", re.ASCII)
_UNIT: Final = re.compile(r"[A-Za-z0-9:_.\\@-]{1,245}\.(?:service|scope|slice|mount|socket|swap)", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Place:
    unit: str
    directory: str
    file: str


class UnitFs:
    """``fs`` with units written through ``bus``. Only for hosts with systemd and cgroup v2.

    ``version``: systemd's version. ``drop_ins``, ``sleep``, ``given_up``: replaced for simulated hosts.
    """

    def __init__(
        self,
        fs: KernelFs,
        hierarchies: Hierarchies,
        bus: Bus,
        *,
        version: int = IDLE_SINCE,
        drop_ins: DropIns | None = None,
        sleep: Callable[[float], None] = time.sleep,
        given_up: GivenUp | None = None,
    ) -> None:
        self._fs, self._hierarchies, self._bus = fs, hierarchies, bus
        self._version, self._sleep = version, sleep
        self._drop_ins = DropIns(fs) if drop_ins is None else drop_ins
        self._given_up = Attributes() if given_up is None else given_up
        unified = hierarchies.unified
        self._mount = "" if unified is None else unified.mount
        self._controllers = frozenset() if unified is None else unified.controllers

    @property
    def raw(self) -> rdt.Fs:
        """Files by which ``rdt`` accesses resctrl: those of ``fs``, because systemd does not manage resctrl."""
        return self._fs.raw  # type: ignore[attr-defined,no-any-return]

    # -- ownership -----------------------------------------------------------------------------------------------

    def unit(self, directory: str) -> str:
        """The unit of this host's systemd whose own cgroup this directory is; empty if there is none."""
        if not self._mount or not directory.startswith(f"{self._mount}/") or not is_systemd(self._fs):
            return ""
        return unit_of(directory[len(self._mount) :])

    def _place(self, path: str) -> _Place | None:
        file = basename(path)
        if file not in FILES and file != FREEZE:
            return None
        unit = self.unit(dirname(path))
        return _Place(unit, dirname(path), file) if unit else None

    def _default_if_missing(self, path: str) -> str | None:
        """The value that a missing file represents; None if a request would not create the file."""
        file = basename(path)
        if file not in ABSENT or file.partition(".")[0] not in self._controllers:
            return None
        if file == "cpu.idle" and self._version < IDLE_SINCE:
            return None
        if not self._fs.exists(dirname(path)) or self._place(path) is None:
            return None
        # io.bfq.weight and io.weight appear with the controller, if this kernel has them.
        return ABSENT[file]

    # -- KernelFs ------------------------------------------------------------------------------------------------

    def open(self, path: str) -> KernelFile:
        """Open a file of ``fs`` for repeated reading."""
        return self._fs.open(path)

    def read(self, path: str) -> bytes:
        """Read a whole file. A unit's file that is missing only because its controller is off reads as its
        default.

        A released list reads as empty. The kernel still shows all CPUs or nodes in it, because it does not empty
        the list of a group with processes, but that ends when systemd disables the controller.
        """
        try:
            raw = self._fs.read(path)
        except Gone:
            text = None if self._fs.exists(path) else self._default_if_missing(path)
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
        """True if the file exists in ``fs``, or is a unit's file that appears once systemd enables its controller."""
        if basename(path) == "cpu.idle" and self._version < IDLE_SINCE and self._place(path) is not None:
            return False  # this version of systemd has no property for it
        return self._fs.exists(path) or self._default_if_missing(path) is not None

    def listdir(self, path: str) -> list[str]:
        """Names in a directory of ``fs``, sorted."""
        return self._fs.listdir(path)

    def subdirectories(self, path: str) -> list[str]:
        """Names of the directories in a directory of ``fs``, sorted."""
        return self._fs.subdirectories(path)

    def identity(self, path: str) -> tuple[int, int]:
        """(device, inode) in ``fs``; for a unit's directory, an identity that the unit keeps across restarts."""
        unit = self.unit(path)
        return (UNIT_DEVICE, zlib.crc32(unit.encode())) if unit else self._fs.identity(path)

    def write(self, path: str, data: bytes) -> None:
        """Write as in ``fs``, or ask systemd and wait until the file shows the value.

        The wait ends after ``SETTLE_S``.
        """
        place = self._place(path)
        if place is None:
            self._fs.write(path, data)
            return
        text = data.decode().strip("\n")
        if place.file in DEVICE_FILES:
            text = self._ask_lines(place, path, text)
        else:
            self._ask(place, path, text)
        if not self._await(path, text) and (asked := unscaled(place.file, text)):
            self._bus.set_properties(place.unit, asked)
            self._await(path, text)

    def write_within(self, path: str, data: bytes, identity: Identity) -> None:
        """Write in exactly this directory (``RealFs.write_within``); a unit's stays the same when it restarts."""
        if self.unit(dirname(path)):
            self.write(path, data)
        else:
            write_within(self._fs, path, data, identity)

    def hold(self, path: str, identity: Identity) -> HeldFile | None:
        """Open the file as ``perphd.host.fs.hold`` does; None for a unit's file, because systemd writes it."""
        return None if self.unit(dirname(path)) else hold(self._fs, path, identity)

    def _ask_lines(self, place: _Place, path: str, line: str) -> str:
        """Request one disk's line together with those of the other disks; returns the expected content."""
        now = self.read(path).decode().strip("\n")
        wanted = with_line(place.file, now, line)
        try:
            asked = line_properties(place.file, wanted, now)
        except (KeyError, ValueError) as exc:
            raise Invalid(path, "set through systemd", errno.EINVAL, line) from exc
        self._drop_ins.expect(place.unit, place.file, now)
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
        self._drop_ins.expect(place.unit, place.file, self._text(path) or "")
        if place.file in EMPTY_ALLOWED:
            self._given_up.discard(place.directory, place.file)
            if not text:
                self._release(place, path)
        self._bus.set_properties(place.unit, wanted)

    def _release(self, place: _Place, path: str) -> None:
        """Fill the list with all CPUs or nodes of the host, before it is released.

        The kernel refuses an empty list for a group with processes, and systemd does not report that. The list is
        released only after the kernel shows the full list, because systemd writes later, and writes only the latest
        request.
        """
        everything = self._everything(path)
        if not everything or not self._fs.exists(path):
            return
        self._bus.set_properties(place.unit, properties(place.file, everything))
        if not self._await(path, everything):
            advice = "it is retried; systemctl status shows whether systemd is busy"
            detail = f"systemd has not set it to {everything} within {SETTLE_S:g} s"
            raise Busy(path, "release", errno.ETIMEDOUT, "", detail, advice)
        self._given_up.add(place.directory, place.file)

    def _text(self, path: str) -> str | None:
        """The file's text; None if it cannot be read."""
        try:
            return self.read(path).decode(errors="replace").rstrip("\n")
        except KernelError:
            return None

    def _everything(self, path: str) -> str:
        """All CPUs or memory nodes of the host, because the list of a confined slice may grow again.

        Includes CPUs that are offline, because they may return.
        """
        everything = text_or_empty(self._fs, f"{self._mount}/{basename(path)}.effective")
        return with_offline(self._fs, path, everything or parent_list(self._fs, path))

    def _await(self, path: str, text: str) -> bool:
        """True once the file shows this text or is gone; False if it does not within ``SETTLE_S``."""
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
        """True if a recreated cgroup gets this file's value again, as it does for a unit's properties."""
        place = self._place(path)
        return place is not None and place.file != FREEZE

    def give_back_absent(self, path: str, text: str) -> bool:
        """Restore a stopped unit's properties; False if the unit has a cgroup, or the file is not a unit's."""
        place = self._place(path)
        if place is None or self._fs.exists(place.directory):
            return False
        with suppress(Gone):  # systemd no longer knows the unit, so nothing outlives it
            if place.file != FREEZE:
                self._bus.set_properties(place.unit, whole_properties(place.file, text))
        self._drop_ins.given_back(place.unit, place.file, {place.file: text}.get)
        return True

    def given_back(self, path: str) -> str:
        """Empty the drop-ins of perphd's requests, which would override later edits of the unit's file.

        Returns an empty text: none remains in force.
        """
        place = self._place(path)
        if place is not None:
            directory = place.directory
            self._drop_ins.given_back(place.unit, place.file, lambda file: self._text(f"{directory}/{file}"))
        return ""  # a drop-in kept by a sandbox equals the original and vanishes at reboot


def unit_of(cgroup: str) -> str:
    """The unit whose own cgroup this is, by its path alone; empty if there is none.

    A unit has only slices above it. Unit names inside a service or scope belong to another manager: a user's,
    or one in a container.
    """
    *above, name = cgroup.strip("/").split("/")
    if not all(_SLICE.fullmatch(part) for part in above) or not _UNIT.fullmatch(name):
        return ""
    return name.removeprefix("_")  # systemd escapes names that are also controllers' names


def is_running_kernel(fs: KernelFs) -> bool:
    """True if ``fs`` shows this machine's own files, to which the system bus belongs."""
    try:
        status = os.stat("/proc")
        return fs.identity("/proc") == (status.st_dev, status.st_ino)
    except (OSError, KernelError):
        return False


def asks_systemd(fs: KernelFs, hierarchies: Hierarchies) -> bool:
    """True on a host where units are set through systemd: systemd is PID 1, and all controllers are on cgroup v2."""
    return hierarchies.layout is Layout.V2 and is_systemd(fs)


def unit_files(fs: KernelFs, hierarchies: Hierarchies, bus: Bus) -> KernelFs:
    """``fs``, with units written through systemd on hosts that need it."""
    return UnitFs(fs, hierarchies, bus) if asks_systemd(fs, hierarchies) else fs


def refusal(fs: KernelFs, hierarchies: Hierarchies, cgroup: str) -> str | None:
    """Reason why a cgroup must not be set; None if it may be: a unit that ``fs`` sets through systemd, or a
    delegated group.
    """
    owner = owner_unit(hierarchies, fs, cgroup)
    if owner is None:
        return None
    unified = hierarchies.unified
    if isinstance(fs, UnitFs) and unified is not None and fs.unit(unified.path(cgroup)):
        return None
    return owner.refusal() or None
