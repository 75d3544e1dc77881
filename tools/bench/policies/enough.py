"""Checks that chosen settings are just enough: every actuator one step less and one step more, without noise.

A step is a unit of the lattice that the policy itself searches: a core of batch (of each LRA, if LRAs have their own
cores), batch's weight, a way of the cache, a level of the throttle, the protection of memory as a whole. The chosen
settings are those longest in force in the last seconds with batch and without changes.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from perphd.admission.arbiter.arbitration import batch_cpus
from perphd.admission.arbiter.placement import place
from perphd.admission.inference.inferer import WEIGHTS, core_steps
from perphd.admission.inference.ladder import batch_mask
from perphd.domain.allocation import KEEP, UNTOUCHED, Settings, Weight
from perphd.domain.cpuset import CpuSet
from perphd.domain.policy import Snapshot, TargetState
from perphd.domain.topology import Topology
from perphd.sim.node.model import Node
from tools.bench.policies import measure, oracle
from tools.bench.policies.driver import Run
from tools.bench.policies.oracle import Situation
from tools.bench.policies.scene import GRACE, Scenario
from tools.bench.policies.world import grant_of

SETTLED_S: Final = 40.0
"""Length of the final period in seconds. The settings longest in force in it count as chosen."""
WORTH: Final = 0.05
"""Least relative gain of batch or the LRA for a step to be worthwhile."""
WANTED: Final = 0.80
"""Wanted share of settings without a superfluous step."""

Row = dict[str, Settings]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The chosen settings with one step in one dimension. ``less``: less protection of ``lra`` ("" for all of them).

    ``score``: the worst LRA's score, ``work``: the LRAs' mean rate, ``batch``: batch's work, each with the step;
    ``score_here``, ``work_here``, ``batch_here``: the same without the step. ``chosen``, ``step``: the dimension's
    values in words.
    """

    scenario: str
    family: str
    policy: str
    seed: int
    dimension: str
    lra: str
    less: bool
    chosen: str
    step: str
    score: float
    score_here: float
    work: float
    work_here: float
    batch: float
    batch_here: float

    @property
    def met(self) -> bool:
        """True if the chosen settings meet all targets, within the grace."""
        return self.score_here >= 1.0 / GRACE

    @property
    def needed(self) -> bool:
        """True if some LRA is below its target without the step."""
        return self.score < 1.0

    @property
    def batch_gain(self) -> float:
        """Relative gain of batch."""
        return self.batch / max(self.batch_here, 1e-9) - 1.0

    @property
    def work_gain(self) -> float:
        """Relative gain of the LRAs."""
        return self.work / max(self.work_here, 1e-9) - 1.0

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Neighbour:
        """The inverse of ``as_dict``."""
        return cls(**{f.name: data[f.name] for f in fields(cls)})


@dataclass(slots=True)
class Watcher:
    """Records a policy's settings in force in every round (``driver.run``'s ``watch``)."""

    seen: list[tuple[float, tuple[tuple[str, Settings], ...]]] = field(default_factory=list)

    def __call__(self, snapshot: Snapshot, target: TargetState) -> None:
        """Record a round."""
        self.seen.append((snapshot.at_s, tuple(sorted(target.settings.items()))))

    def chosen(self, run: Run) -> tuple[Situation, Row] | None:
        """The last situation with batch, and the settings longest in force in its last seconds; None without batch."""
        scenario = run.scenario
        here: Situation | None = None
        counts: Counter[tuple[tuple[str, Settings], ...]] = Counter()
        last_s = 0.0
        for at_s, in_force in reversed(self.seen):
            gone = frozenset(n for n, end_s in run.finished_s.items() if end_s <= at_s)
            found = measure.situation_at(scenario, at_s - 0.05, gone)
            if here is None:
                if not (found.batch and found.lras):
                    continue
                here, last_s = found, at_s
            if found.key != here.key or at_s <= last_s - SETTLED_S:
                break
            counts[in_force] += 1
        if here is None:
            return None
        return here, dict(counts.most_common(1)[0][0])


def steps_of(run: Run, watcher: Watcher) -> list[Neighbour]:
    """Every neighbour of a run's chosen settings."""
    found = watcher.chosen(run)
    return neighbours(run.scenario, run.policy, run.seed, *found) if found is not None else []


@dataclass(frozen=True, slots=True)
class _Variant:
    dimension: str
    lra: str
    less: bool
    chosen: str
    step: str
    row: Row


def neighbours(scenario: Scenario, policy: str, seed: int, here: Situation, chosen: Row) -> list[Neighbour]:
    """Every single step away from ``chosen``, judged on the node model without noise."""
    names = [work.name for work in here.works]
    row = {name: chosen.get(name, UNTOUCHED) for name in names}
    variants = list(_variants(here, row))
    if not variants:
        return []
    rows = [[grant_of(here.machine, r[name]) for name in names] for r in (row, *(v.row for v in variants))]
    told = Node(here.machine, here.works).solve(rows, here.loads)
    score, batch = oracle.scores(here, told), oracle.batch_work(here, told.work_per_s)
    work = told.work_per_s[:, here.lras].mean(1)
    return [
        Neighbour(
            scenario.name, scenario.family, policy, seed, v.dimension, v.lra, v.less, v.chosen, v.step,
            float(score[i]), float(score[0]), float(work[i]), float(work[0]), float(batch[i]), float(batch[0]),
        )
        for i, v in enumerate(variants, 1)
    ]  # fmt: skip


def _variants(here: Situation, row: Row) -> Iterable[_Variant]:
    topology = here.machine.topology()
    lras = [here.works[i].name for i in here.lras]
    batch = [here.works[i].name for i in here.batch]
    cpus = {name: row[name].cpus for name in lras}
    own = [c for c in cpus.values() if c is not KEEP]
    apart = len(own) > 1 and not any(a & b for i, a in enumerate(own) for b in own[:i])
    if apart:
        yield from _own_cores(topology, row, lras, batch)
    else:
        yield from _shared_cores(topology, row, lras, batch)
    if not own:  # otherwise no LRA shares a CPU with batch
        yield from _weights(topology, row, batch)
    yield from _ways(here, topology, row, batch)
    yield from _throttles(here, topology, row, batch)
    yield from _memory(row, lras, batch)


def _count(topology: Topology, cpus: CpuSet) -> int:
    return sum(1 for core in topology.usable_cores if core.cpus & cpus)


def _shared_cores(topology: Topology, row: Row, lras: list[str], batch: list[str]) -> Iterable[_Variant]:
    now = row[batch[0]].cpus
    total = len(topology.usable_cores)
    count = total if now is KEEP else _count(topology, now)
    exclusive = any(row[name].cpus is not KEEP for name in lras)
    lattice = sorted({*core_steps(total, 1), count})
    place_ = lattice.index(count)
    for less, other in ((True, place_ + 1), (False, place_ - 1)):
        if not 0 <= other < len(lattice) or (exclusive and lattice[other] == total):
            continue
        theirs = batch_cpus(topology, lattice[other])
        changed = dict(row)
        for name in batch:
            changed[name] = replace(row[name], cpus=theirs)
        for name in lras:
            if row[name].cpus is not KEEP:
                changed[name] = replace(row[name], cpus=topology.usable - theirs)
        kind = "cores, exclusive" if exclusive else "cores, shared"
        yield _Variant(kind, "", less, f"batch on {count}", f"batch on {lattice[other]}", changed)


def _own_cores(topology: Topology, row: Row, lras: list[str], batch: list[str]) -> Iterable[_Variant]:
    every = topology.usable_cores
    before: dict[str, tuple[int, ...]] = {}
    for name in lras:
        cpus = row[name].cpus
        if cpus is not KEEP:
            before[name] = tuple(i for i, core in enumerate(every) if core.cpus & cpus)
    room = len(every) - sum(len(cores) for cores in before.values())
    for name, cores in before.items():
        for less, count in ((True, len(cores) - 1), (False, len(cores) + 1)):
            if count < 1 or (not less and room <= 1):
                continue
            placed = place(topology, {n: count if n == name else len(c) for n, c in before.items()}, before)
            changed, rest = dict(row), topology.usable
            for lra, theirs in placed.items():
                cpus = topology.cpus_of(tuple(every[i] for i in theirs))
                changed[lra] = replace(row[lra], cpus=cpus)
                rest = rest - cpus
            for job in batch:
                changed[job] = replace(row[job], cpus=rest)
            yield _Variant("own cores", name, less, str(len(cores)), str(count), changed)


def _weights(topology: Topology, row: Row, batch: list[str]) -> Iterable[_Variant]:
    now = row[batch[0]].cpu_weight
    weight: Weight = 100 if now is KEEP else now
    siblings = len(topology.usable) > len(topology.usable_cores)
    lattice = [w for w in WEIGHTS if w in (WEIGHTS[0], WEIGHTS[-1], weight) or not siblings]
    if weight not in lattice:
        return
    at = lattice.index(weight)
    for less, other in ((True, at + 1), (False, at - 1)):
        if 0 <= other < len(lattice):
            changed = row | {name: replace(row[name], cpu_weight=lattice[other]) for name in batch}
            yield _Variant("weight", "", less, _word(weight), _word(lattice[other]), changed)


def _word(weight: Weight) -> str:
    return str(getattr(weight, "value", weight))


def _ways(here: Situation, topology: Topology, row: Row, batch: list[str]) -> Iterable[_Variant]:
    ways = here.machine.llc_ways
    has = {name: _ways_of(row[name], ways) for name in batch}
    # Restrictions of a single job benefit other batch and protect no LRA.
    count = max(has.values())
    domains = [d.domain for d in topology.l3_domains]
    for less, other in ((True, count + 1), (False, count - 1)):
        if 1 <= other <= ways:
            masks = tuple((d, batch_mask(other, ways)) for d in domains)
            changed = row | {n: replace(row[n], llc_masks=masks) for n in batch if has[n] == count}
            yield _Variant("cache ways", "", less, f"batch has {count}", f"batch has {other}", changed)


def _ways_of(settings: Settings, ways: int) -> int:
    return ways if settings.llc_masks is KEEP else settings.llc_masks[0][1].bit_count()


def _throttles(here: Situation, topology: Topology, row: Row, batch: list[str]) -> Iterable[_Variant]:
    now, levels = row[batch[0]].mba_pct, sorted(here.machine.mba_levels_pct)
    level = 100 if now is KEEP else now[0][1]
    if level not in levels:
        return
    domains = [d.domain for d in topology.l3_domains]
    at = levels.index(level)
    for less, other in ((True, at + 1), (False, at - 1)):
        if 0 <= other < len(levels):
            pcts = tuple((d, levels[other]) for d in domains)
            changed = row | {name: replace(row[name], mba_pct=pcts) for name in batch}
            yield _Variant("bandwidth", "", less, f"{level} %", f"{levels[other]} %", changed)


def _memory(row: Row, lras: list[str], batch: list[str]) -> Iterable[_Variant]:
    for name in lras:
        if row[name].memory_low_bytes is KEEP:
            continue
        changed = row | {name: replace(row[name], memory_low_bytes=KEEP)}
        if all(row[other].memory_low_bytes is KEEP for other in lras if other != name):
            changed |= {job: replace(row[job], memory_high_bytes=KEEP) for job in batch}
        yield _Variant("memory", name, True, "protected", "not protected", changed)


# -- the report ---------------------------------------------------------------------------------------------


def section(found: Sequence[Neighbour]) -> list[str]:
    """Markdown: the number of superfluous steps, their margin, and the gain of one more step."""
    lines: list[str] = []
    for policy in dict.fromkeys(n.policy for n in found):
        mine = [n for n in found if n.policy == policy]
        lines += [*_less(policy, mine), *_more(policy, mine), *_spared(mine)]
    return ["## Just enough?", "", *lines] if lines else []


def _runs(some: Iterable[Neighbour]) -> int:
    return len({(n.scenario, n.seed) for n in some})


def _less(policy: str, mine: Sequence[Neighbour]) -> list[str]:
    less = [n for n in mine if n.less]
    met = [n for n in less if n.met]
    lines = [
        f"{policy}: one step less of what was settled on, noise-free, in {_runs(less)} runs with something to take; "
        f"{_runs(less) - _runs(met)} of them are left out, in which the target is missed as it is. *Needed*: without "
        f"the step some LRA is below its target. *Idle*: it is not, but batch would win less than {WORTH:.0%}. "
        "*Margin*: how far above the target it stays without the step, where it is not needed (median, most).",
        "",
        "| dimension | steps | needed | needed or idle | margin where not needed | batch would win (median) |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    by_dimension: dict[str, list[Neighbour]] = defaultdict(list)
    for item in met:
        by_dimension[item.dimension].append(item)
    for name, some in [*by_dimension.items(), ("**all**", met)]:
        if not some:
            continue
        spare = [n for n in some if not n.needed]
        idle = [n for n in spare if n.batch_gain < WORTH]
        needed = len(some) - len(spare)
        margins = [n.score - 1.0 for n in spare]
        margin = f"{statistics.median(margins):.0%}, {max(margins):.0%}" if margins else "-"
        gain = f"{statistics.median(n.batch_gain for n in spare):.1%}" if spare else "-"
        lines.append(
            f"| {name} | {len(some)} | {needed / len(some):.0%} | {(needed + len(idle)) / len(some):.0%} "
            f"| {margin} | {gain} |"
        )
    if met:
        share = sum(n.needed for n in met) / len(met)
        lines += ["", f"{share:.0%} of {len(met)} steps cannot be spared; wanted: {WANTED:.0%}."]
    return [*lines, ""]


def _more(policy: str, mine: Sequence[Neighbour]) -> list[str]:
    more = [n for n in mine if not n.less and n.met]
    if not more:
        return []
    little = sum(n.work_gain < WORTH for n in more)
    gains = sorted(n.work_gain for n in more)
    most = max(more, key=lambda n: n.work_gain)
    return [
        f"One step more: {little / len(more):.0%} of {len(more)} neighbours give the LRAs less than {WORTH:.0%} more "
        f"work (median {statistics.median(gains):.1%}, most {most.work_gain:.1%}: {most.scenario}, {most.dimension}).",
        "",
    ]


def _spared(mine: Sequence[Neighbour], shown: int = 12) -> list[str]:
    """The steps with the largest gains for batch."""
    spare = [n for n in mine if n.less and n.met and not n.needed and n.batch_gain >= WORTH]
    if not spare:
        return []
    spare.sort(key=lambda n: -n.batch_gain)
    lines = [
        "Spared steps that would give batch most:",
        "",
        "| scenario | seed | dimension | chosen | one step less | score | batch wins |",
        "| --- | ---: | --- | --- | --- | ---: | ---: |",
    ]
    lines += [
        f"| {n.scenario} | {n.seed} | {n.dimension}{f' of {n.lra}' if n.lra else ''} | {n.chosen} | {n.step} "
        f"| {n.score_here:.2f} -> {n.score:.2f} | {n.batch_gain:.0%} |"
        for n in spare[:shown]
        if math.isfinite(n.score)
    ]
    return [*lines, ""]
