"""How every setting is spelled in cgroup files: names, texts, comparison and direction, for v1 and v2.

Pure: no file is opened here. Two facts of the kernel shape it:

- ``cpu.idle`` owns the weight beside it: while it is 1 the weight reads 0 (6.1), 1 (6.12) or, as v1 shares, 3 and
  refuses writes; going back to 0 resets it to the default. So the weight *follows* idle (``FOLLOWERS``).
- What is read back is not what was written: sizes are rounded down to pages, CPU lists are normalised.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from posixpath import basename
from typing import Final, TypeAlias

from perphd.domain.allocation import IDLE, KEEP, NO_LIMIT, Keep, Limit, Weight
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import ParseError
from perphd.domain.units import MAX_BYTES, PAGE_BYTES, page_floor_bytes

Value: TypeAlias = CpuSet | Weight | float | Limit | Keep
"""What a field of ``Settings`` that is written to a cgroup may hold."""

CONTROLLERS: Final[Mapping[str, str]] = {
    "cpus": "cpuset",
    "cpu_weight": "cpu",
    "cpu_max_cores": "cpu",
    "memory_low_bytes": "memory",
    "memory_high_bytes": "memory",
}
"""The settings that live in cgroups, each with the controller that owns it."""

LIST_SETTINGS: Final = frozenset({"cpus", "mems"})
"""Settings that are lists of CPUs or memory nodes, bound by what the parent has."""

RESCTRL_SETTINGS: Final = ("llc_masks", "mba_pct")
"""The settings that live in resctrl groups and not in cgroups."""

FILES: Final[Mapping[tuple[str, int], tuple[str, ...]]] = {
    ("cpus", 1): ("cpuset.cpus",),
    ("cpus", 2): ("cpuset.cpus",),
    ("cpu_weight", 1): ("cpu.shares", "cpu.idle"),
    ("cpu_weight", 2): ("cpu.weight", "cpu.idle"),
    ("cpu_max_cores", 1): ("cpu.cfs_quota_us", "cpu.cfs_period_us"),
    ("cpu_max_cores", 2): ("cpu.max",),
    ("memory_low_bytes", 2): ("memory.low",),
    ("memory_high_bytes", 2): ("memory.high",),
}
"""(setting, cgroup version) -> its files, the leading one first. ``cpu.cfs_period_us`` is read, never written."""

OPTIONAL_FILES: Final = frozenset({"cpu.idle"})
"""Files that older kernels lack (before 5.15) and without which the setting still works."""

NOT_ON_V1: Final[Mapping[str, str]] = {
    "memory_low_bytes": (
        "cgroup v1 has no memory.low: nothing there protects a group's memory from reclaim "
        "(protection needs the memory controller on cgroup v2)"
    ),
    "memory_high_bytes": (
        "cgroup v1 has no memory.high: memory.limit_in_bytes kills instead of slowing down, and "
        "memory.soft_limit_in_bytes acts only when the whole host is short (a memory ceiling needs cgroup v2)"
    ),
}
"""Settings that have no v1 file, with the reason."""

FOLLOWERS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "cpu.idle": {"cpu.weight": ("0", "1", "100"), "cpu.shares": ("3", "1024")},
}
"""Written file -> files that the kernel then sets by itself, with the values that it chooses."""

EMPTY_ALLOWED: Final = frozenset({"cpuset.cpus"})
"""Files for which an empty line means "no own value"; elsewhere it is destructive (memory.max becomes 0)."""

DEFAULT_PERIOD_US: Final = 100_000
MIN_QUOTA_US: Final = 1_000
_PAGE_SIZES = {PAGE_BYTES, mmap.PAGESIZE}
_MEMORY_FILES = ("memory.low", "memory.high")


def shares_of(weight: int) -> int:
    """v1 ``cpu.shares`` for a weight on v2's scale: 100 is 1024, the kernel's least is 2."""
    return max(2, (weight * 1024 + 50) // 100)


def weight_of_shares(shares: int) -> int:
    """The weight on v2's scale that these v1 shares stand for, 1..10000."""
    return min(10000, max(1, (shares * 100 + 512) // 1024))


def weight_text(weight: int, version: int) -> str:
    """Text for ``cpu.weight`` (v2) or ``cpu.shares`` (v1).

    Raises:
        ParseError: outside 1..10000.
    """
    if not 1 <= weight <= 10000:
        raise ParseError("a CPU weight", str(weight), "1 to 10000")
    return str(weight if version == 2 else shares_of(weight))


def faint_weight_text(version: int) -> str:
    """The nearest to SCHED_IDLE that a kernel without ``cpu.idle`` offers: v2's least weight, or v1's 3 shares."""
    return "1" if version == 2 else "3"


def cpus_text(cpus: CpuSet) -> str:
    """Text for ``cpuset.cpus``.

    Raises:
        ParseError: the empty set, which would mean "no limit" (v2) or "nobody may run" (v1).
    """
    if not cpus:
        raise ParseError("a CPU set to confine to", "", "at least one CPU")
    return str(cpus)


def quota_us(cores: float, period_us: int) -> int:
    """Run time per period for this many cores.

    Raises:
        ParseError: not a positive finite number, or below the kernel's least quota for this period.
    """
    allowed = (
        f"at least {MIN_QUOTA_US / period_us:g} cores with the period of {period_us} us that is set here"
    )
    if not math.isfinite(cores) or cores <= 0:
        raise ParseError("a number of cores", f"{cores:g}", allowed)
    quota = round(cores * period_us)
    if quota < MIN_QUOTA_US:
        raise ParseError("a CPU quota that the kernel takes", f"{cores:g}", allowed)
    return quota


def cpu_max_text(cores: float, now: str) -> str:
    """Text for v2 ``cpu.max``; keeps the period that ``now`` shows unless the quota would be too small for it.

    Raises:
        ParseError: see ``quota_us``.
    """
    words = now.split()
    period = int(words[1]) if len(words) == 2 and words[1].isdecimal() else DEFAULT_PERIOD_US
    if 0 < cores * period < MIN_QUOTA_US:
        period = DEFAULT_PERIOD_US
    return f"{quota_us(cores, period)} {period}"


def memory_text(limit: Limit) -> str:
    """Text for ``memory.low`` and ``memory.high``: whole pages, or ``max``.

    Raises:
        ParseError: negative, or more than 2**62.
    """
    if limit is NO_LIMIT:
        return "max"
    if isinstance(limit, bool) or not 0 <= limit <= MAX_BYTES:
        raise ParseError("a memory size", str(limit), f"0 to {MAX_BYTES} bytes, or no limit")
    return str(page_floor_bytes(limit))


def same(path: str, wanted: str, read: str) -> bool:
    """True if ``read`` is how the kernel shows a file to which ``wanted`` was written."""
    if wanted == read:
        return True
    file = basename(path)
    try:
        if file == "cpuset.cpus":
            return CpuSet.parse(wanted) == CpuSet.parse(read)
        if file in _MEMORY_FILES:
            return _same_size(wanted, read)
        if file == "cpu.max":
            return wanted.split() == read.split()
        return int(wanted) == int(read)
    except ValueError:
        return False


def _same_size(wanted: str, read: str) -> bool:
    if "max" in (wanted, read):
        return False
    asked, got = int(wanted), int(read)
    return any(asked - asked % page == got for page in _PAGE_SIZES)


def magnitude(path: str, text: str) -> float:
    """How much this text grants, to tell shrinking from growing; ``inf`` for no limit, 0 for text that is no number."""
    words = text.split()
    try:
        if not words:
            return 0.0
        if words[0] == "max":
            return math.inf
        if basename(path) == "cpu.max" and len(words) == 2:
            return int(words[0]) / int(words[1])
        number = int(words[0])
    except (ValueError, ZeroDivisionError):
        return 0.0
    return math.inf if number < 0 else float(number)


def decode(setting: str, version: int, texts: Mapping[str, str]) -> Value:
    """The value that these readings (file name -> text) stand for; KEEP where they show no own limit or no sense."""
    files = FILES[setting, version]
    lead = texts.get(files[0], "")
    try:
        if setting == "cpus":
            return CpuSet.parse(lead) if lead else KEEP
        if setting == "cpu_weight":
            if texts.get("cpu.idle") == "1":
                return IDLE
            return int(lead) if version == 2 else weight_of_shares(int(lead))
        if setting == "cpu_max_cores":
            if version == 1:
                lead = f"{lead} {texts.get(files[1], DEFAULT_PERIOD_US)}"
            quota, period = lead.split()
            return KEEP if quota == "max" or int(quota) < 0 else int(quota) / int(period)
        return NO_LIMIT if lead == "max" else int(lead)
    except (ValueError, ZeroDivisionError):
        return KEEP
