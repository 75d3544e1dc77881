"""A job of the batch queue is held as other batch is from its start, on the simulated host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from perphd.agent.agent import Agent
from perphd.agent.composition import build_agent
from perphd.agent.simulated import simulated_sli
from perphd.batch.job import JobSpec, QueuedJob, UnitEvidence
from perphd.batch.runner import UnitState
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.config.tables import QueueConfig
from perphd.domain.allocation import UNTOUCHED, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.policy import Snapshot, TargetState
from perphd.domain.workload import Kind, Mode, SliSpec, WorkloadSpec
from perphd.sim.host import SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import Batch, Lra

HELD = CpuSet.of([6, 7])


class Confining:
    """A policy that keeps batch on two of eight cores."""

    name = "confining"

    def decide(self, snapshot: Snapshot) -> TargetState:
        names = {view.spec.name for view in snapshot.workloads if view.spec.kind is Kind.BATCH}
        held = Settings(cpus=HELD)
        return TargetState(dict.fromkeys(names, held) | {"db": UNTOUCHED}, newcomer=held)


class Runner:
    """Starts jobs on the simulated host, and notes on which CPUs each one's first process could run."""

    def __init__(self, host: SimHost, groups_first: bool) -> None:
        self.host, self.groups_first = host, groups_first
        self.at_start: dict[str, str] = {}

    def make_group(self, job: QueuedJob) -> str:
        return self.placed(job) if self.groups_first else ""

    def start(self, job: QueuedJob, log: str) -> str:
        cgroup = f"/t/jobs/{job.unit}" if self.groups_first else self.placed(job)
        self.at_start[job.unit] = self.cpus(job.unit)
        return cgroup

    def placed(self, job: QueuedJob) -> str:
        """Virtual time stands still: threads that are there do not run before the next round."""
        self.host.place(Batch(job.unit, f"/t/jobs/{job.unit}", 2))
        self.host.fs.write(f"{CGROUP_ROOT}/t/jobs/{job.unit}/cpuset.cpus", b"0-7")
        return f"/t/jobs/{job.unit}"

    def look(self, jobs: Sequence[QueuedJob]) -> Mapping[int, UnitState]:
        return {job.id: UnitState(UnitEvidence.RUNS, cgroup=f"/t/jobs/{job.unit}") for job in jobs}

    def stop(self, unit: str) -> bool:
        return True

    def units(self) -> tuple[str, ...]:
        return ()

    def cpus(self, unit: str) -> str:
        return self.host.fs.read(f"{CGROUP_ROOT}/t/jobs/{unit}/cpuset.cpus").decode().strip()


def started(
    state: Path, groups_first: bool, mode: Mode, reserved_cpus: float = 0.0
) -> tuple[Agent, SimHost, Runner]:
    """With ``reserved_cpus``, a policy that wants nothing, and gold with cores of its own."""
    db = Lra("db", "/t/db", clients=10, service_ms=2.0, serial_ms=0.05, wait_ms=1.5)
    host = SimHost((db, Batch("pi", "/t/jobs/pi", 2)), machine=Machine(1, 8), seed=3, pmu=True)
    for name in ("db", "jobs/pi"):
        host.fs.write(f"{CGROUP_ROOT}/t/{name}/cpuset.cpus", b"0-7")
    runner = Runner(host, groups_first)
    agent = build_agent(
        Config(
            daemon=DaemonConfig(
                state_dir=str(state), socket=f"{state}/sock", mode=mode, period_s=2.0, policy="none"
            ),
            store=StoreConfig(enabled=False),
            queue=QueueConfig(enabled=True),
            workloads=(
                WorkloadSpec(
                    "db",
                    Kind.LRA,
                    "/t/db",
                    sli=SliSpec("simulated", (("workload", "db"),)),
                    band="gold" if reserved_cpus else None,
                    reserved_cpus=reserved_cpus,
                ),
                WorkloadSpec("pi", Kind.BATCH, "/t/jobs/pi"),
            ),
        ),
        fs=host.fs,
        opener=host.perf_opener,
        sli_opener=simulated_sli(host),
        wall_clock=lambda: 1.7e9 + host.now_s,
        policy=None if reserved_cpus else Confining(),
        runner=runner,
    )
    return agent, host, runner


async def run(agent: Agent, host: SimHost, rounds: int) -> None:
    assert agent.queue is not None
    for _ in range(rounds):
        host.advance(host.now_s + 2.0)
        await agent.tick(host.now_s)
        await agent.queue.settled()


@pytest.mark.parametrize("groups_first", [True, False])
@pytest.mark.parametrize("mode", [Mode.ENFORCE, Mode.OBSERVE])
async def test_a_job_is_held_from_its_start(tmp_path: Path, mode: Mode, groups_first: bool) -> None:
    agent, host, runner = started(tmp_path, groups_first, mode)
    assert agent.queue is not None
    await run(agent, host, 5)
    await agent.queue.submit([JobSpec("job", ("true",), 1000, 1000, "/", cpus=2.0, memory_bytes=1 << 28)])
    await run(agent, host, 1)
    (job,) = (agent.queue.find(1),)
    assert job is not None
    held = str(HELD) if mode is Mode.ENFORCE else "0-7"
    assert runner.cpus(job.unit) == held, "no round has come after the start"
    assert runner.at_start[job.unit] == (held if groups_first else "0-7")
    await run(agent, host, 3)
    assert runner.cpus(job.unit) == held
    await agent.stop(restore=True)
    assert runner.cpus(job.unit) == "0-7", "what was there before is known"


@pytest.mark.parametrize("groups_first", [True, False])
async def test_a_job_never_starts_on_golds_cores(tmp_path: Path, groups_first: bool) -> None:
    agent, host, runner = started(tmp_path, groups_first, Mode.ENFORCE, reserved_cpus=3.0)
    assert agent.queue is not None
    await run(agent, host, 5)
    await agent.queue.submit([JobSpec("job", ("true",), 1000, 1000, "/", cpus=2.0, memory_bytes=1 << 28)])
    await run(agent, host, 1)
    (job,) = (agent.queue.find(1),)
    assert job is not None
    assert runner.cpus(job.unit) == "3-7", "no round has come after the start"
    assert runner.at_start[job.unit] == ("3-7" if groups_first else "0-7")
    await run(agent, host, 2)
    assert runner.cpus(job.unit) == "3-7"
    await agent.stop(restore=True)
    assert runner.cpus(job.unit) == "0-7"
