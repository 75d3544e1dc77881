"""Traffic classes of network devices: the operations that perphd needs, and an implementation with tc(8).

Each device has one hierarchical token bucket (HTB), with perphd's own handle. Packets without a class go
to HTB's direct queue: they are sent first, unshaped, at the speed of the device. Protected applications
therefore have no class. Each limited workload has one, and these classes borrow from one another below a
parent that bounds them all:

    7e50:          htb, default 0
      7e50:1       all limited workloads: rate = ceil = their largest limit
        7e50:10    one workload: its limit; a small guaranteed rate
        7e50:20    ...

``perphd.host.tc_netlink`` does the same with pyroute2; restore must work without that package.
"""

from __future__ import annotations

import errno
import json
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from perphd.domain.errors import Broken, Busy, Denied, Gone, Invalid, KernelError, Unsupported

MAJOR: Final = 0x7E50
"""Handle of perphd's qdiscs; handle and kind identify them."""
ROOT_MINOR: Final = 1
"""The class that contains all others."""
QUANTUM_BYTES: Final = 15_140
"""Bytes that one class sends before the next class may send: ten full frames."""
_UNITS: Final = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_CLASS = re.compile(
    r"class htb ([0-9a-f]{1,4}):([0-9a-f]{1,4}) (?:root|parent [0-9a-f]{1,4}:([0-9a-f]{0,4}))\b"
    r".*? ceil ([0-9]{1,20})([KMGT]?)bit",
    re.ASCII,
)
_ERROR_TEXTS: Final[tuple[tuple[str, type[KernelError], int], ...]] = (
    ("Cannot find device", Gone, errno.ENODEV),
    ("No such file", Gone, errno.ENOENT),
    ("not found", Gone, errno.ENOENT),
    ("Operation not permitted", Denied, errno.EPERM),
    ("File exists", Busy, errno.EBUSY),
    ("Exclusivity flag", Busy, errno.EBUSY),
    ("busy", Busy, errno.EBUSY),
    ("qdisc kind is unknown", Unsupported, errno.EOPNOTSUPP),
    ("Invalid", Invalid, errno.EINVAL),
)


@dataclass(frozen=True, slots=True)
class Qdisc:
    """One queueing discipline. ``major``: major number of its handle; 0 if the kernel created it by default."""

    device: str
    kind: str
    major: int
    root: bool


@dataclass(frozen=True, slots=True)
class HtbClass:
    """One class with its limit in bytes per second."""

    major: int
    minor: int
    ceil_bytes: int


class Tc(Protocol):
    """The operations that perphd needs. All raise KernelError classes; Gone: no such device."""

    def qdiscs(self) -> tuple[Qdisc, ...]:
        """All qdiscs of this network namespace."""

    def classes(self, device: str) -> tuple[HtbClass, ...]:
        """The HTB classes of a device; none if it has no HTB."""

    def add_root(self, device: str) -> None:
        """Replace the kernel's default qdisc with perphd's HTB. Raises Busy if an administrator's qdisc is there."""

    def delete_root(self, device: str) -> None:
        """Remove perphd's HTB with all its classes; the kernel restores its default."""

    def set_class(self, device: str, minor: int, ceil_bytes: int, *, exists: bool) -> None:
        """Create or change a class; the parent of all is ``ROOT_MINOR``."""

    def delete_class(self, device: str, minor: int) -> None:
        """Remove a class; its queued packets are dropped and retransmitted by their senders."""

    def close(self) -> None:
        """Release open resources; closing twice is allowed."""


def class_rates(minor: int, ceil_bytes: int) -> tuple[int, int, int]:
    """(guaranteed rate, priority, burst) of a class: bytes per second, priority (0 first), bytes.

    The parent is guaranteed its whole limit. A leaf is guaranteed 1/64, so that many leaves fit, and borrows
    the rest. The burst is 2 ms, at least 64 KiB: the largest segment that network cards accept.
    """
    burst = max(1 << 16, ceil_bytes // 500)
    if minor == ROOT_MINOR:
        return ceil_bytes, 0, burst
    return max(1000, ceil_bytes // 64), 7, burst


class TcCommand:
    """Operations through the program tc(8) of iproute2: one process per call, no Python package.

    ``run``: replaces ``subprocess.run`` in tests.
    """

    def __init__(self, run: Callable[..., Any] = subprocess.run) -> None:
        self._run = run

    def qdiscs(self) -> tuple[Qdisc, ...]:
        """See ``Tc``."""
        text = self._call("", "list", ["-j", "qdisc", "show"])
        try:
            entries = json.loads(text or "[]")
            return tuple(
                Qdisc(
                    str(entry["dev"]),
                    str(entry["kind"]),
                    int(str(entry["handle"]).partition(":")[0] or "0", 16),
                    bool(entry.get("root")),
                )
                for entry in entries
                if "dev" in entry
            )
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise Broken("tc qdisc", "list", errno.EBADMSG, detail=f"tc printed {text[:80]!r}") from exc

    def classes(self, device: str) -> tuple[HtbClass, ...]:
        """See ``Tc``."""
        text = self._call(device, "list", ["class", "show", "dev", device])
        return tuple(
            HtbClass(int(found[1], 16), int(found[2], 16), int(found[4]) * _UNITS[found[5]] // 8)
            for line in text.splitlines()
            if (found := _CLASS.match(line))
        )

    def add_root(self, device: str) -> None:
        """See ``Tc``."""
        words = ["qdisc", "add", "dev", device, "root", "handle", f"{MAJOR:x}:", "htb", "default", "0"]
        self._call(device, "add htb", words)

    def delete_root(self, device: str) -> None:
        """See ``Tc``."""
        self._call(
            device, "delete htb", ["qdisc", "del", "dev", device, "root", "handle", f"{MAJOR:x}:", "htb"]
        )

    def set_class(self, device: str, minor: int, ceil_bytes: int, *, exists: bool) -> None:
        """See ``Tc``."""
        rate, priority, burst = class_rates(minor, ceil_bytes)
        parent = f"{MAJOR:x}:" if minor == ROOT_MINOR else f"{MAJOR:x}:{ROOT_MINOR:x}"
        words = ["class", "change" if exists else "add", "dev", device, "parent", parent]
        words += [
            "classid",
            f"{MAJOR:x}:{minor:x}",
            "htb",
            "rate",
            f"{rate * 8}bit",
            "ceil",
            f"{ceil_bytes * 8}bit",
        ]
        words += [
            "burst",
            str(burst),
            "cburst",
            str(burst),
            "prio",
            str(priority),
            "quantum",
            str(QUANTUM_BYTES),
        ]
        self._call(device, "set a class", words)

    def delete_class(self, device: str, minor: int) -> None:
        """See ``Tc``."""
        self._call(
            device, "delete a class", ["class", "del", "dev", device, "classid", f"{MAJOR:x}:{minor:x}"]
        )

    def _call(self, device: str, doing: str, words: Sequence[str]) -> str:
        where = f"tc {device}".strip()
        try:
            done = self._run(["tc", *words], capture_output=True, text=True, timeout=5, check=False)
        except subprocess.TimeoutExpired as exc:
            raise Busy(where, doing, errno.ETIMEDOUT, detail="tc did not end within 5 s") from exc
        except OSError as exc:
            raise Unsupported(where, doing, errno.ENOENT, advice="install tc (package iproute2)") from exc
        if done.returncode:
            raise tc_error(where, doing, done.stderr.strip() or f"tc exit status {done.returncode}")
        return str(done.stdout)

    def close(self) -> None:
        """Do nothing, because nothing is kept open."""


def tc_error(where: str, doing: str, text: str) -> KernelError:
    """Convert an error text of tc or the kernel to the matching error class."""
    kind, number = next(
        ((kind, number) for word, kind, number in _ERROR_TEXTS if word in text), (Broken, errno.EIO)
    )
    return kind(where, doing, number, detail=" ".join(text.split()))
