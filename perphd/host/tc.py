"""Traffic classes of network devices: what perphd asks of the kernel's tc, and asking it with the program tc(8).

One hierarchical token bucket (HTB) a device, with a handle of perphd's own. What no class is named for goes to HTB's
direct queue: it is sent first, unshaped, at the speed of the device. So protected applications pass through no class;
those who give way each have one, and lend to one another below one parent that bounds them all:

    7e50:          htb, default 0
      7e50:1       all who give way: rate = ceil = the largest ceiling of them
        7e50:10    one workload: its ceiling; a small guaranteed rate
        7e50:20    ...

``perphd.host.tc_netlink`` asks the same by netlink; giving back must do without that.
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
"""The handle of perphd's qdiscs: by it, and by their kind, they are known."""
ROOT_MINOR: Final = 1
"""The class that all others lie in."""
QUANTUM_BYTES: Final = 15_140
"""So much one class sends before the next one may: ten full frames."""
_UNITS: Final = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_CLASS = re.compile(
    r"class htb ([0-9a-f]{1,4}):([0-9a-f]{1,4}) (?:root|parent [0-9a-f]{1,4}:([0-9a-f]{0,4}))\b"
    r".*? ceil ([0-9]{1,20})([KMGT]?)bit",
    re.ASCII,
)
_SAID: Final[tuple[tuple[str, type[KernelError], int], ...]] = (
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
    """One queueing discipline. ``major``: of its handle, 0 of those that the kernel made by itself."""

    device: str
    kind: str
    major: int
    root: bool


@dataclass(frozen=True, slots=True)
class HtbClass:
    """One class: its ceiling in bytes per second."""

    major: int
    minor: int
    ceil_bytes: int


class Tc(Protocol):
    """What perphd asks of traffic control. All raise KernelError classes; Gone: no such device."""

    def qdiscs(self) -> tuple[Qdisc, ...]:
        """All of this network namespace."""

    def classes(self, device: str) -> tuple[HtbClass, ...]:
        """The HTB classes of a device; none if it has no HTB."""

    def add_root(self, device: str) -> None:
        """Put perphd's HTB in the place of the qdisc that the kernel made. Busy: somebody's own is there."""

    def delete_root(self, device: str) -> None:
        """Take perphd's HTB away, with all its classes: the kernel makes its default again."""

    def set_class(self, device: str, minor: int, ceil_bytes: int, *, exists: bool) -> None:
        """Make or change a class; the parent of all is ``ROOT_MINOR``."""

    def delete_class(self, device: str, minor: int) -> None:
        """Take a class away; what waits in it is dropped and sent again by its senders."""

    def close(self) -> None:
        """Give back what is kept open; closing twice is fine."""


def class_rates(minor: int, ceil_bytes: int) -> tuple[int, int, int]:
    """(guaranteed rate, priority, burst) of a class: bytes per second, 0 being first, bytes.

    The parent is guaranteed all of its ceiling; a leaf a 64th, so that many get by without promising more than there
    is, and borrows the rest. A burst of 2 ms, 64 KiB at least: one segment as large as network cards take them.
    """
    burst = max(1 << 16, ceil_bytes // 500)
    if minor == ROOT_MINOR:
        return ceil_bytes, 0, burst
    return max(1000, ceil_bytes // 64), 7, burst


class TcCommand:
    """By the program tc(8) of iproute2: a process a call, but it needs no Python package.

    ``run``: as ``subprocess.run``, for tests.
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
            raise Broken("tc qdisc", "list", errno.EBADMSG, detail=f"tc said {text[:80]!r}") from exc

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
        """Nothing is kept."""


def tc_error(where: str, doing: str, text: str) -> KernelError:
    """What tc or the kernel said, in the class that tells what to do about it."""
    kind, number = next(((kind, number) for word, kind, number in _SAID if word in text), (Broken, errno.EIO))
    return kind(where, doing, number, detail=" ".join(text.split()))
