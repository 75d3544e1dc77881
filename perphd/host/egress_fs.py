"""A file ``egress.max`` for every control group: what it may send, by network device, as a text that can be written.

Everything above this sees files, which it reads back, records and gives back as any other. They are in a tree of their
own, ``/perphd.egress``, which mirrors the cgroup v2 hierarchy. Writing ``eth0 1000000`` there gives the group a class
of HTB on eth0 and sends its packets there (``perphd.host.tc``, ``perphd.host.egress_bpf``); ``eth0 max`` takes both
away again.

Only devices that the configuration names get a class, and only if their root qdisc is the one that the kernel makes by
itself: it comes back exactly when perphd's is deleted, which is when the last class goes.
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
from perphd.host.fs import Identity, KernelFile, KernelFs, not_the_same, read_text, write_within
from perphd.host.systemd_fs import Lasting
from perphd.host.tc import MAJOR, ROOT_MINOR, HtbClass, Qdisc, Tc, TcCommand

if TYPE_CHECKING:
    import rdt

MOUNT: Final = "/perphd.egress"
_BELOW: Final = f"{MOUNT}/"
DEFAULT_QDISC: Final = "/proc/sys/net/core/default_qdisc"
NO_DEVICE: Final = "no network device is named for egress ceilings ([network] devices in the configuration)"
_PROCESSES_LOOKED_AT: Final = 16
_KERNELS_OWN: Final = frozenset({"mq", "noqueue"})
"""Besides the default one: what the kernel gives to devices of several queues, and of none."""


def with_egress(hierarchies: Hierarchies) -> Hierarchies:
    """``hierarchies`` and the tree of ``EgressFs``, where the settings of this kind are looked for."""
    if hierarchies.unified is None:
        return hierarchies
    tree = Hierarchy(2, MOUNT, frozenset({"egress"}))
    return replace(hierarchies, by_controller={**hierarchies.by_controller, "egress": tree})


class EgressFs:
    """``fs`` with the tree of egress ceilings. Only for the running kernel's own files.

    ``devices``: which may be given classes; what is in force on others can still be given back. ``tc``: made when it
    is first needed. ``kernel``: where ``fs`` asks systemd, the files beneath that, whose inodes are those of the
    control groups themselves: a program goes with its group, and not with the unit.
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
        self._lasting = fs if isinstance(fs, Lasting) else None  # isinstance of a Protocol takes 15 us
        self._kernel = fs if kernel is None else kernel
        self._mount = "" if hierarchies.unified is None else hierarchies.unified.mount
        self._programs: Programs = BpfPrograms() if programs is None else programs
        self._opened: Tc | None = None

    @property
    def raw(self) -> rdt.Fs:
        """As ``fs``: resctrl has nothing to do with this."""
        return self._fs.raw  # type: ignore[attr-defined,no-any-return]

    @property
    def _tc(self) -> Tc:
        if self._opened is None:
            self._opened = self._make_tc()
        return self._opened

    def close(self) -> None:
        """Give back what is kept open; closing twice is fine."""
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
        """As ``fs``."""
        return self._fs.open(path)

    def listdir(self, path: str) -> list[str]:
        """As ``fs``."""
        return self._fs.listdir(path)

    def subdirectories(self, path: str) -> list[str]:
        """As ``fs``."""
        return self._fs.subdirectories(path)

    def identity(self, path: str) -> tuple[int, int]:
        """As ``fs``; in the tree, that of the real control group."""
        real = self._real(path)
        return self._kernel.identity(real) if real else self._fs.identity(path)

    def exists(self, path: str) -> bool:
        """As ``fs``; in the tree, whether the control group is there, or whether a ceiling can be set on it."""
        real = self._real(path)
        if not real:
            return self._fs.exists(path)
        if not self._fs.exists(real):
            return False
        return basename(path) != EGRESS or not self.why_absent(path)

    def why_absent(self, path: str) -> str:
        """See ``perphd.host.cgroup.group.Explains``."""
        real = self._real(path)
        if not real or basename(path) != EGRESS:
            return ""
        try:
            if self._pin(path) is not None:
                return ""  # in force: whatever has changed since, it can be given back
            if not self._devices:
                return NO_DEVICE
            return self._programs.refusal() or self._devices_refusal() or self._namespace_refusal(real)
        except KernelError as exc:
            return str(exc)

    def why_not_now(self, path: str) -> str:
        """See ``perphd.host.cgroup.group.Refuses``: a device has gone (it may come back), or has another's qdisc."""
        if not self._real(path) or not self._devices:
            return ""
        try:
            return self._devices_refusal()
        except KernelError as exc:
            return str(exc)

    def read(self, path: str) -> bytes:
        """As ``fs``; in the tree, the ceilings that are in force on the control group of now."""
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
        """As ``fs``; in the tree, one line ``DEVICE BYTES_PER_SECOND`` or ``DEVICE max``."""
        self.write_within(path, data, None)

    def write_within(self, path: str, data: bytes, identity: Identity | None) -> None:
        """See ``WritesWithin``; None: whichever group has the path."""
        real = self._real(path)
        if not real:
            write_within(self._fs, path, data, identity)
            return
        text = data.decode().strip()
        device, _, value = text.partition(" ")
        if not value.isdecimal() and value != "max":
            raise Invalid(path, "write", errno.EINVAL, text)
        here = self._kernel.identity(real)  # Gone: so is the group
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
            # The group is there; a device, or its qdisc, went this moment: the next look says so.
            raise Busy(path, "write", exc.errno, text, detail=str(exc)) from exc

    # -- ceilings ------------------------------------------------------------------------------------------------

    def _limit(self, path: str, real: str, inode: int, device: str, ceil_bytes: int) -> None:
        qdiscs = self._tc.qdiscs()
        if device not in self._devices or (reason := self._device_refusal(device, qdiscs)):
            detail = reason if device in self._devices else f"{device}: {NO_DEVICE}"
            raise Unsupported(path, "write", errno.EOPNOTSUPP, f"{device} {ceil_bytes}", detail)
        pin = self._pin(path)
        if pin is None or self._programs.cgroup_id(pin) != inode:
            # Before the class: a class of which there is no pin is nobody's, and is swept away.
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
        """Take this pin's classes off these devices, and the program off the group if none is left on any."""
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
        """Take away the classes that are nobody's, and the qdisc with the last of them."""
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
        except Gone:  # the device was taken away meanwhile, with its classes
            return ()

    # -- whether it can be had -----------------------------------------------------------------------------------

    def _devices_refusal(self) -> str:
        """Why one of the named devices gets no classes; empty if all do."""
        qdiscs = self._tc.qdiscs()
        return "; ".join(reason for name in self._devices if (reason := self._device_refusal(name, qdiscs)))

    def _device_refusal(self, device: str, qdiscs: tuple[Qdisc, ...]) -> str:
        """Why this device gets no classes; empty if it does."""
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
                f"{device} has a qdisc {chosen.kind} that somebody has chosen (handle {chosen.major:x}:): perphd only "
                "takes the place of the kernel's own"
            )
        root = next((qdisc.kind for qdisc in here if qdisc.root), "")
        default = ""
        with suppress(KernelError):
            default = read_text(self._fs, DEFAULT_QDISC)
        if root not in _KERNELS_OWN and root != default:
            return (
                f"{device} has the qdisc {root}, and the kernel would now put back {default or 'an unknown one'} "
                "(net.core.default_qdisc has changed since)"
            )
        return ""

    def _namespace_refusal(self, real: str) -> str:
        """Why these processes' packets do not reach the devices of this network namespace; empty if they do."""
        with suppress(KernelError):
            here = self._fs.identity("/proc/thread-self/ns/net")
            for pid in self._pids(real):
                with suppress(KernelError):
                    if self._fs.identity(f"/proc/{pid}/ns/net") != here:
                        return (
                            f"process {pid} has a network namespace of its own (a container's, PrivateNetwork=): what "
                            "it sends loses its class on the way to the host's devices"
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

    # -- giving back ---------------------------------------------------------------------------------------------

    def outlives(self, path: str) -> bool:
        """See ``Lasting``: what is left of a ceiling when its cgroup has gone limits nobody; it is tidied up."""
        return self._lasting is not None and self._lasting.outlives(path)

    def give_back_absent(self, path: str, text: str) -> bool:
        """See ``Lasting``."""
        return self._lasting is not None and self._lasting.give_back_absent(path, text)

    def given_back(self, path: str) -> str:
        """See ``Lasting``: the class of a group that is given back, or gone, and what only served it."""
        if not self._real(path):
            return "" if self._lasting is None else self._lasting.given_back(path)
        try:
            try:
                self._release(self._pin(path), *self._own_devices())
            except Gone:  # a device went this moment: what is left is on the others
                self._release(self._pin(path), *self._own_devices())
        except KernelError as exc:
            return f"its traffic class, or what only served it, could not be taken away: {exc}"
        return ""

    def sweep(self) -> None:
        """Take away everything of perphd's on all devices: for when nothing is on record any more.

        Raises:
            KernelError: something could not be taken away.
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
