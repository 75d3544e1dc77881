"""Divides the host's CPU time among LRAs, batch, undeclared groups, kernel, hypervisor and idle time.
Pure.

The kernel accounts the parts separately: /proc/stat counts ticks of CPUs, control groups count nanoseconds of tasks.
Both are read at slightly different times. /proc/stat takes precedence: its ticks are shares of the capacity. Groups
that claim more time than CPUs were busy are scaled down together. Unclaimed time belongs to the kernel,
or to processes in no group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from perphd.domain.host_account import NO_GROUP, CpuAccount


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Time of all usable CPUs over an interval, in any unit: for tasks, for interrupts, stolen, and idle.

    ``cpus``: number of CPUs.
    """

    cpus: int
    tasks: float
    interrupts: float
    steal: float
    idle: float


def divide(
    times: CpuTimes, lras: float, batch: float, groups: Mapping[str, float], rest_is_kernel: bool
) -> tuple[CpuAccount, dict[str, float]]:
    """The account, and the CPUs of every undeclared group after scaling.

    Args:
        times: use of the CPUs available to workloads.
        lras: CPUs used by all LRAs.
        batch: CPUs used by all batch.
        groups: CPUs used by undeclared groups, without declared groups inside them.
        rest_is_kernel: True if the tasks in no group are kernel threads. Otherwise they count as the group ``/``.
    """
    capacity = float(times.cpus)
    parts = [max(0.0, part) for part in (times.tasks, times.interrupts, times.steal, times.idle)]
    whole = math.fsum(parts)
    if whole <= 0.0:
        parts, whole = [0.0, 0.0, 0.0, 1.0], 1.0
    busy, kernel, steal, idle = (capacity * part / whole for part in parts)
    claims = {group: max(0.0, cores) for group, cores in groups.items()}
    lras, batch = max(0.0, lras), max(0.0, batch)
    claimed = math.fsum((lras, batch, *claims.values()))
    if claimed > busy:
        scale = busy / claimed
        lras, batch = lras * scale, batch * scale
        claims = {group: cores * scale for group, cores in claims.items()}
    elif rest_is_kernel:
        kernel += busy - claimed
    else:
        claims[NO_GROUP] = claims.get(NO_GROUP, 0.0) + busy - claimed
    undeclared = math.fsum(claims.values())
    return CpuAccount(capacity, lras, batch, undeclared, kernel, steal, idle), claims


def own_use(total: Mapping[str, float], declared: Mapping[str, float]) -> dict[str, float]:
    """Each group's use without that of its listed descendants.

    Args:
        total: CPUs by group path, descendants included.
        declared: CPUs of declared workloads by path; they may lie inside a group of ``total``, or in one
            another.
    """
    own = dict(total)
    for group, cores in (*total.items(), *declared.items()):
        above = group
        while above := above.rpartition("/")[0]:
            if group not in total and above in declared:
                break  # a declared group above already includes it
            if above in total:
                own[above] -= cores
                break
    return {group: max(0.0, cores) for group, cores in own.items()}
