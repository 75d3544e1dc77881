"""Probes whether resctrl can count per workload: cache occupancy (CMT) and memory bandwidth (MBM)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from perphd.domain.capability import Area, Capability
from perphd.host.fs import KernelFs, text_or_empty

MONITORING: Final = "resctrl.monitoring"
"""The capability to measure workloads, as far as files show it; a running daemon knows more."""
MONITORING_COST: Final = "cache occupancy and memory bandwidth of a workload cannot be measured"
_FEATURES_FILE: Final = "info/L3_MON/mon_features"
_LOCAL: Final = "mbm_local_bytes"


@dataclass(frozen=True, slots=True)
class _Event:
    """A counter: its capability, its CPU flag, and its event name in resctrl."""

    name: str
    flag: str
    event: str
    cost: str


_EVENTS: Final = (
    _Event(
        "resctrl.cmt", "cqm_occup_llc", "llc_occupancy", "cache occupancy of a workload cannot be measured"
    ),
    _Event(
        "resctrl.mbm",
        "cqm_mbm_total",
        "mbm_total_bytes",
        "memory bandwidth of a workload cannot be measured: contention and its antagonist are guessed",
    ),
)


def probe_counters(fs: KernelFs, flags: frozenset[str], mount: str | None) -> Iterator[Capability]:
    """The capability of each counter, then the general capability to measure."""
    offered = text_or_empty(fs, f"{mount}/{_FEATURES_FILE}").split() if mount is not None else []
    for event in _EVENTS:
        yield _event(event, flags, mount, offered)
    have = [event.event for event in _EVENTS if event.event in offered]
    if have:
        rmids = text_or_empty(fs, f"{mount}/info/L3_MON/num_rmids").strip() or "unknown"
        yield Capability(
            MONITORING, Area.MEASURE, True, f"can count {', '.join(have)} with {rmids} monitoring ids (RMIDs)"
        )
    else:
        detail = "neither resctrl.cmt nor resctrl.mbm"
        yield Capability(MONITORING, Area.MEASURE, False, detail, MONITORING_COST, "see resctrl.cmt")


def _event(event: _Event, flags: frozenset[str], mount: str | None, offered: list[str]) -> Capability:
    if event.event in offered:
        detail = f"{_FEATURES_FILE}: {event.event}"
        if event.name == "resctrl.mbm":
            detail += f" and {_LOCAL}" if _LOCAL in offered else f"; {_LOCAL} is missing, and not needed"
        return Capability(event.name, Area.MEASURE, True, detail)
    if event.flag in flags and mount is None:
        detail, remedy = f"the CPU has {event.flag}, but resctrl is not mounted", "see resctrl"
    elif event.flag in flags:
        option = "cmt" if event.name == "resctrl.cmt" else "mbmtotal"
        detail = f"the CPU has {event.flag}, but {mount}/{_FEATURES_FILE} has no {event.event}"
        remedy = f"boot without rdt=!{option}; on AMD, a kernel that counts it"
    elif offered:
        detail = f"{mount}/{_FEATURES_FILE} has {', '.join(offered)}, but no {event.event}"
        remedy = "another CPU: this one does not count it"
    else:
        detail, remedy = f"the CPU does not show {event.flag}", "another CPU; see resctrl"
    return Capability(event.name, Area.MEASURE, False, detail, event.cost, remedy)
