"""A queue without a host: a runner in memory that outlives daemons, and a clock that the test moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perphd.agent.queue.batch_queue import BatchQueue
from perphd.batch.job import JobSpec, QueuedJob, UnitEvidence
from perphd.batch.runner import UnitState
from perphd.config.tables import QueueConfig
from perphd.domain.control import Actor
from perphd.domain.workload import WorkloadSpec

GIB = 1 << 30


class Killed(BaseException):
    """The daemon dies here; nothing after it happens."""


@dataclass
class FakeUnits:
    """Units that run until the test ends them. ``fate`` is called before and after every effect, and may raise."""

    units: dict[str, UnitState] = field(default_factory=dict)
    starts: Counter[str] = field(default_factory=Counter)
    begun: Counter[int] = field(default_factory=Counter)
    environments: dict[int, dict[str, str]] = field(default_factory=dict)
    fate: Callable[[], None] = lambda: None
    fails: Exception | None = None
    most_at_once: int = 0
    prepares: bool = False

    def make_group(self, job: QueuedJob) -> str:
        return f"/perphd-jobs/{job.unit}" if self.prepares else ""

    def start(self, job: QueuedJob, log: str) -> str:
        self.fate()
        if self.fails is not None:
            raise self.fails
        cgroup = f"/perphd-jobs/{job.unit}"
        assert not any(
            unit.startswith(f"perphd-job-{job.id}-") and state.evidence is UnitEvidence.RUNS
            for unit, state in self.units.items()
            if unit != job.unit
        ), "two attempts of one job at the same time"
        if job.unit not in self.units:
            self.units[job.unit] = UnitState(UnitEvidence.RUNS, cgroup=cgroup)
            self.starts[job.unit] += 1
            self.begun[job.id] += 1
            self.environments[job.id] = dict(job.spec.environment)
        self.fate()
        running = [each for each in self.units.values() if each.evidence is UnitEvidence.RUNS]
        self.most_at_once = max(self.most_at_once, len(running))
        return cgroup

    def look(self, jobs: Sequence[QueuedJob]) -> Mapping[int, UnitState]:
        return {job.id: self.units.get(job.unit, UnitState(UnitEvidence.NEVER_STARTED)) for job in jobs}

    def stop(self, unit: str) -> bool:
        self.fate()
        self.units.pop(unit, None)
        self.fate()
        return True

    def found(self) -> tuple[str, ...]:
        return tuple(self.units)

    def end(self, number: int, status: int = 0) -> None:
        """The processes of a running job end."""
        for unit in list(self.units):
            if unit.startswith(f"perphd-job-{number}-"):
                self.units[unit] = UnitState(UnitEvidence.ENDED, status)

    def reboot(self) -> None:
        self.units.clear()


@dataclass
class FakeAgentSide:
    """Which workloads the queue has handed over."""

    workloads: dict[str, WorkloadSpec] = field(default_factory=dict)
    enforces: bool = False
    told: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)

    async def add(self, spec: WorkloadSpec) -> None:
        assert spec.name not in self.workloads
        self.workloads[spec.name] = spec

    async def let_go(self, name: str) -> None:
        del self.workloads[name]

    def enforced(self, name: str) -> bool:
        return self.enforces

    def tell(self, text: str, workload: str = "", by: Actor | None = None) -> None:
        self.told.append(text)

    def problem(self, key: str, text: str | None) -> None:
        self.problems.pop(key, None)
        if text is not None:
            self.problems[key] = text


@dataclass
class World:
    """One host over many daemons."""

    folder: Path
    config: QueueConfig = QueueConfig(enabled=True)
    cpus: float = 8.0
    memory_bytes: float = 16.0 * GIB
    now_s: float = 1e9
    boot: str = "boot-1"
    units: FakeUnits = field(default_factory=FakeUnits)
    side: FakeAgentSide = field(default_factory=FakeAgentSide)

    def daemon(self) -> BatchQueue:
        """A daemon that starts now."""
        self.side = FakeAgentSide(enforces=self.side.enforces)
        queue = BatchQueue(
            self.config,
            self.folder,
            _AsRunner(self.units),
            self.boot,
            lambda: self.now_s,
            lambda: (self.cpus, self.memory_bytes),
            hints=self.folder / "hints",
        )
        queue.attach(self.side)
        return queue

    async def look(self, queue: BatchQueue, seconds: float = 10.0) -> None:
        """Time passes, and the queue looks."""
        self.now_s += seconds
        await queue.look()


class _AsRunner:
    """``FakeUnits`` as a ``JobRunner``."""

    def __init__(self, units: FakeUnits) -> None:
        self._units = units
        self.make_group, self.start, self.look, self.stop = (
            units.make_group,
            units.start,
            units.look,
            units.stop,
        )

    def units(self) -> tuple[str, ...]:
        return self._units.found()


def spec(*command: str, **changes: object) -> JobSpec:
    """A job of user 1000 that asks for one CPU and 1 GiB."""
    values: dict[str, object] = {
        "name": "job",
        "command": command or ("true",),
        "uid": 1000,
        "gid": 1000,
        "directory": "/",
        "cpus": 1.0,
        "memory_bytes": GIB,
    }
    return JobSpec(**(values | changes))  # type: ignore[arg-type]
