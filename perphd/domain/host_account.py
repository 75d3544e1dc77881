"""Accounting of the whole host per tick: CPU use by owner, and pressure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from perphd.domain.reading import NOT_MEASURED, Reading, available

NO_GROUP: Final = "/"
"""The group that stands for processes in no group, and for groups beyond the number that perphd watches."""


@dataclass(frozen=True, slots=True)
class GroupUse:
    """Use of one undeclared control group, including its descendants that are not listed themselves.

    ``name``: ``namespace/pod`` of a pod, or its container's name; empty for other groups.
    """

    group: str
    cpu_cores: float
    memory_bytes: Reading = NOT_MEASURED
    io_bytes_per_s: Reading = NOT_MEASURED
    name: str = ""


@dataclass(frozen=True, slots=True)
class CpuAccount:
    """CPU time of the interval, as a mean number of CPUs. The other six fields add up to ``capacity``.

    ``capacity``: CPUs usable by workloads. ``undeclared``: groups that no configuration names. ``kernel``:
    interrupts and kernel threads. ``steal``: taken by the hypervisor.
    """

    capacity: float
    lras: float
    batch: float
    undeclared: float
    kernel: float
    steal: float
    idle: float


@dataclass(frozen=True, slots=True)
class HostAccount:
    """The host over ``interval_s`` seconds that ended at ``at_s`` (monotonic).

    ``undeclared``: by CPU use, descending; their CPUs add up to ``cpu.undeclared``. ``*_some_pct``,
    ``*_full_pct``: pressure stall shares of the whole host. Disk and network rates count both directions.
    """

    at_s: float
    interval_s: float
    cpu: CpuAccount
    undeclared: tuple[GroupUse, ...] = ()
    cpu_some_pct: Reading = NOT_MEASURED
    memory_some_pct: Reading = NOT_MEASURED
    memory_full_pct: Reading = NOT_MEASURED
    io_some_pct: Reading = NOT_MEASURED
    memory_total_bytes: Reading = NOT_MEASURED
    memory_available_bytes: Reading = NOT_MEASURED
    disk_bytes_per_s: Reading = NOT_MEASURED
    network_bytes_per_s: Reading = NOT_MEASURED


@dataclass(frozen=True, slots=True)
class Shares:
    """Division of a host-wide total among LRAs, batch and everything else. Bytes, or bytes per second."""

    lras: float
    batch: float
    others: float


def divided(total: Reading, lras: Sequence[Reading], batch: Sequence[Reading]) -> Shares | None:
    """Divide a total by kind of workload.

    Returns None if the total is not measured, or if no workload of one kind is measured. Samples are some seconds
    apart, so LRAs and batch may add up to slightly more than the total. The share of everything else is then 0.
    """
    if not available(total):
        return None
    parts = []
    for readings in (lras, batch):
        known = [value for value in readings if available(value)]
        if readings and not known:
            return None
        parts.append(math.fsum(known))
    return Shares(parts[0], parts[1], max(0.0, total - parts[0] - parts[1]))


def mean_account(accounts: Sequence[HostAccount]) -> HostAccount:
    """The account of several consecutive intervals, weighted by their lengths.

    Readings such as pressure are those of the latest account. Raises ValueError if there are no accounts.
    """
    if not accounts:
        raise ValueError("no account")
    last, whole_s = accounts[-1], math.fsum(item.interval_s for item in accounts)
    if whole_s <= 0.0:
        return last
    weights = [item.interval_s / whole_s for item in accounts]
    parts = {
        part.name: math.fsum(
            weight * getattr(item.cpu, part.name) for weight, item in zip(weights, accounts, strict=True)
        )
        for part in fields(CpuAccount)
    }
    cores: dict[str, float] = {}
    newest: dict[str, GroupUse] = {}
    for weight, item in zip(weights, accounts, strict=True):
        for group in item.undeclared:
            cores[group.group] = cores.get(group.group, 0.0) + weight * group.cpu_cores
            newest[group.group] = group
    groups = sorted(
        (replace(newest[name], cpu_cores=n) for name, n in cores.items()), key=lambda g: -g.cpu_cores
    )
    return replace(last, interval_s=whole_s, cpu=CpuAccount(**parts), undeclared=tuple(groups))
