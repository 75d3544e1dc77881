"""Reads the settings in force for every running workload from the kernel's files, in the node model's form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perphd.domain.workload import Kind
from perphd.sim import memory
from perphd.sim.kernel.cgroup2 import SimCgroup
from perphd.sim.kernel.resctrl import ResctrlTree
from perphd.sim.node.grant import Grant, Grants, grants
from perphd.sim.node.machine import Machine
from perphd.sim.node.workload import NodeWorkload

WAKER_BONUS: Final = 1.5
"""Factor on the scheduling weight of threads that sleep between bursts (LRAs): EEVDF and CFS owe them time."""
_THREAD_WEIGHT: Final = 100.0
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Tenant:
    """A running workload: its group, and its number of runnable threads."""

    work: NodeWorkload
    group: SimCgroup
    tid: int
    runnable: float


_Way = tuple[tuple[str, float], ...]
"""The scheduling entities (path, weight) on the path from the root to a workload."""


class InForce:
    """Reads the trees once per step; arrays are rebuilt only after changes."""

    def __init__(self, machine: Machine, resctrl: ResctrlTree | None = None) -> None:
        self._machine, self._resctrl = machine, resctrl
        self._ids: dict[int, tuple[int, int]] = {}
        self._key: object = None
        self._grants: Grants | None = None

    def read(self, tenants: Sequence[Tenant]) -> Grants:
        """Present grants of these workloads (one alternative)."""
        self._ids.clear()
        ways = tuple(_way(tenant) for tenant in tenants)
        rows = tuple(self._grant(tenant) for tenant in tenants)
        key = (ways, rows)
        if self._grants is None or key != self._key:
            self._key, self._grants = key, self._made(tenants, ways, rows)
        self._grants.memory_bytes[0] = [memory.limit(tenant.group) for tenant in tenants]
        return self._grants

    def again(self, tenants: Sequence[Tenant]) -> Grants:
        """Grants of the same workloads slightly later, if nothing can have been written since ``read``."""
        if self._grants is None or not all(tenant.group.has("cpu") for tenant in tenants):
            # A group without the cpu controller weighs as much as its threads, whose number varies.
            return self.read(tenants)
        self._grants.memory_bytes[0] = [memory.limit(tenant.group) for tenant in tenants]
        return self._grants

    def ids(self, tenant: Tenant) -> tuple[int, int]:
        """(CLOSID, RMID) of a workload's threads at the last ``read``."""
        if self._resctrl is None or not self._resctrl.mounted:
            return 0, 0
        known = self._ids.get(tenant.tid)
        if known is None:
            cpus = tenant.group.effective_cpus
            known = self._ids[tenant.tid] = self._resctrl.ids_of(tenant.tid, next(iter(cpus), 0))
        return known

    def _grant(self, tenant: Tenant) -> Grant:
        group, use = tenant.group, tenant.work.io
        quotas = [g.quota_us / g.period_us for g in group.ancestry() if g.quota_us is not None]
        masks: tuple[int, ...] = ()
        levels: tuple[int, ...] = ()
        tree = self._resctrl
        if tree is not None and tree.mounted:
            closid, _ = self.ids(tenant)
            masks, levels = _cache_limits(tree, self._machine, closid)
        return Grant(
            cpus=group.effective_cpus,
            limit_cores=min(quotas, default=math.inf),
            masks=masks,
            mba_pct=levels,
            disk_bytes_per_s=_disk_cap(group, use.disk_ops, use.disk_read_bytes, use.disk_write_bytes),
        )

    def _made(self, tenants: Sequence[Tenant], ways: Sequence[_Way], rows: Sequence[Grant]) -> Grants:
        made = grants(self._machine, [rows])
        bonus = [WAKER_BONUS if t.work.kind is Kind.LRA else 1.0 for t in tenants]
        flat = _flat_weights(ways, bonus)
        made.weight[0] = [share / one for share, one in zip(flat, bonus, strict=True)]
        count = len(tenants)
        mine, theirs = np.ones((1, count, count)), np.ones((1, count, count))
        for i, one in enumerate(ways):
            for j, other in enumerate(ways):
                if i != j:
                    mine[0, i, j], theirs[0, i, j] = _rivals(one, other)
                    if not tenants[i].group.has("cpu"):
                        mine[0, i, j] = _THREAD_WEIGHT
        made.mine, made.theirs = mine, theirs
        made.flat = np.array([[0.0 if t.group.has("cpu") else 1.0 for t in tenants]])
        return made


def _cache_limits(
    tree: ResctrlTree, machine: Machine, closid: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(masks, bandwidth percentages) of a class of service, one per domain; an offline domain limits nothing.

    With code and data prioritisation the data's mask counts: the model's programs are data.
    """
    masks: list[int] = []
    levels: list[int] = []
    cache = "L3DATA" if "cdp" in tree.options else "L3"
    for domain in range(machine.sockets):
        if not machine.socket_cpus(domain).mask & tree.online:
            masks.append(machine.full_mask)
            levels.append(100)
            continue
        masks.append(tree.value(cache, domain, closid))
        limit = tree.value("MB", domain, closid)
        if "mba_MBps" in tree.options:
            limit = math.floor(min(1.0, limit * _MIB / machine.memory_bytes_per_s) * 100)
        levels.append(max(10, limit))
    return tuple(masks), tuple(levels)


def _way(tenant: Tenant) -> _Way:
    """The path from the root to this group; without the cpu controller, each thread competes for itself."""
    group = tenant.group
    way = [(g.path, g.share_weight) for g in group.ancestry() if g.parent is not None and g.has("cpu")]
    way.reverse()
    if not group.has("cpu"):
        way.append((f"threads of {tenant.work.name}", _THREAD_WEIGHT * max(1.0, tenant.runnable)))
    return tuple(way)


def _rivals(one: _Way, other: _Way) -> tuple[float, float]:
    """Weights of the two competing entities where the paths of two workloads diverge."""
    for (my_key, my_weight), (their_key, their_weight) in zip(one, other, strict=False):
        if my_key != their_key:
            return my_weight, their_weight
    return one[-1][1], other[-1][1]


def _flat_weights(ways: Sequence[_Way], bonus: Sequence[float]) -> list[float]:
    """The share of each workload in the whole (100), from the weights of all entities on its path."""
    flat = [0.0] * len(ways)

    def descend(members: list[int], depth: int, share: float) -> None:
        groups: dict[str, list[int]] = {}
        for index in members:
            groups.setdefault(ways[index][depth][0], []).append(index)
        weights = {key: bonus[group[0]] * ways[group[0]][depth][1] for key, group in groups.items()}
        total = sum(weights.values())
        for key, group in groups.items():
            part = share * weights[key] / total
            ends = [index for index in group if depth == len(ways[index]) - 1]
            if len(group) == 1:
                flat[group[0]] = part
            elif ends:  # workloads in the same group share its part
                for index in group:
                    flat[index] = part / len(group)
            else:
                descend(group, depth + 1, part)

    descend(list(range(len(ways))), 0, 100.0)
    return flat


def _disk_cap(group: SimCgroup, ops: float, read_bytes: float, write_bytes: float) -> float:
    """io.max of a group and its ancestors, as bytes per second of this mixture of reads and writes."""
    total = read_bytes + write_bytes
    if total <= 0:
        return math.inf
    cap = math.inf
    for above in group.ancestry():
        if above.parent is None or not above.has("io"):
            continue
        limits = above.io_limits
        per_op = {"rbps": read_bytes, "wbps": write_bytes, "riops": ops * read_bytes / total}
        per_op["wiops"] = ops * write_bytes / total
        for name, need in per_op.items():
            limit = limits[name]
            if limit is not None and need > 0:
                cap = min(cap, limit / need * total)
    return cap
