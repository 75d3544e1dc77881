"""Traffic control and BPF programs in memory, as ``EgressFs`` sees them."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field

from perphd.domain.errors import Busy, Gone, Invalid, KernelError
from perphd.host.egress_bpf import Pin
from perphd.host.fs import not_the_same
from perphd.host.tc import MAJOR, HtbClass, Qdisc


@dataclass
class FakeTc:
    """``roots``: device -> (kind, major). ``fail``: the next call of this name raises it; ``calls``: all changes."""

    roots: dict[str, tuple[str, int]] = field(
        default_factory=lambda: {"lo": ("noqueue", 0), "eth0": ("fq_codel", 0)}
    )
    ceilings: dict[str, dict[int, int]] = field(default_factory=dict)
    default: str = "fq_codel"
    fail: dict[str, KernelError] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    closed: int = 0

    def _note(self, name: str, device: str) -> None:
        if device and device not in self.roots:
            raise Gone(device, name, errno.ENODEV)
        if name in self.fail:
            raise self.fail.pop(name)
        self.calls.append(name)

    def qdiscs(self) -> tuple[Qdisc, ...]:
        return tuple(Qdisc(device, kind, major, True) for device, (kind, major) in self.roots.items())

    def classes(self, device: str) -> tuple[HtbClass, ...]:
        if device not in self.roots:
            raise Gone(device, "list", errno.ENODEV)
        found = self.ceilings.get(device, {})
        return tuple(HtbClass(MAJOR, minor, ceil) for minor, ceil in found.items())

    def add_root(self, device: str) -> None:
        self._note("add_root", device)
        if self.roots[device][1]:  # EEXIST of the kernel's, which NetlinkTc and TcCommand tell as Busy
            raise Busy(device, "add", errno.EBUSY)
        self.roots[device] = ("htb", MAJOR)
        self.ceilings[device] = {}

    def delete_root(self, device: str) -> None:
        self._note("delete_root", device)
        if self.roots[device] != ("htb", MAJOR):
            raise Invalid(device, "delete_root", errno.EINVAL, detail="Invalid handle")
        self.roots[device] = (self.default, 0)
        del self.ceilings[device]

    def set_class(self, device: str, minor: int, ceil_bytes: int, *, exists: bool) -> None:
        self._note("set_class", device)
        have = self._htb(device)
        if exists != (minor in have):
            raise (
                Gone(device, "set_class", errno.ENOENT) if exists else Busy(device, "set_class", errno.EBUSY)
            )
        assert minor == 1 or 1 in have, "a leaf lies in the parent"
        have[minor] = ceil_bytes

    def delete_class(self, device: str, minor: int) -> None:
        self._note("delete_class", device)
        if self._htb(device).pop(minor, None) is None:
            raise Gone(device, "delete_class", errno.ENOENT)

    def _htb(self, device: str) -> dict[int, int]:
        if device not in self.ceilings:
            raise Gone(device, "class", errno.ENOENT, detail="Failed to find specified qdisc")
        return self.ceilings[device]

    def close(self) -> None:
        self.closed += 1


@dataclass
class FakePrograms:
    """``attached``: pin -> inode of the cgroup, 0 if that has gone; ``inodes``: of directories."""

    attached: dict[Pin, int] = field(default_factory=dict)
    inodes: dict[str, int] = field(default_factory=dict)
    why_not: str = ""
    used: bool = False

    def refusal(self) -> str:
        return self.why_not

    def were_used(self) -> bool:
        return self.used

    def pins(self) -> tuple[Pin, ...]:
        return tuple(self.attached)

    def cgroup_id(self, pin: Pin) -> int:
        return self.attached.get(pin, 0)

    def attach(self, key: str, directory: str, inode: int, major: int) -> Pin:
        assert major == MAJOR
        if self.inodes[directory] != inode:
            raise not_the_same(directory, key)
        self.used = True
        minors = {pin.minor for pin in self.attached}
        free = next(n for n in range(0x10, 0x10000, 0x10) if n not in minors)
        pin = next((pin for pin in self.attached if pin.key == key), Pin(key, free))
        self.attached[pin] = self.inodes[directory]
        return pin

    def detach(self, pin: Pin) -> None:
        self.attached.pop(pin, None)
