"""A small closed world for policy tests: a host whose truth is a function, no kernel, no clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from perphd.admission.context import batch_is_quiet, lras, model_context, total_cores
from perphd.admission.inference.inferer import untouched
from perphd.admission.perph import PerphPolicy
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import Allocation
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import Decision
from perphd.domain.policy import HostView, Snapshot, TargetState, WorkloadView
from perphd.domain.sample import Quality, Sample
from perphd.domain.topology import Core, Topology
from perphd.domain.workload import Kind, Objective, WorkloadSpec
from perphd.predictor import Observation, Registry
from perphd.predictor.physics import CpuGrants, expect

KNOBS = frozenset({"cpus", "cpu_weight", "memory_low_bytes", "memory_high_bytes"})


def topology(cores: int) -> Topology:
    return Topology(
        cores=tuple(Core(0, n, CpuSet.of([n])) for n in range(cores)),
        l3_domains=(),
        nodes=(),
        online=CpuSet.of(range(cores)),
        memory_bytes=16 << 30,
    )


@dataclass
class World:
    """One LRA and one batch workload on ``cores`` cores; work and delay follow ``truth``."""

    cores: int = 2
    lra_demand: float = 1.7
    work_alone: float = 1500.0
    delay_alone_ms: float = 1.0
    noise: float = 0.03
    seed: int = 1
    enforced: bool = True
    objective: Objective = field(default_factory=Objective)
    settings: PolicySettings = field(default_factory=PolicySettings)
    loss: Callable[[Allocation], float] = lambda _: 1.0
    batch_running: bool = False
    load: float = 1.0
    batch_knobs: frozenset[str] = KNOBS
    more_batch: tuple[WorkloadView, ...] = ()

    def __post_init__(self) -> None:
        self.policy = PerphPolicy(self.settings)
        self.registry = Registry()
        self.random = random.Random(self.seed)
        self.memory: object = None
        self.now_s = 0.0
        self.tick = 0
        self.protection = untouched(self.cores)
        self.since_s = -100.0
        self.history: list[Decision] = []
        self.targets: list[TargetState] = []
        self.scores: list[float] = []
        self.lra = WorkloadSpec("db", Kind.LRA, "/db", objective=self.objective)
        self.batch = WorkloadSpec("pi", Kind.BATCH, "/pi")

    def host(self) -> HostView:
        """The host as the policy sees it; worlds with a cache override it."""
        return HostView(topology(self.cores))

    def put_in_force(self, chosen: Allocation) -> Allocation:
        """What comes of a choice; worlds in which something keeps it from coming into force override it."""
        return chosen

    def waiting(self) -> frozenset[str]:
        """Batch's knobs that are still to be written."""
        return frozenset()

    def counted(self, sample: Sample) -> Sample:
        """What the processor's counters add to the LRA's sample."""
        return sample

    def step(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self._one()

    def true_work(self) -> float:
        """Noise-free work rate now."""
        return self._truth()[0]

    def _truth(self) -> tuple[float, float, float]:
        from perphd.domain.policy import ModelContext

        demand = self.lra_demand * self.load
        if not self.batch_running:
            return self.work_alone * self.load, self.delay_alone_ms, 0.0
        context = ModelContext(demand, float(self.cores), float(self.cores))
        expected = expect(CpuGrants.of([self.protection]), context)
        loss = self.loss(self.protection)
        work = self.work_alone * self.load * float(expected.work[0]) * loss
        delay = self.delay_alone_ms * float(expected.delay[0]) / loss
        return work, delay, float(expected.batch_cores[0])

    def _one(self) -> None:
        self.now_s += 1.0
        work, delay, batch_cores = self._truth()
        noise = lambda: 1.0 + self.random.gauss(0.0, self.noise)  # noqa: E731
        usage = self.lra_demand * work / self.work_alone
        served = min(usage, self.delay_alone_ms * work / 1000.0)
        waiting = max(0.0, delay * work / 1000.0 - served) * noise()
        quality = (
            (Quality.SETTLING,) if self.now_s - 1.0 + 0.2 < self.since_s + self.settings.settle_s else ()
        )
        db = Sample(
            "db",
            self.now_s,
            1.0,
            cpu_usage_cores=usage,
            run_delay_cores=waiting,
            cpu_some_pct=min(100.0, 100.0 * waiting),
            memory_some_pct=0.0,
            io_some_pct=0.0,
            work_rate_per_s=work * noise(),
            latency_p95_ms=delay * noise(),
            memory_current_bytes=1 << 30,
            memory_working_set_bytes=1 << 29,
            quality=quality,
        )
        db = self.counted(db)
        starved = 80.0 if self.batch_running else 0.0
        pi = Sample(
            "pi",
            self.now_s,
            1.0,
            cpu_usage_cores=batch_cores,
            cpu_some_pct=starved,
            threads=4.0 if self.batch_running else 0.0,
            memory_current_bytes=1 << 28,
            memory_working_set_bytes=1 << 27,
        )
        views = (
            WorkloadView(
                self.lra,
                db,
                self.registry.model("db"),
                protection=self.protection,
                protected_since_s=self.since_s,
                enforceable=KNOBS,
                enforced=self.enforced,
            ),
            WorkloadView(
                self.batch,
                pi,
                enforceable=self.batch_knobs,
                enforced=self.enforced,
                waiting=self.waiting(),
            ),
            *self.more_batch,
        )
        snapshot = Snapshot(self.tick, self.now_s, 1.0, self.host(), views, self.memory)
        self._learn(snapshot)
        target = self.policy.decide(snapshot)
        self.memory, self.tick = target.memory, self.tick + 1
        decision = target.decisions[0]
        self.history.append(decision)
        self.targets.append(target)
        came = self.put_in_force(decision.chosen)
        if self.enforced and came != self.protection:
            self.protection, self.since_s = came, self.now_s

    def _learn(self, snapshot: Snapshot) -> None:
        quiet = batch_is_quiet(snapshot, self.settings.batch_idle_cores, False)
        for view in lras(snapshot):
            if view.sample is None:
                continue
            model = self.registry.model(view.spec.name)
            context = model_context(snapshot, view, model)
            allocation = view.protection or untouched(total_cores(snapshot))
            model.observe(Observation(view.sample, allocation, context, quiet))

    def antagonist(self, running: bool) -> None:
        self.batch_running = running

    def with_settings(self, **changes: object) -> PolicySettings:
        return replace(self.settings, **changes)  # type: ignore[arg-type]
