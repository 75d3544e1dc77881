"""Grants in force for all workloads: values for a single moment, or arrays of many alternatives for a sweep."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from perphd.domain.cpuset import CpuSet
from perphd.sim.node.machine import Machine

Array = npt.NDArray[np.float64]

IDLE_WEIGHT: Final = 100 * 3 / 1024
"""Weight of cpu.idle = 1 on cpu.weight's scale (the kernel's WEIGHT_IDLEPRIO is 3 on a scale where 1024
corresponds to 100).
"""


@dataclass(frozen=True, slots=True)
class Grant:
    """Resources of one workload. Empty ``cpus``: all CPUs; empty ``masks``: all ways; empty ``mba_pct``: no throttle.

    ``weight``: on the scale of cpu.weight; ``idle``: cpu.idle. ``limit_cores``: cpu.max.
    ``memory_bytes``: the lower of memory.high and memory.max; ``protected_bytes``: memory.low.
    ``masks`` and ``mba_pct``: one per L3 domain. ``disk_bytes_per_s``, ``net_bytes_per_s``: caps of this
    workload.
    """

    cpus: CpuSet = field(default_factory=CpuSet)
    weight: float = 100.0
    idle: bool = False
    limit_cores: float = math.inf
    memory_bytes: float = math.inf
    protected_bytes: float = 0.0
    masks: tuple[int, ...] = ()
    mba_pct: tuple[int, ...] = ()
    disk_bytes_per_s: float = math.inf
    net_bytes_per_s: float = math.inf

    @property
    def share_weight(self) -> float:
        """The weight that the scheduler uses, on cpu.weight's scale."""
        return IDLE_WEIGHT if self.idle else self.weight


@dataclass(frozen=True, slots=True)
class CpuClass:
    """CPUs of one socket that are available to exactly the claims ``members`` (their indices)."""

    cpus: CpuSet
    size: int
    members: tuple[int, ...]
    domain: int


@lru_cache(maxsize=1024)
def cpu_classes(cpusets: tuple[CpuSet, ...], domains: tuple[CpuSet, ...]) -> tuple[CpuClass, ...]:
    """The CPUs of all these sets, grouped by socket and by the claims that may use them."""
    found: dict[tuple[tuple[int, ...], int], int] = {}
    for domain, whole in enumerate(domains):
        for cpu in whole:
            members = tuple(index for index, cpus in enumerate(cpusets) if cpu in cpus)
            if members:
                found[members, domain] = found.get((members, domain), 0) | 1 << cpu
    return tuple(CpuClass(CpuSet(m), m.bit_count(), members, dom) for (members, dom), m in found.items())


@dataclass(slots=True)
class CpuLayout:
    """CPU availability, for B alternatives of W workloads on K classes of CPUs in D domains.

    ``size`` [B,K], ``member`` [B,W,K], ``domain`` [B,K,D], ``sibling`` [B,K,K] (share of a class's CPUs whose
    sibling is in the other), ``cpus`` [B,W].
    """

    size: Array
    member: Array
    domain: Array
    sibling: Array
    cpus: Array
    near: Array = field(init=False)
    spread: Array = field(init=False)
    """[B,W,D]: share of each workload's CPUs in each domain."""
    size_floor: Array = field(init=False)
    cpus_floor: Array = field(init=False)
    """``size`` and ``cpus`` as divisors, without zeros."""
    shares: tuple[bool, ...] = field(init=False)
    """Per workload: whether it shares a CPU with another one in any of the alternatives."""
    _plain: tuple[list[float], list[list[int]]] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        common = self.member.sum(1) > 1
        self.shares = tuple(
            bool((common & (self.member[:, w] > 0)).any()) for w in range(self.member.shape[1])
        )
        self.size_floor = np.maximum(self.size, 1e-12)
        self.cpus_floor = np.maximum(self.cpus, 1.0)
        everywhere = np.einsum("bwk,bk,bkd->bwd", self.member, self.size, self.domain)
        self.spread = everywhere / self.cpus_floor[..., None]
        touches = np.einsum("bwk,bkd->bwd", self.member, self.domain) > 0
        self.near = np.einsum(
            "bwd,bkd->bwk", touches.astype(float), self.domain
        )  # classes in the same domains

    @property
    def plain(self) -> tuple[list[float], list[list[int]]]:
        """The first alternative as plain numbers: sizes of the classes, and the workloads that may use each."""
        if self._plain is None:
            members = [np.flatnonzero(column).tolist() for column in self.member[0].T]
            self._plain = self.size[0].tolist(), members
        return self._plain


@lru_cache(maxsize=1024)
def _layout(
    machine: Machine, cpusets: tuple[CpuSet, ...]
) -> tuple[tuple[CpuClass, ...], Array, Array, Array, Array]:
    domains = tuple(machine.socket_cpus(s) for s in range(machine.sockets))
    classes = cpu_classes(cpusets, domains)
    count = len(classes)
    size = np.array([float(group.size) for group in classes])
    member = np.zeros((len(cpusets), count))
    domain = np.zeros((count, machine.sockets))
    sibling = np.zeros((count, count))
    for k, group in enumerate(classes):
        member[list(group.members), k] = 1.0
        domain[k, group.domain] = 1.0
        if machine.threads_per_core > 1:
            for cpu in group.cpus:
                others = machine.siblings(cpu % machine.cores) - CpuSet(1 << cpu)
                for other, rival in enumerate(classes):
                    sibling[k, other] += len(others & rival.cpus) / len(others) / group.size
    return classes, size, member, domain, sibling


@dataclass(slots=True)
class Grants:
    """B alternatives for W workloads, as arrays [B,W] (``mask`` [B,W,D,ways], ``core_limit`` [B,W,D])."""

    layout: CpuLayout
    weight: Array
    limit_cores: Array
    memory_bytes: Array
    protected_bytes: Array
    mask: Array
    core_limit: Array
    disk_cap: Array
    net_cap: Array
    mine: Array | None = None
    """Weights of the two competing entities [B,W,W] in nested control groups; None: the workloads' own weights."""
    theirs: Array | None = None
    flat: Array | None = None
    """1 if a workload has no scheduling entity of its own, so that each of its threads competes separately."""

    @property
    def count(self) -> int:
        """B, the number of alternatives."""
        return int(self.weight.shape[0])

    def take(self, rows: npt.NDArray[np.bool_] | slice) -> Grants:
        """A subset of the alternatives."""
        layout = self.layout
        parts = (layout.size, layout.member, layout.domain, layout.sibling, layout.cpus)
        values: list[Any] = [getattr(self, f.name) for f in fields(self)[1:]]
        cut: list[Any] = [None if value is None else value[rows] for value in values]
        return Grants(CpuLayout(*(part[rows] for part in parts)), *cut)


def grants(machine: Machine, alternatives: Sequence[Sequence[Grant]]) -> Grants:
    """Arrays of these alternatives; every one has a grant for each workload, in the same order."""
    rows = [[(g.cpus & machine.online) or machine.online for g in row] for row in alternatives]
    return Grants(
        layout=_layouts(machine, [tuple(row) for row in rows]),
        weight=_array(alternatives, lambda g: g.share_weight),
        limit_cores=_array(alternatives, lambda g: g.limit_cores),
        memory_bytes=_array(alternatives, lambda g: g.memory_bytes),
        protected_bytes=_array(alternatives, lambda g: g.protected_bytes),
        mask=_masks(machine, [[g.masks for g in row] for row in alternatives]),
        core_limit=_limits(machine, [[g.mba_pct for g in row] for row in alternatives]),
        disk_cap=_array(alternatives, lambda g: g.disk_bytes_per_s),
        net_cap=_array(alternatives, lambda g: g.net_bytes_per_s),
    )


def product(
    machine: Machine,
    base: Sequence[Grant],
    *,
    cpus: Sequence[Sequence[CpuSet]] = (),
    masks: Sequence[Sequence[int]] = (),
    mba_pct: Sequence[Sequence[int]] = (),
) -> tuple[Grants, npt.NDArray[np.int64]]:
    """All combinations of CPU divisions, cache divisions and throttle levels, the rest as in ``base``.

    Each element of ``cpus``, ``masks``, ``mba_pct`` has one value per workload (a mask or level holds for every
    domain); an empty sequence leaves that dimension as in ``base``. Returns the grants, and for every row the
    indices into ``cpus``, ``masks`` and ``mba_pct``.
    """
    cpu_rows = [tuple((c & machine.online) or machine.online for c in row) for row in cpus] or [
        tuple((g.cpus & machine.online) or machine.online for g in base)
    ]
    mask_rows = [[(mask,) * machine.sockets for mask in row] for row in masks] or [[g.masks for g in base]]
    mba_rows = [[(level,) * machine.sockets for level in row] for row in mba_pct] or [
        [g.mba_pct for g in base]
    ]
    index = np.array(
        list(itertools.product(range(len(cpu_rows)), range(len(mask_rows)), range(len(mba_rows)))),
        dtype=np.int64,
    )
    one = grants(machine, [base])
    layout, mask, limit = _layouts(machine, cpu_rows), _masks(machine, mask_rows), _limits(machine, mba_rows)
    c, m, l = index[:, 0], index[:, 1], index[:, 2]  # noqa: E741
    rows = len(index)

    def repeat(values: Array) -> Array:
        return np.repeat(values, rows, axis=0)

    return (
        Grants(
            layout=CpuLayout(
                layout.size[c], layout.member[c], layout.domain[c], layout.sibling[c], layout.cpus[c]
            ),
            weight=repeat(one.weight),
            limit_cores=repeat(one.limit_cores),
            memory_bytes=repeat(one.memory_bytes),
            protected_bytes=repeat(one.protected_bytes),
            mask=mask[m],
            core_limit=limit[l],
            disk_cap=repeat(one.disk_cap),
            net_cap=repeat(one.net_cap),
        ),
        index,
    )


def _array(alternatives: Sequence[Sequence[Grant]], value: Callable[[Grant], float]) -> Array:
    return np.array([[value(grant) for grant in row] for row in alternatives], dtype=float)


def _layouts(machine: Machine, rows: Sequence[tuple[CpuSet, ...]]) -> CpuLayout:
    parts = [_layout(machine, row) for row in rows]
    most = max(len(part[0]) for part in parts)
    workloads = len(rows[0])
    batch = len(rows)
    size = np.zeros((batch, most))
    member = np.zeros((batch, workloads, most))
    domain = np.zeros((batch, most, machine.sockets))
    sibling = np.zeros((batch, most, most))
    for b, (classes, sizes, members, domains, siblings) in enumerate(parts):
        k = len(classes)
        size[b, :k], member[b, :, :k], domain[b, :k], sibling[b, :k, :k] = sizes, members, domains, siblings
    cpus = np.array([[float(len(c)) for c in row] for row in rows])
    return CpuLayout(size, member, domain, sibling, cpus)


def _masks(machine: Machine, rows: Sequence[Sequence[tuple[int, ...]]]) -> Array:
    ways = np.arange(machine.llc_ways)
    full = (machine.full_mask,) * machine.sockets
    bits = np.array([[masks or full for masks in row] for row in rows], dtype=np.int64)
    return np.asarray((bits[..., None] >> ways) & 1, dtype=float)


def _limits(machine: Machine, rows: Sequence[Sequence[tuple[int, ...]]]) -> Array:
    full = (100,) * machine.sockets
    table = {level: machine.core_limit_bytes_per_s(level) for level in range(1, 101)}
    return np.array([[[table[level] for level in (levels or full)] for levels in row] for row in rows])
