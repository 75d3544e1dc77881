"""The whole agent in virtual time, on a simulated host with the same number of workloads."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from perphd.agent.agent import Agent
from perphd.agent.composition import build_agent
from perphd.agent.service import TRIM_EVERY_S
from perphd.agent.simulated import simulated_sli
from perphd.agent.upkeep import collecting_later, give_back_memory, spare_the_start
from perphd.config.file import parse
from perphd.domain.workload import Kind, SliSpec, WorkloadSpec
from perphd.sim.host import Arrival, Departure, SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.node import grant
from perphd.sim.workload import Batch, Lra, Workload
from tools.soak import churn, meter
from tools.soak.churn import Happens, Step
from tools.soak.still import Still

READ_EVERY_S = 20.0
STEP_S = 1.0
"""Resolution of the physics in seconds; leaks do not depend on it."""
_CORES = 32
_CACHES = (grant.cpu_classes, grant._layout)
"""The simulator remembers a thousand layouts of CPUs, a quarter of an hour of churn. That memory is not perphd's."""
_FAST = "/dev/shm"
"""Virtual time does not wait for a disk."""


class Soak:
    """An agent whose host loses and regains cgroups, and whose list of workloads changes."""

    def __init__(
        self, seconds: float, places: int, per_s: float, rate_hz: float, store: str, seed: int
    ) -> None:
        self._places, self._per_s, self._rate_hz, self._seed = places, per_s, rate_hz, seed
        self._store = store
        self._seconds = seconds
        self._work = [_work(place) for place in range(places)]
        self.host = SimHost(
            self._work, machine=Machine(1, _CORES), seed=seed, step_s=STEP_S, pmu=True, resctrl=True
        )
        for one in self._work:
            self.host.fs.write(
                f"{CGROUP_ROOT}{one.cgroup}/cpuset.cpus", str(self.host.machine.online).encode()
            )

    async def run(self, told: Callable[[meter.Reading], None]) -> None:
        """Run the soak; every reading is reported at once and not kept, because this process is measured."""
        with tempfile.TemporaryDirectory(
            prefix="perphd-soak-", dir=_FAST if os.path.isdir(_FAST) else None
        ) as folder:
            state = Path(folder)
            text = (
                f'[daemon]\nmode = "enforce"\nperiod_s = {1.0 / self._rate_hz}\nstate_dir = "{state}"\n'
                f'[tuning.daemon]\nmodel_save_s = 30.0\n[store]\nmax_size = "{self._store}"\n'
            )
            specs = tuple(_spec(place, name) for place, name in enumerate(churn.first_names(self._places)))
            clock = _Clock()
            still = Still(self.host)
            agent = build_agent(
                replace(parse(text, "soak"), workloads=specs),
                fs=still.fs,
                opener=still.opener,
                sli_opener=simulated_sli(self.host),
                wall_clock=clock.now,
            )
            plan = churn.steps(self._places, int(self._seconds), self._seed, self._per_s)
            step = next(plan, None)
            due_s, trimmed_s = 0.0, 0.0
            spare_the_start()  # further maintenance that the daemon does
            for tick in range(1, int(self._seconds * self._rate_hz) + 1):
                clock.s = tick / self._rate_hz
                if (
                    clock.s >= self.host.now_s + STEP_S
                ):  # ten times as fast, because reads are more frequent than changes
                    self.host.advance(clock.s)
                    still.moved()
                while step is not None and step.at_s <= clock.s:
                    await self._do(step, agent)
                    still.moved()
                    step = next(plan, None)
                with collecting_later():
                    await agent.tick(clock.s)
                if clock.s - trimmed_s >= TRIM_EVERY_S:
                    trimmed_s = clock.s
                    give_back_memory()
                if clock.s >= due_s:
                    due_s += READ_EVERY_S
                    for cached in _CACHES:
                        cached.cache_clear()
                    told(meter.read(os.getpid(), state, clock.s, clock.s, sys.getallocatedblocks()))
            await agent.stop(restore=True)

    async def _do(self, step: Step, agent: Agent) -> None:
        name = self._work[step.place].name
        # The host receives events one by one, because its memory would shrink while it uses up a plan given at the
        # start.
        if step.what is Happens.VANISHES:
            self.host._happen(Departure(step.at_s, name, remove_cgroup=True))
        elif step.what is Happens.RETURNS:
            self.host._happen(Arrival(step.at_s, name))
        else:
            await agent.remove_workload(step.name)
            await agent.add_workload(_spec(step.place, step.newcomer))


def _work(place: int) -> Workload:
    name, cgroup = f"p{place:03}", f"/soak/p{place:03}"
    if churn.is_lra(place):
        return Lra(name, cgroup, clients=2, service_ms=2.0, wait_ms=8.0, threads=4)
    return Batch(name, cgroup, threads=1)


def _spec(place: int, name: str) -> WorkloadSpec:
    """The workload of this name, with its place's processes."""
    cgroup = f"/soak/p{place:03}"
    if churn.is_lra(place):
        return WorkloadSpec(name, Kind.LRA, cgroup, sli=SliSpec("simulated", (("workload", f"p{place:03}"),)))
    return WorkloadSpec(name, Kind.BATCH, cgroup)


class _Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def now(self) -> float:
        return 1_800_000_000.0 + self.s
