"""Trials through the whole agent on the simulated host, in virtual time: perph, a policy that does nothing, a bad one.

The truth comes from two more runs of the same host with the same seed, one in observe and one in enforce all the time.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from perphd.admission.baselines import NonePolicy
from perphd.agent.composition import build_agent
from perphd.agent.simulated import simulated_sli
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.domain.allocation import UNTOUCHED, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.policy import Policy, Snapshot, TargetState
from perphd.domain.reading import available
from perphd.domain.signals import performance
from perphd.domain.workload import Kind, Mode, SliSpec, WorkloadSpec
from perphd.sim.host import SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.node.load import Diurnal
from perphd.sim.workload import Batch, Lra
from perphd.trial.analysis import analyse
from perphd.trial.design import Request
from perphd.trial.record import TrialRecord
from tools.bench.trial.world import Run

EPOCH_S: Final = 1.7e9
TICK_S: Final = 2.0
WARM_S: Final = 60.0
BLOCK_S: Final = 180.0
WASHOUT_S: Final = 60.0
PAIRS: Final = 8
_LENGTH_S: Final = (2 * PAIRS + 1) * BLOCK_S
_CORES: Final = 8


class Squeeze:
    """A policy that is harmful on purpose: it leaves the LRA one core."""

    name = "squeeze"

    def decide(self, snapshot: Snapshot) -> TargetState:
        """The LRA on one core, batch everywhere."""
        return TargetState({"db": Settings(cpus=CpuSet.of([0])), "pi": UNTOUCHED}, (), (), None)


@dataclass(frozen=True, slots=True)
class AgentWorld:
    """One kind. ``policy`` None: perphd's own."""

    name: str
    policy: type[Policy] | None = None


AGENT_WORLDS: Final = {
    world.name: world
    for world in (
        AgentWorld("agent-perph"),
        AgentWorld("agent-nothing", NonePolicy),
        AgentWorld("agent-squeeze", Squeeze),
    )
}


def run_agent(world: AgentWorld, seed: int) -> Run:
    """One trial, and the two runs that give the true effect."""
    return asyncio.run(_run(world, seed))


async def _run(world: AgentWorld, seed: int) -> Run:
    record, enforced = await _trial(world, seed)
    truth: dict[str, float] = {}
    if world.policy is not Squeeze:
        observed = await _steady(world, seed, Mode.OBSERVE)
        always = await _steady(world, seed, Mode.ENFORCE)
        truth = {name: 100.0 * (always[name] / value - 1.0) for name, value in observed.items() if value > 0}
    return Run(analyse(record), record, truth, enforced)


class _Host:
    """A simulated host with an agent. The load of the database runs through a day within the trial."""

    def __init__(self, world: AgentWorld, seed: int, mode: Mode, state: Path) -> None:
        random = Random(seed)
        db = Lra(
            "db", "/b/db", rate_per_s=random.uniform(700.0, 1200.0), service_ms=random.uniform(1.6, 2.4),
            serial_ms=0.05, wait_ms=1.5,
        )  # fmt: skip
        pi = Batch("pi", "/b/pi", threads=_CORES)
        self.host = SimHost(
            (db, pi), machine=Machine(1, _CORES), seed=seed, step_s=0.5, pmu=True,
            loads={"db": Diurnal(0.6, 1.3, _LENGTH_S)},
        )  # fmt: skip
        for work in (db, pi):
            self.host.fs.write(f"{CGROUP_ROOT}{work.cgroup}/cpuset.cpus", f"0-{_CORES - 1}".encode())
        specs = (
            WorkloadSpec("db", Kind.LRA, "/b/db", sli=SliSpec("simulated", (("workload", "db"),))),
            WorkloadSpec("pi", Kind.BATCH, "/b/pi"),
        )
        config = Config(
            daemon=DaemonConfig(state_dir=str(state), mode=mode, period_s=TICK_S),
            store=StoreConfig(enabled=False),
            workloads=specs,
        )
        self.now_s = 0.0
        self.agent = build_agent(
            config, fs=self.host.fs, opener=self.host.perf_opener, sli_opener=simulated_sli(self.host),
            wall_clock=lambda: EPOCH_S + self.now_s, policy=None if world.policy is None else world.policy(),
        )  # fmt: skip

    async def tick(self) -> None:
        """One round."""
        self.now_s += TICK_S
        self.host.advance(self.now_s)
        await self.agent.tick(self.now_s)


async def _trial(world: AgentWorld, seed: int) -> tuple[TrialRecord, int]:
    with tempfile.TemporaryDirectory(prefix="perphd-trial-") as folder:
        run = _Host(world, seed, Mode.OBSERVE, Path(folder))
        while run.now_s < WARM_S:
            await run.tick()
        await run.agent.start_trial(
            Request(_LENGTH_S / 3600.0 + 1e-6, BLOCK_S, washout_s=WASHOUT_S, seed=seed)
        )
        enforced: set[int] = set()
        while (trial := run.agent.status().trial) is not None:
            if trial.mode is Mode.ENFORCE:
                enforced.add(trial.block)
            await run.tick()
        record = run.agent.trial()
        await run.agent.stop(restore=True)
        assert record is not None
        return record, len(enforced)


async def _steady(world: AgentWorld, seed: int, mode: Mode) -> dict[str, float]:
    """The metrics over the time of the trial's pairs, all in one mode."""
    seen: dict[str, list[float]] = {"db.delay": [], "db.work": [], "batch.work": []}
    with tempfile.TemporaryDirectory(prefix="perphd-trial-") as folder:
        run = _Host(world, seed, Mode.OBSERVE, Path(folder))
        while run.now_s < WARM_S + _LENGTH_S:
            if mode is Mode.ENFORCE and run.now_s == WARM_S:
                run.agent.set_mode(Mode.ENFORCE)
            await run.tick()
            if run.now_s <= WARM_S + BLOCK_S:
                continue
            found = performance(run.agent.samples["db"])
            batch = run.agent.samples["pi"].cpu_usage_cores
            for name, value in (("db.delay", found.delay), ("db.work", found.work), ("batch.work", batch)):
                if available(value):
                    seen[name].append(value)
        await run.agent.stop(restore=True)
    return {
        name: math.exp(statistics.fmean(map(math.log, values)))
        if name == "db.delay"
        else statistics.fmean(values)
        for name, values in seen.items()
    }
