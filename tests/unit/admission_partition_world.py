"""Several LRAs and batch on a host whose truth is a function: on cores of their own they do not disturb each other."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perphd.admission.arbiter.partition import busy_share
from perphd.admission.perph import PerphPolicy
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import KEEP, Allocation, Settings
from perphd.domain.decision import Action, Decision
from perphd.domain.policy import Band, HostView, ModelContext, Snapshot, WorkloadView
from perphd.domain.reading import Reading
from perphd.domain.sample import Quality, Sample
from perphd.domain.topology import Topology
from perphd.domain.workload import Kind, Objective, WorkloadSpec

KNOBS = frozenset({"cpus", "cpu_weight", "memory_low_bytes", "memory_high_bytes"})
LIMIT_MS = 10.0
WORKING_SET_BYTES = 1 << 30
GUEST_COSTS = 0.3
"""Growth of the demand of an LRA with one core on which batch is an idle guest."""


class NoModel:
    """Knows nothing: targets are absolute."""

    is_closed = False

    def reference(self, signal: str, load: Reading) -> Band | None:
        return None

    def predict_work(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Band, ...]:
        return tuple(Band(1.0, 0.3, 0.0) for _ in allocations)

    predict_delay = predict_work

    def batch_cores(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Band, ...]:
        return tuple(Band(float(a.cpu.batch_cores), 0.1, 1.0) for a in allocations)


@dataclass
class Service:
    """``demand``: hardware threads it keeps busy; it meets its target while its CPUs are less busy than ``knee``."""

    demand: float
    knee: float = 0.6
    priority: int = 100
    present: bool = True
    policy: tuple[tuple[str, float], ...] = ()
    memory_stalls_pct: float = 0.0


@dataclass
class CrowdWorld:
    """``services`` by name, each with a model or none, and one batch job that takes what it can."""

    topology: Topology
    services: dict[str, Service]
    batch: bool = True
    noise: float = 0.03
    seed: int = 1
    settings: PolicySettings = field(default_factory=PolicySettings)
    min_cores: float | None = None
    ways: int = 0
    levels: tuple[int, ...] = ()
    models: Mapping[str, NoModel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.policy = PerphPolicy(self.settings)
        self.random = random.Random(self.seed)
        self.memory: object = None
        self.now_s, self.tick = 0.0, 0
        self.protections: dict[str, tuple[Allocation, float]] = {}
        self.in_force: dict[str, Settings] = {}
        self.newcomer = Settings()
        self.history: list[tuple[Decision, ...]] = []
        self.missed: list[set[str]] = []
        self.threads = len(self.topology.usable) // len(self.topology.usable_cores)

    def step(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self._one()

    def cores(self, name: str) -> int:
        """Physical cores that it may use."""
        cpus = self.in_force.get(name, Settings()).cpus
        return len(self.topology.usable_cores) if cpus is KEEP else len(cpus) // self.threads

    def score(self, name: str) -> float:
        """Noise-free performance over target."""
        service = self.services[name]
        cpus = self.in_force.get(name, Settings()).cpus
        if cpus is KEEP:
            others = sum(s.demand for n, s in self.services.items() if n != name and s.present)
            all_of_it = service.demand + others + (1000.0 if self.batch else 0.0)
            busy = min(busy_share(all_of_it, len(self.topology.usable_cores), self.threads), 1.0)
        else:
            guest = self.in_force.get("pi", Settings()).cpus if self.batch else KEEP
            disturbed = guest is not KEEP and bool(guest & cpus)
            demand = service.demand * (1.0 + GUEST_COSTS / self.cores(name) if disturbed else 1.0)
            busy = busy_share(demand, self.cores(name), self.threads)
        over = busy - service.knee
        return (
            1.3 - 0.5 * max(0.0, 0.15 + over) if over < 0 else max(0.03, 1.2 * 2.718 ** (-8.0 * over) - 0.2)
        )

    def changes(self, since: int = 0) -> int:
        """Decisions since then that changed somebody's cores."""
        return sum(
            d.chosen.cpu.own_cores != d.current.cpu.own_cores for row in self.history[since:] for d in row
        )

    def _one(self) -> None:
        self.now_s += 1.0
        views = [self._lra(name, service) for name, service in self.services.items()]
        if self.batch:
            sample = Sample(
                "pi", self.now_s, 1.0, cpu_usage_cores=float(self.cores("pi") * self.threads), threads=1000.0,
                cpu_some_pct=90.0, memory_current_bytes=1 << 28, memory_working_set_bytes=1 << 28,
            )  # fmt: skip
            spec = WorkloadSpec("pi", Kind.BATCH, "/pi", min_cores=self.min_cores)
            knobs = KNOBS | {"llc_masks", "mba_pct"} if self.ways else KNOBS
            views.append(WorkloadView(spec, sample, enforceable=knobs, enforced=True))
        busy = float(len(self.topology.usable)) if self.batch else 1.0
        snapshot = Snapshot(
            self.tick,
            self.now_s,
            1.0,
            HostView(self.topology, busy, self.ways, 1, self.levels),
            tuple(views),
            self.memory,
        )
        target = self.policy.decide(snapshot)
        self.memory, self.tick = target.memory, self.tick + 1
        self.history.append(target.decisions)
        here = {n for n, s in self.services.items() if s.present}
        self.missed.append({n for n in here if self.score(n) < 0.98})
        self.in_force, self.newcomer = dict(target.settings), target.newcomer
        for decision in target.decisions:
            before = self.protections.get(decision.workload)
            if before is None or before[0] != decision.chosen:
                self.protections[decision.workload] = decision.chosen, self.now_s

    def _lra(self, name: str, service: Service) -> WorkloadView:
        spec = WorkloadSpec(
            name,
            Kind.LRA,
            f"/{name}",
            priority=service.priority,
            policy=service.policy,
            objective=Objective(max_latency_ms=LIMIT_MS),
        )
        known = self.protections.get(name)
        sample = None
        if service.present:
            score = self.score(name) * (1.0 + self.random.gauss(0.0, self.noise))
            settling = known is not None and self.now_s - 0.8 < known[1] + self.settings.settle_s
            usage = min(
                service.demand * (1.0 + self.random.gauss(0.0, 0.02)), self.cores(name) * self.threads
            )
            sample = Sample(
                name, self.now_s, 1.0, cpu_usage_cores=usage, cpu_some_pct=30.0 if score < 1.0 else 1.0,
                work_rate_per_s=100.0, load_per_s=100.0, latency_p95_ms=LIMIT_MS / max(score, 0.01),
                memory_some_pct=service.memory_stalls_pct, io_some_pct=0.0, run_delay_cores=0.1,
                memory_working_set_bytes=float(WORKING_SET_BYTES), memory_current_bytes=4.0 * WORKING_SET_BYTES,
                quality=(Quality.SETTLING,) if settling else (),
            )  # fmt: skip
        return WorkloadView(
            spec, sample, self.models.get(name, NoModel()), protection=known[0] if known else None,
            protected_since_s=known[1] if known else 0.0, enforceable=KNOBS, enforced=True,
        )  # fmt: skip


def actions(world: CrowdWorld, name: str) -> list[Action]:
    """What was done to one LRA, holding aside."""
    return [
        d.action for row in world.history for d in row if d.workload == name and d.action is not Action.HOLD
    ]
