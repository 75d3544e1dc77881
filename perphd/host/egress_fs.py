"""A virtual file ``egress.max`` for every control group: its send limit by network device.

Higher layers read, write, record and restore it like any other file. The files are in a separate tree,
``/perphd.egress``, which mirrors the cgroup v2 hierarchy. Writing ``eth0 1000000`` there creates an HTB class
on eth0 and assigns the group's packets to it (``perphd.host.tc``, ``perphd.host.egress_bpf``); ``eth0 max``
removes both.

Only devices named in the configuration get a class, and only if their root qdisc is the kernel's own default.
The kernel restores that qdisc when perphd deletes its own together with the last class.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from posixpath import basename, dirname
from typing import TYPE_CHECKING, Final

from perphd.domain.errors import Busy, Gone, Invalid, KernelError, Unsupported
from perphd.host.cgroup.group import descendants
from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy
from perphd.host.cgroup.lines import EGRESS, text_of
from perphd.host.egress_bpf import BpfPrograms, Pin, Programs, key_of
from perphd.host.fs import (
    HeldFile,
    Identity,
    KernelFile,
    KernelFs,
    hold,
    not_the_same,
    read_text,
    write_within,
)
from perphd.host.tc import MAJOR, ROOT_MINOR, HtbClass, Qdisc, Tc, TcCommand

if TYPE_CHECKING:
    import rdt

MOUNT: Final = "/perphd.egress"
_BELOW: Final = f"{MOUNT}/"
DEFAULT_QDISC: Final = "/proc/sys/net/core/default_qdisc"
NO_DEVICE: Final = "no network device is named for egress ceilings ([network] devices in the configuration)"
_PROCESSES_LOOKED_AT: Final = 16
_KERNELS_OWN: Final = frozenset({"mq", "noqueue"})
"""Root qdiscs that the kernel assigns instead of the default: to devices with many queues or without a queue."""


def with_egress(hierarchies: Hierarchies) -> Hierarchies:
    """``hierarchies`` together with the tree of ``EgressFs``, where egress settings are found."""
    if hierarchies.unified is None:
        return hierarchies
    tree = Hierarchy(2, MOUNT, frozenset({"egress"}))
    return replace(hierarchies, by_controller={**hierarchies.by_controller, "egress": tree})


class EgressFs:
    """``fs`` with the tree of egress limits. Only for the running kernel's own files.

    ``devices``: devices that may get classes; limits in force on others can still be removed. ``tc``: called
    when traffic control is first needed. ``kernel``: if ``fs`` goes through systemd, the file system below
    it, whose inodes are those of the cgroups, because a program belongs to a cgroup and not to a unit.
    """

    def __init__(
        self,
        fs: KernelFs,
        hierarchies: Hierarchies,
        devices: tuple[str, ...] = (),
        *,
        tc: Callable[[], Tc] = TcCommand,
        programs: Programs | None = None,
        kernel: KernelFs | None = None,
    ) -> None:
        self._fs, self._devices, self._make_tc = fs, devices, tc
        self._kernel = fs if kernel is None else kernel
        self._mount = "" if hierarchies.unified is None else hierarchies.unified.mount
        self._programs: Programs = BpfPrograms() if programs is None else programs
        self._opened: Tc | None = None

    @property
    def below(self) -> KernelFs:
        """The file system of all other files."""
        return self._fs

    @property
    def raw(self) -> rdt.Fs:
        """The file system through which resctrl is accessed. It is that of ``fs``, without the files added here."""
        return self._fs.raw  # type: ignore[attr-defined,no-any-return]

    @property
    def _tc(self) -> Tc:
        if self._opened is None:
            self._opened = self._make_tc()
        return self._opened

    def close(self) -> None:
        """Release the connection to traffic control; closing twice is allowed."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    # -- names ---------------------------------------------------------------------------------------------------

    def _real(self, path: str) -> str:
        """The real directory that a path of the tree mirrors; empty for other paths."""
        if not path.startswith(_BELOW) or not self._mount:
            return ""
        return self._mount + (dirname(path) if basename(path) == EGRESS else path)[len(MOUNT) :]

    def _key(self, path: str) -> str:
        return key_of(dirname(path)[len(MOUNT) :])

    def _pin(self, path: str) -> Pin | None:
        key = self._key(path)
        return next((pin for pin in self._programs.pins() if pin.key == key), None)

    # -- KernelFs ------------------------------------------------------------------------------------------------

    def open(self, path: str) -> KernelFile:
        """Open a file of ``fs`` for repeated reading; Gone for files of the tree."""
        return self._fs.open(path)

    def listdir(self, path: str) -> list[str]:
        """Names in a directory of ``fs``, sorted; Gone for directories of the tree."""
        return self._fs.listdir(path)

    def subdirectories(self, path: str) -> list[str]:
        """Names of the directories in a directory of ``fs``, sorted; Gone for directories of the tree."""
        return self._fs.subdirectories(path)

    def identity(self, path: str) -> tuple[int, int]:
        """(device, inode) in ``fs``; in the tree, those of the real control group."""
        real = self._real(path)
        return self._kernel.identity(real) if real else self._fs.identity(path)

    def exists(self, path: str) -> bool:
        """True if it exists in ``fs``. In the tree: if the real group does; for its file, if a limit can be set."""
        real = self._real(path)
        if not real:
            return self._fs.exists(path)
        if not self._fs.exists(real):
            return False
        return basename(path) != EGRESS or not self.why_absent(path)

    def why_absent(self, path: str) -> str:
        """Reason why this group can have no limit; empty if it can have one, and for files outside of the tree."""
        real = self._real(path)
        if not real or basename(path) != EGRESS:
            return ""
        try:
            if self._pin(path) is not None:
                return ""  # a limit in force can always be removed
            if not self._devices:
                return NO_DEVICE
            return self._programs.refusal() or self._devices_refusal() or self._namespace_refusal(real)
        except KernelError as exc:
            return str(exc)

    def why_not_now(self, path: str) -> str:
        """Reason why this limit cannot be set at present; empty if it can.

        Possible reasons: a device is gone (it may come back), or it has another program's qdisc.
        """
        if not self._devices:
            return ""
        try:
            return self._devices_refusal()
        except KernelError as exc:
            return str(exc)

    def read(self, path: str) -> bytes:
        """Read a whole file of ``fs`` or, in the tree, the limits in force on the present control group."""
        if not path.startswith(_BELOW):
            return self._fs.read(path)
        real = self._real(path)
        if not real:
            return self._fs.read(path)
        if basename(path) != EGRESS:
            raise Gone(path, "read", errno.ENOENT)
        inode = self._kernel.identity(real)[1]
        pin = self._pin(path)
        found: dict[str, str] = {}
        if pin is not None and self._programs.cgroup_id(pin) == inode:
            for device in self._own_devices():
                for item in self._classes(device):
                    if item.minor == pin.minor:
                        found[device] = str(item.ceil_bytes)
        return f"{text_of(found)}\n".encode()

    def write(self, path: str, data: bytes) -> None:
        """Write as ``fs`` does.

        Files of the tree take one line: ``DEVICE BYTES_PER_SECOND``, or ``DEVICE max`` to lift the limit.
        """
        self.write_within(path, data, None)

    def write_within(self, path: str, data: bytes, identity: Identity | None) -> None:
        """Write in exactly this directory (``RealFs.write_within``). ``identity`` None: any group at this path."""
        real = self._real(path)
        if not real:
            write_within(self._fs, path, data, identity)
            return
        text = data.decode().strip()
        device, _, value = text.partition(" ")
        if not value.isdecimal() and value != "max":
            raise Invalid(path, "write", errno.EINVAL, text)
        here = self._kernel.identity(real)  # raises Gone if the group is gone
        if identity is not None and here != identity:
            raise not_the_same(path, text)
        try:
            if value == "max":
                self._release(self._pin(path), device)
            else:
                self._limit(path, real, here[1], device, int(value))
        except Gone as exc:
            if exc.errno == errno.ESTALE:
                raise
            # The group exists, but a device or its qdisc has just vanished; the next attempt reports that.
            raise Busy(path, "write", exc.errno, text, detail=str(exc)) from exc

    def hold(self, path: str, identity: Identity) -> HeldFile | None:
        """Open the file as ``perphd.host.fs.hold`` does; None for files of the tree, which cannot be held open."""
        return None if self._real(path) else hold(self._fs, path, identity)

    # -- ceilings ------------------------------------------------------------------------------------------------

    def _limit(self, path: str, real: str, inode: int, device: str, ceil_bytes: int) -> None:
        qdiscs = self._tc.qdiscs()
        if device not in self._devices or (reason := self._device_refusal(device, qdiscs)):
            detail = reason if device in self._devices else f"{device}: {NO_DEVICE}"
            raise Unsupported(path, "write", errno.EOPNOTSUPP, f"{device} {ceil_bytes}", detail)
        pin = self._pin(path)
        if pin is None or self._programs.cgroup_id(pin) != inode:
            # Pin before creating the class: a class without a pin counts as left over and is removed.
            pin = self._programs.attach(self._key(path), real, inode, MAJOR)
        if not any(_is_own(qdisc) and qdisc.device == device for qdisc in qdiscs):
            self._add_root(device)
        have = {item.minor: item.ceil_bytes for item in self._classes(device)}
        leaves = {minor: ceil for minor, ceil in have.items() if minor != ROOT_MINOR}
        most = max(ceil_bytes, *leaves.values(), have.get(ROOT_MINOR, 0))
        if have.get(ROOT_MINOR, 0) < most:
            self._tc.set_class(device, ROOT_MINOR, most, exists=ROOT_MINOR in have)
        if leaves.get(pin.minor) != ceil_bytes:
            self._tc.set_class(device, pin.minor, ceil_bytes, exists=pin.minor in leaves)
        leaves[pin.minor] = ceil_bytes
        if max(leaves.values()) < most:
            self._tc.set_class(device, ROOT_MINOR, max(leaves.values()), exists=True)

    def _add_root(self, device: str) -> None:
        try:
            self._tc.add_root(device)
        except Gone as exc:
            if exc.errno != errno.ENOENT:
                raise
            raise Unsupported(f"tc {device}", "add htb", exc.errno, detail=str(exc)) from exc

    def _release(self, pin: Pin | None, *devices: str) -> None:
        """Remove this pin's classes from these devices.

        The program is detached if no class is left on any device.
        """
        left = False
        for device in self._own_devices():
            minors = {item.minor for item in self._classes(device)}
            if pin is not None and pin.minor in minors:
                if device not in devices:
                    left = True
                    continue
                self._tc.delete_class(device, pin.minor)
            self._tidy(device)
        if pin is not None and not left:
            self._programs.detach(pin)

    def _tidy(self, device: str) -> None:
        """Remove classes without a pin, and the qdisc after the last class."""
        pinned = {pin.minor for pin in self._programs.pins()}
        leaves: dict[int, int] = {}
        parent = 0
        for item in self._classes(device):
            if item.minor == ROOT_MINOR:
                parent = item.ceil_bytes
            elif item.minor in pinned:
                leaves[item.minor] = item.ceil_bytes
            else:
                self._tc.delete_class(device, item.minor)
        if not leaves:
            self._tc.delete_root(device)
        elif parent != max(leaves.values()):
            self._tc.set_class(device, ROOT_MINOR, max(leaves.values()), exists=True)

    def _own_devices(self) -> list[str]:
        return [qdisc.device for qdisc in self._tc.qdiscs() if _is_own(qdisc)]

    def _classes(self, device: str) -> tuple[HtbClass, ...]:
        try:
            return tuple(item for item in self._tc.classes(device) if item.major == MAJOR)
        except Gone:  # the device vanished together with its classes
            return ()

    # -- availability --------------------------------------------------------------------------------------------

    def _devices_refusal(self) -> str:
        """Reason why one of the configured devices cannot get classes; empty if all can."""
        qdiscs = self._tc.qdiscs()
        return "; ".join(reason for name in self._devices if (reason := self._device_refusal(name, qdiscs)))

    def _device_refusal(self, device: str, qdiscs: tuple[Qdisc, ...]) -> str:
        """Reason why this device cannot get classes; empty if it can."""
        here = [qdisc for qdisc in qdiscs if qdisc.device == device]
        if not here:
            return (
                f"there is no network device {device}, or it has no queueing discipline (ip link, tc qdisc)"
            )
        if any(_is_own(qdisc) for qdisc in here):
            return ""
        chosen = next(
            (qdisc for qdisc in here if qdisc.major and qdisc.kind not in ("ingress", "clsact")), None
        )
        if chosen is not None:
            return (
                f"{device} has a qdisc {chosen.kind} that an administrator set (handle {chosen.major:x}:): perphd "
                "only replaces the kernel's default"
            )
        root = next((qdisc.kind for qdisc in here if qdisc.root), "")
        default = ""
        with suppress(KernelError):
            default = read_text(self._fs, DEFAULT_QDISC)
        if root not in _KERNELS_OWN and root != default:
            return (
                f"{device} has the qdisc {root}, but the kernel would now restore {default or 'an unknown one'} "
                "(net.core.default_qdisc has changed since)"
            )
        return ""

    def _namespace_refusal(self, real: str) -> str:
        """Reason why these processes' packets do not reach this network namespace's devices; empty if they do."""
        with suppress(KernelError):
            here = self._fs.identity("/proc/thread-self/ns/net")
            for pid in self._pids(real):
                with suppress(KernelError):
                    if self._fs.identity(f"/proc/{pid}/ns/net") != here:
                        return (
                            f"process {pid} has a network namespace of its own (a container's, PrivateNetwork=): its "
                            "packets lose their class on the way to the host's devices"
                        )
        return ""

    def _pids(self, real: str) -> Iterator[str]:
        count = 0
        for directory in (real, *descendants(self._fs, real)):
            with suppress(KernelError):
                for pid in read_text(self._fs, f"{directory}/cgroup.procs").split():
                    yield pid
                    count += 1
                    if count >= _PROCESSES_LOOKED_AT:
                        return

    # -- restoring -----------------------------------------------------------------------------------------------

    def given_back(self, path: str) -> str:
        """Remove the class of a restored or removed group, and everything that served only it.

        Returns the reason why a part remains; empty if nothing remains.
        """
        try:
            try:
                self._release(self._pin(path), *self._own_devices())
            except Gone:  # a device has just vanished: remove the classes on the others
                self._release(self._pin(path), *self._own_devices())
        except KernelError as exc:
            return f"its traffic class, or its qdisc or program, could not be removed: {exc}"
        return ""

    def sweep(self) -> None:
        """Remove perphd's classes, qdiscs and programs from all devices, once no limit is on record.

        Raises:
            KernelError: a part could not be removed.
        """
        if not self._programs.were_used():
            return
        for pin in self._programs.pins():
            self._release(pin, *self._own_devices())
        for device in self._own_devices():
            self._tidy(device)


def _is_own(qdisc: Qdisc) -> bool:
    return qdisc.root and qdisc.kind == "htb" and qdisc.major == MAJOR


def is_egress(path: str) -> bool:
    """True for the files of this tree."""
    return path.startswith(_BELOW)
