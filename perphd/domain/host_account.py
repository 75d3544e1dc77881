"""The account of the whole host at one tick: who used its CPUs, and how hard its tasks had to wait."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from perphd.domain.reading import NOT_MEASURED, Reading, available

NO_GROUP: Final = "/"
"""The group of processes that lie in no group, and of whatever groups too many to be watched use."""


@dataclass(frozen=True, slots=True)
class GroupUse:
    """What one control group that nobody declared uses, the groups below it that are not named included."""

    group: str
    cpu_cores: float
    memory_bytes: Reading = NOT_MEASURED
    io_bytes_per_s: Reading = NOT_MEASURED


@dataclass(frozen=True, slots=True)
class CpuAccount:
    """CPU time of the interval in CPUs. The seven parts add up to ``capacity``.

    ``capacity``: the CPUs that workloads may be given; ``undeclared``: groups that no configuration names;
    ``kernel``: interrupts and the kernel's own threads; ``steal``: taken by the hypervisor.
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

    ``undeclared``: by name, the greatest user of CPU first; their CPUs add up to ``cpu.undeclared``. ``*_some_pct`` and
    ``*_full_pct``: pressure stall shares of the whole host. Disks and network: bytes in both directions.
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
    """A total of the host divided: what LRAs and batch use of it, and everything else. Bytes, or bytes per second."""

    lras: float
    batch: float
    others: float


def divided(total: Reading, lras: Sequence[Reading], batch: Sequence[Reading]) -> Shares | None:
    """A total by kind of workload; None where it, or what all workloads of a kind use of it, is not measured.

    The parts are of samples some seconds apart: what LRAs and batch use together may be a little over the total, and
    nothing is left to others then.
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
    """The account of several intervals that follow each other, weighted with their lengths.

    Readings are the latest. Raises ValueError if there is none.
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
