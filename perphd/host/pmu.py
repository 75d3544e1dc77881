"""Finds this host's codes for processor-specific events: last-level cache misses and stalls.

On many processors the kernel's generalised cache events count a different cache: PERF_COUNT_HW_CACHE_MISSES
counts L1D refills on ARM and L2 misses on AMD. An event is used only if it counts what its name says;
otherwise it is missing, with the reason.

| processor | last-level misses | backend stalls | memory stalls |
| --- | --- | --- | --- |
| Intel | architectural LLC events | cycle_activity.stalls_total | cycle_activity.stalls_l3_miss |
| AMD, Hygon | none (the L3 PMU knows no cgroups) | generalised event | none |
| ARM | LL_CACHE_RD, LL_CACHE_MISS_RD | STALL_BACKEND | STALL_BACKEND_MEM |
| other x86 | none | generalised event | none |
| others | none | none | none |

ARM's PMU driver lists in sysfs the events that the PMU advertises (PMCEID); other events are not counted.
Intel's stall events have the same codes from Skylake to Emerald Rapids; on other models they are left out.
"""

from __future__ import annotations

import re
from typing import Final

from perphd.domain.errors import KernelError
from perphd.domain.reading import Unavailable
from perphd.host.fs import KernelFs, read_text, text_or_empty
from perphd.host.perf_event_types import COMMON_CODES, HARDWARE_TYPE, EventCode, EventCodes, PerfEventKind

EVENT_SOURCES: Final = "/sys/bus/event_source/devices"
CPUINFO: Final = "/proc/cpuinfo"

_ARM_PMU: Final = re.compile(r"armv[89]_|arm_v[89]|armv[89]$")
_ARM_EVENTS: Final = {
    PerfEventKind.LLC_REFERENCES: "ll_cache_rd",
    PerfEventKind.LLC_MISSES: "ll_cache_miss_rd",
    PerfEventKind.STALL_BACKEND: "stall_backend",
    PerfEventKind.STALL_MEMORY: "stall_backend_mem",
}
_EVENT_TERM: Final = re.compile(r"event=(0x[0-9a-f]+|\d+)$")

_RAW: Final = 4
_INTEL_STALL_MODELS: Final = frozenset(
    (
        *(0x4E, 0x5E, 0x55, 0x8E, 0x9E, 0xA5, 0xA6),  # Skylake, Cascade Lake, Kaby Lake to Comet Lake
        *(0x6A, 0x6C, 0x7D, 0x7E, 0x8C, 0x8D, 0xA7),  # Ice Lake, Tiger Lake, Rocket Lake
        *(0x8F, 0xCF),  # Sapphire Rapids, Emerald Rapids
    )
)
"""Models of family 6 with CYCLE_ACTIVITY.STALLS_TOTAL and .STALLS_L3_MISS, without hybrid models."""
_INTEL_STALLS: Final = {
    PerfEventKind.STALL_BACKEND: EventCode(_RAW, 0xA3 | 0x04 << 8 | 0x04 << 24),
    PerfEventKind.STALL_MEMORY: EventCode(_RAW, 0xA3 | 0x06 << 8 | 0x06 << 24),
}
_GENERAL_LLC: Final = {
    PerfEventKind.LLC_REFERENCES: EventCode(HARDWARE_TYPE, 2),
    PerfEventKind.LLC_MISSES: EventCode(HARDWARE_TYPE, 3),
}
_GENERAL_STALL: Final = {PerfEventKind.STALL_BACKEND: EventCode(HARDWARE_TYPE, 8)}
_L3_WITHOUT_CGROUPS: Final = Unavailable(
    "the cache events of AMD's cores count L2; its L3 PMU (amd_l3) counts a whole cache, not a cgroup"
)
_NO_MEMORY_STALLS: Final = Unavailable("no event of this processor is known to count memory stalls")


def read_event_codes(fs: KernelFs) -> EventCodes:
    """The code of every event on this host, or the reason why it has none. Never raises."""
    vendor, family, model = _processor(fs)
    codes: dict[PerfEventKind, EventCode | Unavailable] = dict(COMMON_CODES)
    arm = _arm_pmus(fs)
    if arm:
        return codes | _arm_codes(fs, arm)
    unknown = Unavailable(f"the cache that events of this processor ({vendor or 'unnamed'}) count is unknown")
    codes |= dict.fromkeys(_GENERAL_LLC, unknown)
    codes |= _GENERAL_STALL
    codes[PerfEventKind.STALL_MEMORY] = _NO_MEMORY_STALLS
    if vendor == "GenuineIntel":
        codes |= _GENERAL_LLC
        if family == 6 and model in _INTEL_STALL_MODELS:
            codes |= _INTEL_STALLS
    elif vendor in ("AuthenticAMD", "HygonGenuine"):
        codes |= dict.fromkeys(_GENERAL_LLC, _L3_WITHOUT_CGROUPS)
    elif not vendor:
        # Not x86: on other architectures, the driver chooses what the generalised events mean.
        missing = Unavailable("no PMU of a known processor lists its events in " + EVENT_SOURCES)
        codes |= dict.fromkeys(
            (*_GENERAL_LLC, PerfEventKind.STALL_BACKEND, PerfEventKind.STALL_MEMORY), missing
        )
    return codes


def processor_name(fs: KernelFs) -> str:
    """Vendor and model name of the first processor, or the closest fields of /proc/cpuinfo; empty if it has none."""
    fields = _first_processor(fs)
    vendor = fields.get("vendor_id") or fields.get("CPU implementer", "")
    return f"{vendor} {fields.get('model name') or fields.get('CPU part', '')}".strip()


def _first_processor(fs: KernelFs) -> dict[str, str]:
    """The lines of /proc/cpuinfo about its first processor, by name; empty if it cannot be read."""
    fields: dict[str, str] = {}
    for line in text_or_empty(fs, CPUINFO).splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def _processor(fs: KernelFs) -> tuple[str, int, int]:
    """Vendor, family and model of the first processor; empty and 0 if /proc/cpuinfo does not contain them."""
    fields = _first_processor(fs)
    return (
        fields.get("vendor_id", ""),
        _number(fields.get("cpu family", "")),
        _number(fields.get("model", "")),
    )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _arm_pmus(fs: KernelFs) -> tuple[str, ...]:
    """Names of the PMUs of ARM cores; several if the cores differ (big.LITTLE)."""
    try:
        return tuple(name for name in fs.listdir(EVENT_SOURCES) if _ARM_PMU.match(name))
    except KernelError:
        return ()


def _arm_codes(fs: KernelFs, pmus: tuple[str, ...]) -> dict[PerfEventKind, EventCode | Unavailable]:
    if len(pmus) > 1:
        several = Unavailable(
            f"the cores have different PMUs ({', '.join(pmus)}): no event would be counted on all cores"
        )
        return dict.fromkeys(_ARM_EVENTS, several)
    return {kind: _arm_code(fs, pmus[0], name) for kind, name in _ARM_EVENTS.items()}


def _arm_code(fs: KernelFs, pmu: str, name: str) -> EventCode | Unavailable:
    try:
        number = int(read_text(fs, f"{EVENT_SOURCES}/{pmu}/type"))
        term = _EVENT_TERM.match(read_text(fs, f"{EVENT_SOURCES}/{pmu}/events/{name}").strip())
    except (KernelError, ValueError):
        return Unavailable(f"the PMU {pmu} does not advertise {name}")
    if term is None:
        return Unavailable(f"the PMU {pmu} describes {name} in an unknown format")
    return EventCode(number, int(term[1], 0))
