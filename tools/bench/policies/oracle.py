"""ORACLE: the best setting of the actuators, found by search on the noise-free node model.

The best result of four lattices counts. *Shared*: batch on the last k cores at some weight, or on cores of its
own, with some ways and some throttle, equal in all domains; every combination is computed. *Own cores* (several LRAs):
each LRA on the fewest exclusive cores that suffice with some margin, batch on the rest, with every number of ways and
every throttle. *Lent cores*: the LRAs divide all cores among themselves, and idle batch is a guest on the last few of
them. *Parts* (CLITE's space): disjoint cores and ways for every workload. Here other workloads can only do harm, so the
performance of a workload alone with a part is an upper bound. Parts with which an LRA misses its target alone are
skipped, and the rest is computed from the greatest bound downwards until no better result is possible.

"Best": every target met, then batch's work greatest; if no setting meets all targets, the worst LRA's score greatest.
A target is met at a score of 1: the optimum may not use the grace with which misses are counted (``scene.GRACE``).
Batch's work is the mean over batch workloads of rate / rate alone on the whole machine.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from perphd.admission.inference.inferer import WEIGHTS, core_steps
from perphd.domain.allocation import IDLE
from perphd.domain.cpuset import CpuSet
from perphd.sim.node.grant import Grant, product
from perphd.sim.node.machine import Machine
from perphd.sim.node.model import Node
from perphd.sim.node.outcome import Outcomes
from perphd.sim.node.workload import NodeWorkload
from tools.bench.policies.scene import Actor, Goal

Array = npt.NDArray[np.float64]
MET: Final = 1.0 - 1e-6
"""Score from which a target counts as met."""
_BIG: Final = 8
"""Number of workloads from which the shared lattice is thinned out, because an answer then costs milliseconds; the
optimum is then not exact.
"""
_CHUNK: Final = 192
_MARGINS: Final = (0.0, 0.05, 0.1, 0.2, 0.4)
"""Margin above the target, alone, for LRAs on exclusive cores, because neighbours reduce performance."""
_MOST_DIVISIONS: Final = 500
"""Maximum number of divisions of all cores among the LRAs; beyond it, lending cores is not considered."""
_MOST_LOOKS: Final = 6000
"""Maximum number of divisions of the parts' lattice that are computed if no target can be met."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The present workloads, their load factors and their goals.

    ``undeclared``: indices of workloads that cannot be set: they stay on all CPUs at the default weight.
    """

    machine: Machine
    works: tuple[NodeWorkload, ...]
    loads: tuple[float, ...]
    goals: tuple[Goal | None, ...]
    undeclared: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """The same text for the same situation, on any machine."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:20]

    @property
    def lras(self) -> list[int]:
        """Indices of the LRAs."""
        return [i for i, work in enumerate(self.works) if work.requests is not None]

    @property
    def batch(self) -> list[int]:
        """Indices of batch that can be set, and whose work counts."""
        return [i for i, w in enumerate(self.works) if w.requests is None and i not in self.undeclared]


Packed = tuple[str, int, int, int]
"""A grant in short: CPUs as a list, cpu.weight (0: cpu.idle), cache mask and throttle level of every domain."""


def packed(grant: Grant, machine: Machine) -> Packed:
    """The varied parts of a grant, stored with an optimum."""
    return (
        str(grant.cpus or machine.online),
        0 if grant.idle else round(grant.weight),
        grant.masks[0] if grant.masks else machine.full_mask,
        grant.mba_pct[0] if grant.mba_pct else 100,
    )


@dataclass(frozen=True, slots=True)
class Optimum:
    """``work``: batch's work at the best setting (0 if no target can be met); ``score``: the worst LRA's score there.

    ``how``: the setting in words; ``looks``: number of computed alternatives. ``row``: the setting of every workload,
    as ``packed``. ``one_class``: batch's work at the best setting in which all batch is one class (0: none, or not
    computed), which bounds policies that do not distinguish batch jobs.
    """

    feasible: bool
    work: float
    score: float
    how: str
    looks: int
    row: Sequence[Packed] = ()
    one_class: float = 0.0

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def situation(machine: Machine, actors: Sequence[tuple[Actor, NodeWorkload, float]]) -> Situation:
    """The present workload of each of these actors, and the factor on its load."""
    return Situation(
        machine,
        tuple(work for _, work, _ in actors),
        tuple(round(load, 3) for _, _, load in actors),
        tuple(actor.goal for actor, _, _ in actors),
        tuple(place for place, (actor, _, _) in enumerate(actors) if not actor.declared),
    )


def alone_rate(machine: Machine, work: NodeWorkload, load: float = 1.0) -> float:
    """Operations per second of a workload alone on the machine."""
    return float(Node(machine, [work]).solve([[Grant()]], [load]).work_per_s[0, 0])


def batch_work(here: Situation, rates: Array) -> Array:
    """Mean of rate / rate alone over batch, for rates [B,W]; 0 without batch."""
    if not here.batch:
        return np.zeros(len(rates))
    parts = [rates[:, i] / alone_rate(here.machine, here.works[i], here.loads[i]) for i in here.batch]
    total: Array = np.mean(parts, axis=0)
    return total


def scores(here: Situation, told: Outcomes) -> Array:
    """The worst LRA's score, [B]."""
    worst = np.full(len(told.work_per_s), np.inf)
    for i in here.lras:
        goal = here.goals[i]
        if goal is None:
            continue
        found = [
            goal.score(float(w), float(p))
            for w, p in zip(told.work_per_s[:, i], told.p95_ms[:, i], strict=True)
        ]
        worst = np.minimum(worst, found)
    return worst


def best(here: Situation, *, parts: bool = False) -> Optimum:
    """The optimum. ``parts``: also search disjoint parts for every workload, if no workload is undeclared."""
    found = shared(here)
    if len(here.lras) > 1 and here.batch:
        found = _better(_better(found, own_cores(here)), lent_cores(here))
    one_class = found.work
    if parts and len(here.works) > 1 and not here.undeclared:
        divided = partitioned(here)
        one_class = max(one_class, divided.work if len(here.batch) == 1 else 0.0)
        found = _better(found, divided)
    return replace(found, one_class=one_class)


def _better(one: Optimum, other: Optimum) -> Optimum:
    winner = max((one, other), key=lambda o: (o.feasible, o.work if o.feasible else o.score))
    return replace(winner, looks=one.looks + other.looks)


# -- shared cores -------------------------------------------------------------------------------------


def shared(here: Situation) -> Optimum:
    """Every setting with batch as one class and the LRAs as another."""
    machine = here.machine
    if not here.batch:
        told = Node(machine, here.works).solve([[Grant()] * len(here.works)], here.loads)
        worst = float(scores(here, told)[0])
        row = [packed(Grant(), machine) for _ in here.works]
        return Optimum(worst >= MET, 0.0, worst, "nothing is to be divided", 1, row)
    node = Node(machine, here.works)
    thin = len(here.works) >= _BIG
    ways = machine.llc_ways
    kept = range(0, ways, 4) if thin else range(ways)
    levels = (10, 30, 60, 100) if thin else machine.mba_levels_pct
    lras, free = set(here.lras), set(here.undeclared)
    masks: list[tuple[int, ...]] = []
    told_masks: list[str] = []
    for keep in kept:
        theirs = ((1 << (ways - keep)) - 1) << keep
        for own in (machine.full_mask, (1 << keep) - 1):
            if own == 0 or (own != machine.full_mask and (keep == 0 or thin)):
                continue
            masks.append(
                tuple(
                    machine.full_mask if i in free else own if i in lras else theirs
                    for i in range(len(here.works))
                )
            )
            told_masks.append(
                f"batch in {ways - keep} ways" + ("" if own == machine.full_mask else ", LRAs in the others")
            )
    throttles = [tuple(level if i in here.batch else 100 for i in range(len(here.works))) for level in levels]
    champion = Optimum(False, 0.0, -1.0, "", 0)
    total = machine.cores
    weights = WEIGHTS[::2] if thin else WEIGHTS
    for exclusive, weight in [(False, w) for w in weights] + [(True, WEIGHTS[-1])]:
        base = [
            Grant()
            if i not in here.batch
            else Grant(idle=weight is IDLE, weight=100.0 if weight is IDLE else float(weight))
            for i in range(len(here.works))
        ]
        counts = [k for k in core_steps(total, 1)[:: 2 if thin else 1] if not (exclusive and k == total)]
        rows = []
        for k in counts:
            room = machine.first_cores(k, total - k)
            ours = machine.online - room if exclusive else machine.online
            rows.append(
                [machine.online if i in free else ours if i in lras else room for i in range(len(here.works))]
            )
        mine, (c, m, t) = _best_of(here, node, base, rows, masks, throttles)
        kind = (
            "cores of its own"
            if exclusive
            else f"shared cores at weight {weight if weight is not IDLE else 'idle'}"
        )
        how = f"batch on {counts[c]}/{total} {kind}, {told_masks[m]}, throttle {levels[t]} %"
        champion = _better(champion, replace(mine, how=how))
    return champion


def _best_of(
    here: Situation,
    node: Node,
    base: Sequence[Grant],
    cpus: Sequence[Sequence[CpuSet]],
    masks: Sequence[tuple[int, ...]],
    throttles: Sequence[tuple[int, ...]],
) -> tuple[Optimum, tuple[int, int, int]]:
    """The best of all combinations of these, each a row for all workloads, and its indices in the three lists."""
    table, index = product(here.machine, base, cpus=cpus, masks=masks, mba_pct=throttles)
    told = node.solve(table, here.loads, chunk=_CHUNK)
    score, done = scores(here, told), batch_work(here, told.work_per_s)
    at, feasible = _pick(score, done)
    c, m, t = (int(v) for v in index[at])
    chosen = [
        replace(grant, cpus=cpus[c][i], masks=(masks[m][i],), mba_pct=(throttles[t][i],))
        for i, grant in enumerate(base)
    ]
    kept = [packed(grant, here.machine) for grant in chosen]
    work = float(done[at]) if feasible else 0.0
    return Optimum(feasible, work, float(score[at]), "", table.count, kept), (c, m, t)


def _pick(worst: Array, done: Array) -> tuple[int, bool]:
    good = worst >= MET
    if good.any():
        return int(np.where(good, done, -1.0).argmax()), True
    return int(worst.argmax()), False


# -- own cores ---------------------------------------------------------------------------------------


def own_cores(here: Situation) -> Optimum:
    """Every LRA on the fewest own cores that suffice alone with some margin, batch as one class on the rest."""
    machine, names = here.machine, range(len(here.works))
    champion = Optimum(False, 0.0, -1.0, "more is needed than there is", 0)
    reach = _reach(here)
    node, ways = Node(machine, here.works), machine.llc_ways
    for margin in _MARGINS:
        counts = {i: 1 + int(np.argmax(reach[i] >= (1.0 + margin) * MET)) for i in here.lras}
        short = any((reach[i] < (1.0 + margin) * MET).all() for i in here.lras)
        if short or sum(counts.values()) >= machine.cores:
            continue
        row, core = {}, 0
        for i, count in counts.items():
            row[i] = machine.first_cores(count, core)
            core += count
        rest = machine.first_cores(machine.cores - core, core)
        masks = [
            tuple(((1 << k) - 1) << (ways - k) if i in here.batch else machine.full_mask for i in names)
            for k in range(1, ways + 1)
        ]
        levels = [tuple(v if i in here.batch else 100 for i in names) for v in machine.mba_levels_pct]
        cpus = [[machine.online if i in here.undeclared else row.get(i, rest) for i in names]]
        mine, (_, m, t) = _best_of(here, node, [Grant()] * len(here.works), cpus, masks, levels)
        how = (
            f"LRAs on cores of their own ({'/'.join(map(str, counts.values()))}), batch on "
            f"{machine.cores - core} in {m + 1} ways, throttle {machine.mba_levels_pct[t]} %"
        )
        champion = _better(champion, replace(mine, how=how))
    return champion


def _reach(here: Situation) -> dict[int, Array]:
    """By LRA: its score alone, by number of cores (the first value is for one core)."""
    machine, reach = here.machine, {}
    room = range(1, min(machine.cores, 32) + 1)
    for i in here.lras:
        goal = here.goals[i]
        told = Node(machine, [here.works[i]]).solve(
            [[Grant(cpus=machine.first_cores(c))] for c in room], [here.loads[i]]
        )
        pairs = zip(told.work_per_s[:, 0], told.p95_ms[:, 0], strict=True)
        reach[i] = np.array(
            [goal.score(float(w), float(p)) if goal is not None else np.inf for w, p in pairs]
        )
    return reach


def lent_cores(here: Situation) -> Optimum:
    """All cores divided among the LRAs, with batch as one idle class on the last of them: no LRA has its cores to
    itself.
    """
    machine, names = here.machine, range(len(here.works))
    champion = Optimum(False, 0.0, -1.0, "no division suffices for somebody even alone", 0)
    if math.comb(machine.cores - 1, len(here.lras) - 1) > _MOST_DIVISIONS:
        return champion
    reach, node, ways = _reach(here), Node(machine, here.works), machine.llc_ways
    lras = set(here.lras)
    masks = [
        tuple(((1 << k) - 1) << (ways - k) if i in here.batch else machine.full_mask for i in names)
        for k in range(1, ways + 1)
    ]
    levels = [tuple(v if i in here.batch else 100 for i in names) for v in machine.mba_levels_pct]
    base = [Grant(idle=i in here.batch) for i in names]
    for counts in compositions(machine.cores, len(lras)):
        if any(reach[i][min(c, 32) - 1] < MET for i, c in zip(here.lras, counts, strict=True)):
            continue
        own, core = {}, 0
        for i, count in zip(here.lras, counts, strict=True):
            own[i] = machine.first_cores(count, core)
            core += count
        guests = range(1, machine.cores // 2 + 1)
        rows = [
            [
                machine.online
                if i in here.undeclared
                else own.get(i, machine.first_cores(k, machine.cores - k))
                for i in names
            ]
            for k in guests
        ]
        mine, (c, m, t) = _best_of(here, node, base, rows, masks, levels)
        how = (
            f"all cores divided among the LRAs ({'/'.join(map(str, counts))}), batch idle on the last {guests[c]} "
            f"of them in {m + 1} ways, throttle {machine.mba_levels_pct[t]} %"
        )
        champion = _better(champion, replace(mine, how=how))
    return champion


# -- disjoint parts -----------------------------------------------------------------------------------


def compositions(units: int, count: int) -> Iterator[tuple[int, ...]]:
    """All ways to divide units among this many, at least one each."""
    for cuts in itertools.combinations(range(1, units), count - 1):
        edges = (0, *cuts, units)
        yield tuple(b - a for a, b in itertools.pairwise(edges))


def partitioned(here: Situation) -> Optimum:
    """Disjoint cores and ways for every workload, one throttle for batch; by branch and bound."""
    machine, count = here.machine, len(here.works)
    cores, ways = machine.cores, machine.llc_ways
    if cores < count or ways < count:
        return Optimum(False, 0.0, -1.0, "more workloads than units", 0)
    most = cores - count + 1, ways - count + 1
    table = [
        [Grant(cpus=machine.first_cores(c), masks=((1 << w) - 1,) * machine.sockets)]
        for c in range(1, most[0] + 1)
        for w in range(1, most[1] + 1)
    ]
    shape = (most[0], most[1])
    looks = 0
    alone: list[Array] = []
    for i, work in enumerate(here.works):
        told = Node(machine, [work]).solve(table, [here.loads[i]])
        looks += len(table)
        goal = here.goals[i]
        if goal is not None:
            found = [
                goal.score(float(w), float(p))
                for w, p in zip(told.work_per_s[:, 0], told.p95_ms[:, 0], strict=True)
            ]
            alone.append(np.array(found).reshape(shape))
        elif work.requests is None:
            alone.append((told.work_per_s[:, 0] / alone_rate(machine, work, here.loads[i])).reshape(shape))
        else:
            alone.append(np.full(shape, np.inf))
    core_rows = np.array(list(compositions(cores, count))) - 1
    way_rows = np.array(list(compositions(ways, count))) - 1
    c = np.repeat(np.arange(len(core_rows)), len(way_rows))
    w = np.tile(np.arange(len(way_rows)), len(core_rows))
    reach = [alone[i][core_rows[c, i], way_rows[w, i]] for i in range(count)]
    worst = np.min([reach[i] for i in here.lras], axis=0) if here.lras else np.full(len(c), np.inf)
    bound = np.mean([reach[i] for i in here.batch], axis=0) if here.batch else worst
    good = np.flatnonzero(worst >= MET)
    if not len(good):
        return Optimum(False, 0.0, float(worst.max()), "no part suffices for somebody even alone", looks)
    order = good[np.argsort(-bound[good], kind="stable")]
    node = Node(machine, here.works)
    levels = tuple(reversed(machine.mba_levels_pct)) if here.batch else (100,)
    champion = Optimum(False, 0.0, -1.0, "", 0)
    looked = 0
    step = max(1, _CHUNK // len(levels))
    for start in range(0, len(order), step):
        rows = order[start : start + step]
        if champion.feasible and (not here.batch or champion.work >= float(bound[rows[0]]) - 1e-9):
            break
        if looked >= _MOST_LOOKS * len(levels):
            break
        grants_rows = [
            _parts(here, core_rows[c[row]] + 1, way_rows[w[row]] + 1, level)
            for row in rows
            for level in levels
        ]
        told = node.solve(grants_rows, here.loads, chunk=_CHUNK)
        looked += len(grants_rows)
        score, done = scores(here, told), batch_work(here, told.work_per_s)
        at, feasible = _pick(score, done)
        row, level = rows[at // len(levels)], levels[at % len(levels)]
        how = (
            f"parts: cores {'/'.join(map(str, core_rows[c[row]] + 1))}, "
            f"ways {'/'.join(map(str, way_rows[w[row]] + 1))}, batch's throttle {level} %"
        )
        kept = [packed(grant, machine) for grant in grants_rows[at]]
        mine = Optimum(feasible, float(done[at]) if feasible else 0.0, float(score[at]), how, 0, kept)
        champion = max((champion, mine), key=lambda o: (o.feasible, o.work if o.feasible else o.score))
    return replace(champion, looks=looks + looked)


def _parts(here: Situation, cores: Sequence[int], ways: Sequence[int], level: int) -> list[Grant]:
    machine, row = here.machine, []
    core = way = 0
    for i in range(len(here.works)):
        mask = ((1 << int(ways[i])) - 1) << way
        cpus: CpuSet = machine.first_cores(int(cores[i]), core)
        throttle = (level,) * machine.sockets if here.works[i].requests is None else ()
        row.append(Grant(cpus=cpus, masks=(mask,) * machine.sockets, mba_pct=throttle))
        core, way = core + int(cores[i]), way + int(ways[i])
    return row
