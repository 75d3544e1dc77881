"""The paper's effectiveness check: it varies one dimension around the chosen settings, without noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from perphd.admission.arbiter.arbitration import batch_cpus
from perphd.admission.inference.inferer import WEIGHTS
from perphd.admission.inference.ladder import batch_mask
from perphd.domain.allocation import KEEP, UNTOUCHED, Settings
from perphd.sim.node.model import Node
from tools.bench.policies import measure, oracle
from tools.bench.policies.scene import Scenario
from tools.bench.policies.world import grant_of

REACH = 3
"""Number of units examined on either side."""


@dataclass(frozen=True, slots=True)
class Point:
    """The worst LRA's score and batch's work with ``dimension`` at ``value`` and the rest as chosen."""

    scenario: str
    policy: str
    dimension: str
    value: str
    chosen: bool
    score: float
    batch: float

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def around(scenario: Scenario, policy: str, settings: Mapping[str, Settings]) -> list[Point]:
    """Every neighbour of the settings in force at the end of a run, batch varied as one class."""
    here = measure.situation_at(scenario, scenario.duration_s - 1.0)
    machine, names = scenario.machine, [work.name for work in here.works]
    batch = [here.works[i].name for i in here.batch]
    if not batch:
        return []
    now = settings.get(batch[0], UNTOUCHED)
    topology = machine.topology()
    cores = (
        machine.cores if now.cpus is KEEP else len([c for c in topology.usable_cores if c.cpus & now.cpus])
    )
    ways = machine.llc_ways if now.llc_masks is KEEP else now.llc_masks[0][1].bit_count()
    level = 100 if now.mba_pct is KEEP else now.mba_pct[0][1]
    weight = 100 if now.cpu_weight is KEEP else now.cpu_weight
    apart = any(
        settings.get(work.name, UNTOUCHED).cpus is not KEEP for work in (here.works[i] for i in here.lras)
    )
    domains = [d.domain for d in topology.l3_domains]
    variants: list[tuple[str, str, bool, dict[str, Settings]]] = []

    def add(dimension: str, value: str, chosen: bool, change: Settings, lra: Settings | None = None) -> None:
        row = {name: settings.get(name, UNTOUCHED) for name in names}
        row.update(dict.fromkeys(batch, change))
        if lra is not None:
            row.update({n: replace(row[n], cpus=lra.cpus) for n in names if n not in batch})
        variants.append((dimension, value, chosen, row))

    for count in range(max(1, cores - REACH), min(machine.cores - apart, cores + REACH) + 1):
        theirs = batch_cpus(topology, count)
        lra = Settings(cpus=topology.usable - theirs) if apart else None
        add("batch's cores", str(count), count == cores, replace(now, cpus=theirs), lra)
    for other in WEIGHTS:
        add(
            "batch's weight",
            str(getattr(other, "value", other)),
            other == weight,
            replace(now, cpu_weight=other),
        )
    for count in range(max(1, ways - REACH), min(machine.llc_ways, ways + REACH) + 1):
        mask = batch_mask(count, machine.llc_ways)
        change = replace(now, llc_masks=tuple((d, mask) for d in domains))
        add("batch's ways", str(count), count == ways, change)
    for step in machine.mba_levels_pct:
        change = replace(now, mba_pct=tuple((d, step) for d in domains))
        add("batch's throttle", f"{step} %", step == level, change)
    rows = [[grant_of(machine, row[name]) for name in names] for _, _, _, row in variants]
    told = Node(machine, here.works).solve(rows, here.loads)
    score, done = oracle.scores(here, told), oracle.batch_work(here, told.work_per_s)
    return [
        Point(scenario.name, policy, dimension, value, chosen, float(score[i]), float(done[i]))
        for i, (dimension, value, chosen, _) in enumerate(variants)
    ]
