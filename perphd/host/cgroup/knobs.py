"""Encoding of settings in cgroup files: names, texts, comparison and direction, for v1 and v2.

Pure: no file is opened here. Two facts about the kernel matter:

- ``cpu.idle`` controls the weight beside it. While it is 1, the weight reads 0 (6.1), 1 (6.12) or, as v1
  shares, 3, and refuses writes. Setting it to 0 resets the weight to the default. The weight therefore
  *follows* idle (``FOLLOWERS``).
- Files do not read back as written: sizes are rounded down to pages, CPU lists are normalised, and a v1
  freezer is FREEZING before it is FROZEN. Files with one line per disk: ``perphd.host.cgroup.lines``.
"""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Mapping
from posixpath import basename
from typing import Final, TypeAlias

from perphd.domain.allocation import IDLE, KEEP, NO_LIMIT, IoLimit, Keep, Limit, Weight
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import ParseError
from perphd.domain.units import MAX_BYTES, PAGE_BYTES, page_floor_bytes
from perphd.host.cgroup import lines

Value: TypeAlias = (
    CpuSet
    | Weight
    | float
    | Limit
    | tuple[IoLimit, ...]
    | tuple[tuple[str, int], ...]
    | tuple[tuple[int, int], ...]
    | bool
    | Keep
)
"""Possible values of a field of ``Settings``."""

CONTROLLERS: Final[Mapping[str, str]] = {
    "cpus": "cpuset",
    "mems": "cpuset",
    "cpu_weight": "cpu",
    "cpu_max_cores": "cpu",
    "memory_low_bytes": "memory",
    "memory_min_bytes": "memory",
    "memory_high_bytes": "memory",
    "memory_max_bytes": "memory",
    "io_weight": "io",
    "io_max": "io",
    "io_latency_us": "io",
    "frozen": "freezer",
    "egress_max": "egress",
}
"""Settings in cgroups, each with its controller."""

LIST_SETTINGS: Final = frozenset({"cpus", "mems"})
"""Settings that are lists of CPUs or memory nodes, limited by the parent's list."""

RESCTRL_SETTINGS: Final = ("llc_masks", "mba_pct")
"""Settings in resctrl groups instead of cgroups."""

FILES: Final[Mapping[tuple[str, int], tuple[str, ...]]] = {
    ("cpus", 1): ("cpuset.cpus",),
    ("cpus", 2): ("cpuset.cpus",),
    ("mems", 1): ("cpuset.mems",),
    ("mems", 2): ("cpuset.mems",),
    ("cpu_weight", 1): ("cpu.shares", "cpu.idle"),
    ("cpu_weight", 2): ("cpu.weight", "cpu.idle"),
    ("cpu_max_cores", 1): ("cpu.cfs_quota_us", "cpu.cfs_period_us"),
    ("cpu_max_cores", 2): ("cpu.max",),
    ("memory_low_bytes", 2): ("memory.low",),
    ("memory_min_bytes", 2): ("memory.min",),
    ("memory_high_bytes", 2): ("memory.high",),
    ("memory_max_bytes", 2): ("memory.max",),
    ("io_weight", 1): ("blkio.bfq.weight",),
    ("io_weight", 2): ("io.weight",),
    ("io_max", 1): tuple(lines.THROTTLE),
    ("io_max", 2): ("io.max",),
    ("io_latency_us", 2): ("io.latency",),
    ("frozen", 1): ("freezer.state",),
    ("frozen", 2): ("cgroup.freeze",),
    ("egress_max", 2): (lines.EGRESS,),
}
"""(setting, cgroup version) -> the setting's files, the leading one first. ``cpu.cfs_period_us`` is only read."""

BFQ_WEIGHT: Final = "io.bfq.weight"
"""v2's weight file for disks with the BFQ scheduler, which ignore ``io.weight``."""
BFQ_MOST: Final = 1000
"""BFQ's largest weight."""

PROTECTIONS: Final = frozenset({"memory_low_bytes", "memory_min_bytes"})
"""Settings whose higher values favour the group; all other limits are upper limits."""

OPTIONAL_FILES: Final = frozenset({"cpu.idle"})
"""Files missing from kernels before 5.15, without which the setting still works."""

NOT_ON_V1: Final[Mapping[str, str]] = {
    "memory_low_bytes": (
        "cgroup v1 has no memory.low: nothing there protects a group's memory from reclaim "
        "(protection needs the memory controller on cgroup v2)"
    ),
    "memory_min_bytes": (
        "cgroup v1 has no memory.min: nothing there protects a group's memory from reclaim "
        "(protection needs the memory controller on cgroup v2)"
    ),
    "memory_max_bytes": (
        "memory.limit_in_bytes of cgroup v1 kills, without a memory.high that would slow the group down first "
        "(a memory limit needs cgroup v2)"
    ),
    "io_latency_us": "cgroup v1 has no io.latency (it needs the io controller on cgroup v2)",
    "memory_high_bytes": (
        "cgroup v1 has no memory.high: memory.limit_in_bytes kills instead of slowing down, and "
        "memory.soft_limit_in_bytes acts only when the whole host is short of memory (a memory limit needs cgroup v2)"
    ),
}
"""Settings without a v1 file, with the reason."""

FOLLOWERS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "cpu.idle": {"cpu.weight": ("0", "1", "100"), "cpu.shares": ("3", "1024")},
}
"""Written file -> files that the kernel then sets by itself, with the values that it chooses."""

EMPTY_ALLOWED: Final = frozenset({"cpuset.cpus", "cpuset.mems"})
"""Files in which an empty line means "no value of its own". Elsewhere it is destructive (memory.max becomes 0)."""

MAX_LATENCY_US: Final = 60_000_000
MIN_EGRESS_BYTES: Final = 10_000
MAX_EGRESS_BYTES: Final = 1 << 40
"""Bounds of an egress limit in bytes per second; below the lower one, a single large packet takes seconds."""
_DEVICE = re.compile(r"[0-9]{1,4}:[0-9]{1,7}", re.ASCII)
_NETWORK_DEVICE = re.compile(r"(?!\.{1,2}$)[!-.0-~]{1,15}", re.ASCII)  # no space, no slash: dev_valid_name()
DEFAULT_PERIOD_US: Final = 100_000
MIN_QUOTA_US: Final = 1_000
_PAGE_SIZES = {PAGE_BYTES, mmap.PAGESIZE}
_MEMORY_FILES = ("memory.low", "memory.min", "memory.high", "memory.max")
_FROZEN = ("FROZEN", "FREEZING")


def shares_of(weight: int) -> int:
    """v1 ``cpu.shares`` for a weight on v2's scale: 100 is 1024, the kernel's minimum is 2."""
    return max(2, (weight * 1024 + 50) // 100)


def weight_of_shares(shares: int) -> int:
    """The weight on v2's scale (1..10000) for these v1 shares."""
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
    """The weight closest to SCHED_IDLE without ``cpu.idle``: v2's minimum weight, or 3 shares on v1."""
    return "1" if version == 2 else "3"


def cpus_text(cpus: CpuSet) -> str:
    """Text for ``cpuset.cpus``.

    Raises:
        ParseError: the empty set, which would mean "no limit" (v2) or "no process may run" (v1).
    """
    if not cpus:
        raise ParseError("a CPU set", "", "at least one CPU")
    return str(cpus)


def decode_limit(text: str) -> Limit:
    """Parse a memory limit.

    Raises:
        ValueError: neither a number nor ``max``.
    """
    return NO_LIMIT if text == "max" else int(text)


def io_weight(weight: int, file: str) -> int:
    """A weight of 1..10000 for this file; weights for BFQ are capped at 1000.

    Raises:
        ParseError: outside 1..10000.
    """
    number = int(weight_text(weight, 2))
    return number if file == "io.weight" else min(number, BFQ_MOST)


def check_limits(limits: tuple[IoLimit, ...]) -> tuple[IoLimit, ...]:
    """Validate disk limits and return them.

    Raises:
        ParseError: an invalid device number, or a limit below 1, which the kernel ignores (v1) or refuses
            (v2).
    """
    for limit in limits:
        _check_device(limit.device)
        numbers = (limit.read_bytes, limit.write_bytes, limit.read_ops, limit.write_ops)
        for number in numbers:
            if number is not None and not 1 <= number <= MAX_BYTES:
                raise ParseError("a disk limit per second", str(number), f"1 to {MAX_BYTES}")
    return limits


def check_latencies(targets: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Validate latency targets and return them.

    Raises:
        ParseError: an invalid device number or time.
    """
    for device, target_us in targets:
        _check_device(device)
        if not 1 <= target_us <= MAX_LATENCY_US:
            raise ParseError("a disk's latency target", str(target_us), f"1 to {MAX_LATENCY_US} us")
    return targets


def check_network_device(name: str) -> str:
    """Validate the name of a network device and return it.

    Raises:
        ParseError: no network device can have this name.
    """
    if not _NETWORK_DEVICE.fullmatch(name):
        allowed = "1 to 15 printable characters without space or slash, e.g. eth0 (ip link shows them)"
        raise ParseError("the name of a network device", name, allowed)
    return name


def check_egress(ceilings: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Validate egress limits and return them.

    Raises:
        ParseError: an invalid device name, or a limit out of bounds.
    """
    for device, rate_bytes in ceilings:
        check_network_device(device)
        if not MIN_EGRESS_BYTES <= rate_bytes <= MAX_EGRESS_BYTES:
            allowed = f"{MIN_EGRESS_BYTES} to {MAX_EGRESS_BYTES} bytes per second"
            raise ParseError("an egress limit", str(rate_bytes), allowed)
    return ceilings


def _check_device(device: str) -> None:
    if not _DEVICE.fullmatch(device):
        raise ParseError(
            "a disk's device number", device, "MAJOR:MINOR of a whole disk, e.g. 254:0 (lsblk -d)"
        )


def frozen_text(frozen: bool, version: int) -> str:
    """Text for ``cgroup.freeze`` (v2) or ``freezer.state`` (v1)."""
    if version == 2:
        return "1" if frozen else "0"
    return "FROZEN" if frozen else "THAWED"


def is_frozen(text: str) -> bool:
    """True if this text of ``cgroup.freeze`` or ``freezer.state`` means that the group is frozen or freezing."""
    return text == "1" or text in _FROZEN


def quota_us(cores: float, period_us: int) -> int:
    """Run time per period for this many cores, in us.

    Raises:
        ParseError: not a positive finite number, or below the kernel's minimum quota for this period.
    """
    allowed = (
        f"at least {MIN_QUOTA_US / period_us:g} cores with the period of {period_us} us that is set here"
    )
    if not math.isfinite(cores) or cores <= 0:
        raise ParseError("a number of cores", f"{cores:g}", allowed)
    quota = round(cores * period_us)
    if quota < MIN_QUOTA_US:
        raise ParseError("a CPU quota that the kernel accepts", f"{cores:g}", allowed)
    return quota


def cpu_max_text(cores: float, now: str) -> str:
    """Text for v2 ``cpu.max`` with the period in ``now``.

    If the quota would be too small for that period, the default period is used.

    Raises:
        ParseError: see ``quota_us``.
    """
    words = now.split()
    period = int(words[1]) if len(words) == 2 and words[1].isdecimal() else DEFAULT_PERIOD_US
    if 0 < cores * period < MIN_QUOTA_US:
        period = DEFAULT_PERIOD_US
    return f"{quota_us(cores, period)} {period}"


def memory_text(limit: Limit) -> str:
    """Text for a memory file: a size in whole pages, or ``max``.

    Raises:
        ParseError: negative, or more than 2**62.
    """
    if limit is NO_LIMIT:
        return "max"
    if isinstance(limit, bool) or not 0 <= limit <= MAX_BYTES:
        raise ParseError("a memory size", str(limit), f"0 to {MAX_BYTES} bytes, or no limit")
    return str(page_floor_bytes(limit))


def same(path: str, wanted: str, read: str) -> bool:
    """True if the kernel shows a file as ``read`` after ``wanted`` was written to it."""
    if wanted == read:
        return True
    file = path.rpartition("/")[2]
    if file in lines.FORMATS:
        return lines.equal(file, wanted, read)
    try:
        if file in EMPTY_ALLOWED:
            return CpuSet.parse(wanted) == CpuSet.parse(read)
        if file == "freezer.state":
            return is_frozen(wanted) and is_frozen(read)
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
    """The amount that this text grants, to distinguish shrinking from growing.

    ``inf``: no limit; 0: the text is not a number.
    """
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
    """The value for these texts (file name -> text); KEEP if they are invalid or set no limit."""
    files = FILES[setting, version]
    lead = texts.get(files[0], "")
    try:
        if setting in LIST_SETTINGS:
            return CpuSet.parse(lead) if lead else KEEP
        if setting.startswith("io_"):
            return _decode_io(setting, texts)
        if setting == "egress_max":
            return lines.egress_of(lead) or KEEP
        if setting == "frozen":
            return True if is_frozen(lead) else KEEP
        if setting == "cpu_weight":
            if texts.get("cpu.idle") == "1":
                return IDLE
            return int(lead) if version == 2 else weight_of_shares(int(lead))
        if setting == "cpu_max_cores":
            if version == 1:
                lead = f"{lead} {texts.get(files[1], DEFAULT_PERIOD_US)}"
            quota, period = lead.split()
            return KEEP if quota == "max" or int(quota) < 0 else int(quota) / int(period)
        return decode_limit(lead)
    except (ValueError, ZeroDivisionError):
        return KEEP


def _decode_io(setting: str, texts: Mapping[str, str]) -> Value:
    if setting == "io_max":
        return lines.limits_of(texts) or KEEP
    if setting == "io_latency_us":
        return lines.latencies_of(next(iter(texts.values()), "")) or KEEP
    file, text = next(iter(texts.items()), ("", ""))
    return lines.default_weight(file, text) if file in lines.FORMATS else int(text)
