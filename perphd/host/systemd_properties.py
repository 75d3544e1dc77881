"""Translates a unit's cgroup file contents into systemd's run-time properties. Pure.

systemd writes the files of its units itself (systemd.resource-control(5)) and reverts other programs' writes,
so a unit is set by ``SetUnitProperties``. Texts that are the kernel's default unset the property.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from perphd.domain.cpuset import CpuSet
from perphd.host.cgroup import lines

UNSET: Final = (1 << 64) - 1
"""Means ``infinity`` for a limit, and "no value" for a weight."""
IDLE_WEIGHT: Final = 0
"""``CPUWeight=idle`` (systemd 252 and later)."""
IDLE_SINCE: Final = 252

Value: TypeAlias = int | bytes | tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Property:
    """One property and its value. ``signature``: the D-Bus type ``t``, ``ay`` or ``a(st)``."""

    name: str
    signature: str
    value: Value


ABSENT: Final[Mapping[str, str]] = {
    "cpuset.cpus": "",
    "cpuset.mems": "",
    "cpu.weight": "100",
    "cpu.idle": "0",
    "cpu.max": "max 100000",
    "io.weight": "default 100",
    "io.bfq.weight": "default 100",
    "io.max": "",
}
"""Files that a unit lacks while no property needs their controller -> default value."""

_LISTS = {"cpuset.cpus": "AllowedCPUs", "cpuset.mems": "AllowedMemoryNodes"}
_MEMORY = {
    "memory.min": "MemoryMin",
    "memory.low": "MemoryLow",
    "memory.high": "MemoryHigh",
    "memory.max": "MemoryMax",
}
_CEILINGS = {
    "rbps": "IOReadBandwidthMax",
    "wbps": "IOWriteBandwidthMax",
    "riops": "IOReadIOPSMax",
    "wiops": "IOWriteIOPSMax",
}
DEVICE_FILES: Final = frozenset({"io.max", "io.latency"})
"""Files with one line per disk."""
FILES: Final = frozenset({*_LISTS, *_MEMORY, *ABSENT, "io.latency"})
"""The files that have properties. ``cgroup.freeze`` has methods instead."""


def properties(file: str, text: str) -> tuple[Property, ...]:
    """The properties for this text in this file.

    Raises:
        KeyError: the file has no properties.
        ValueError: the text is invalid for this file.
    """
    if file in _LISTS:
        return (Property(_LISTS[file], "ay", bitmap(CpuSet.parse(text))),)
    if file in _MEMORY:
        return (Property(_MEMORY[file], "t", UNSET if text == "max" else int(text)),)
    if file == "cpu.weight":
        return (_weight("CPUWeight", int(text)),)
    if file == "cpu.idle":
        return (Property("CPUWeight", "t", IDLE_WEIGHT if text == "1" else UNSET),)
    if file == "cpu.max":
        return _quota(text)
    if file == "io.weight":
        return (_weight("IOWeight", lines.default_weight(file, text)),)
    if file == "io.bfq.weight":
        return (_weight("IOWeight", _io_weight(lines.default_weight(file, text))),)
    if file == "io.max":
        return _ceilings(text)
    if file == "io.latency":
        pairs = tuple((_node(device), target) for device, target in lines.latencies_of(text))
        return (Property("IODeviceLatencyTargetUSec", "a(st)", pairs),)
    raise KeyError(file)


def line_properties(file: str, wanted: str, now: str) -> tuple[Property, ...]:
    """The properties that lead from one text to another, for a file with one line per disk.

    systemd merges a list of disks into its present one, and an empty list clears all disks, including an
    administrator's limits. Every disk is therefore named, those without a value with ``infinity``; properties
    without a change are left out.

    Raises:
        KeyError: not a file with one line per disk.
        ValueError: the texts are invalid for this file.
    """
    before = {item.name: item for item in properties(file, now)}
    after = {item.name: item for item in properties(file, wanted)}
    changed = [name for name, item in after.items() if item != before[name]] or list(after)
    found = []
    for name in changed:
        pairs = dict(_pairs(before[name])) | dict.fromkeys((node for node, _ in _pairs(before[name])), UNSET)
        pairs |= dict(_pairs(after[name]))
        found.append(Property(name, "a(st)", tuple(sorted(pairs.items()))))
    return tuple(found)


def whole_properties(file: str, text: str) -> tuple[Property, ...]:
    """The properties for this text, independent of systemd's present ones: disk lists are cleared first.

    Raises:
        KeyError, ValueError: as ``properties``.
    """
    found = properties(file, text)
    if file not in DEVICE_FILES:
        return found
    cleared = tuple(Property(item.name, item.signature, ()) for item in found)
    return (*cleared, *(item for item in found if item.value))


def _pairs(item: Property) -> tuple[tuple[str, int], ...]:
    assert isinstance(item.value, tuple)
    return item.value


def drop_ins(file: str) -> tuple[str, ...]:
    """Names of the drop-ins for this file, without ``50-`` and ``.conf``."""
    if file == "cpu.max":
        return ("CPUQuota", "CPUQuotaPeriodSec")
    if file == "io.max":
        return tuple(_CEILINGS.values())
    known = {
        **_LISTS,
        **_MEMORY,
        "cpu.weight": "CPUWeight",
        "cpu.idle": "CPUWeight",
        "io.weight": "IOWeight",
        "io.bfq.weight": "IOWeight",
        "io.latency": "IODeviceLatencyTargetSec",
    }
    return (known[file],) if file in known else ()


def bitmap(numbers: CpuSet) -> bytes:
    """The encoding of ``AllowedCPUs`` and ``AllowedMemoryNodes``: bit n of byte n/8; empty for the empty set."""
    return numbers.mask.to_bytes((numbers.mask.bit_length() + 7) // 8, "little")


def _weight(name: str, weight: int) -> Property:
    return Property(name, "t", UNSET if weight == 100 else weight)


def _io_weight(bfq_weight: int) -> int:
    """The least ``IOWeight`` that systemd 250 and later translate to this weight.

    Above the default, systemd spreads BFQ's 100 to 1000 over 100 to 10000.
    """
    return bfq_weight if bfq_weight <= 100 else 100 + 11 * (bfq_weight - 100)


def unscaled(file: str, text: str) -> tuple[Property, ...]:
    """The properties for this text before systemd 250, which gave BFQ IOWeight itself; empty if they are the same."""
    if file != "io.bfq.weight" or (weight := lines.default_weight(file, text)) <= 100:
        return ()
    return (_weight("IOWeight", weight),)


def _quota(text: str) -> tuple[Property, ...]:
    quota, period = text.split()
    if quota == "max":
        return (Property("CPUQuotaPerSecUSec", "t", UNSET), Property("CPUQuotaPeriodUSec", "t", UNSET))
    # systemd computes the quota from this and cuts it to whole microseconds, so round up.
    per_second = -(-int(quota) * 1_000_000 // int(period))
    return (
        Property("CPUQuotaPerSecUSec", "t", per_second),
        Property("CPUQuotaPeriodUSec", "t", int(period)),
    )


def _ceilings(text: str) -> tuple[Property, ...]:
    found: dict[str, list[tuple[str, int]]] = {name: [] for name in _CEILINGS}
    for device, value in lines.table("io.max", text).items():
        for part in value.split():
            short, _, number = part.partition("=")
            if number != "max":
                found[short].append((_node(device), int(number)))
    return tuple(Property(_CEILINGS[short], "a(st)", tuple(pairs)) for short, pairs in found.items())


def _node(device: str) -> str:
    return f"/dev/block/{device}"
