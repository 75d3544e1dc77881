"""A simulated host that lives through its past in virtual time, and then in real time behind a control socket.

Two databases share eight cores with batch that comes and goes; one of them has a diurnal load.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from perphd.agent.agent import Agent
from perphd.agent.composition import build_agent
from perphd.agent.simulated import simulated_sli
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.control.routes import Hooks
from perphd.control.server import ControlServer
from perphd.domain.control import Actor
from perphd.domain.workload import Kind, Mode, SliSpec, WorkloadSpec
from perphd.sim.host import Arrival, Departure, Event, SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.node.load import Diurnal
from perphd.sim.workload import Batch, Lra, Workload

DAY_S = 86_400.0
GIB = 1 << 30


@dataclass(frozen=True)
class Past:
    """The past: its length, the time between two samples, and the times at which each batch job comes and goes."""

    seconds: float
    period_s: float = 1.0
    events: tuple[Event, ...] = ()
    resctrl: bool = False
    seed: int = 4


def people() -> tuple[Workload, ...]:
    """Who lives there."""
    return (
        Lra("mysql", "/apps/mysql", rate_per_s=1100.0, service_ms=2.0, serial_ms=0.05, wait_ms=1.5),
        Lra("search", "/apps/search", clients=6, service_ms=1.4, serial_ms=0.05, wait_ms=2.0),
        Batch("report", "/batch/report", threads=8, pollution=1.0),
        Batch("encode", "/batch/encode", threads=4, pollution=0.6),
    )


def nightly(seconds: float, seed: int) -> tuple[Event, ...]:
    """Typical batch: a report every few hours, and encoding whenever a user uploads."""
    random = Random(seed)
    events: list[Event] = []
    for name, long_s, pause_s in (("report", 5400.0, 12_000.0), ("encode", 2700.0, 7200.0)):
        now_s = random.uniform(900.0, 3600.0)
        while now_s < seconds:
            events.append(Arrival(now_s, name))
            now_s += random.uniform(0.5, 1.5) * long_s
            events.append(Departure(now_s, name))
            now_s += random.uniform(0.5, 1.5) * pause_s
    # Both jobs run at present.
    last = {
        name: max((e.at_s for e in events if e.name == name), default=0.0) for name in ("report", "encode")
    }
    kept = [
        e
        for e in events
        if not (isinstance(e, Departure) and e.at_s > seconds - 900.0 and e.at_s == last[e.name])
    ]
    return tuple(kept)


class LivingHost:
    """One host. ``folder``: state, store and socket; ``clock_s``: seconds of its life."""

    def __init__(self, folder: Path, past: Past) -> None:
        self._folder, self._past = folder, past
        self._born_s = time.time() - past.seconds
        self.clock_s = 0.0
        works = people()
        self.host = SimHost(
            works,
            machine=Machine(1, 8),
            seed=past.seed,
            step_s=max(0.25, past.period_s / 6.0),
            pmu=True,
            events=past.events,
            resctrl=past.resctrl,
            loads={"mysql": Diurnal(0.5, 1.05, DAY_S)} if past.seconds >= DAY_S else {},
        )
        for work in works:
            self.host.fs.write(f"{CGROUP_ROOT}{work.cgroup}/cpuset.cpus", b"0-7")
        self.config = Config(
            daemon=DaemonConfig(
                state_dir=str(folder),
                socket=str(folder / "perphd.sock"),
                mode=Mode.ENFORCE,
                period_s=past.period_s,
            ),
            store=StoreConfig(),
            workloads=tuple(_spec(work) for work in works),
        )

    async def remember(self) -> None:
        """Live through the past, as fast as this machine can."""
        agent = self._agent(self.config)
        while self.clock_s < self._past.seconds:
            await self._tick(agent, self.clock_s + self._past.period_s)
        await agent.stop(restore=True)

    @asynccontextmanager
    async def living(self) -> AsyncIterator[Agent]:
        """Live in real time, and answer on the socket, while the block runs."""
        daemon = replace(self.config.daemon, period_s=1.0)
        agent = self._agent(replace(self.config, daemon=daemon))
        hooks = replace(Hooks.of_host(simulated=True), monotonic=lambda: self.clock_s, wall=self._wall_s)
        server = ControlServer(agent, agent.config, reload=self._reload, hooks=hooks)
        await server.start()
        ticking = asyncio.create_task(self._go_on(agent))
        try:
            yield agent
        finally:
            ticking.cancel()
            with suppress(asyncio.CancelledError):
                await ticking
            await server.stop()
            await agent.stop(restore=True)

    async def _go_on(self, agent: Agent) -> None:
        while True:
            await asyncio.sleep(agent.status().pace_s)
            await self._tick(agent, max(self.clock_s, time.time() - self._born_s))

    async def _tick(self, agent: Agent, to_s: float) -> None:
        self.clock_s = to_s
        self.host.advance(to_s)
        await agent.tick(to_s)

    def _agent(self, config: Config) -> Agent:
        return build_agent(
            config,
            fs=self.host.fs,
            opener=self.host.perf_opener,
            sli_opener=simulated_sli(self.host),
            wall_clock=self._wall_s,
            delays=self.host,
        )

    def _wall_s(self) -> float:
        return self._born_s + self.clock_s

    async def _reload(self, by: Actor) -> Config:
        return self.config


def _spec(work: Workload) -> WorkloadSpec:
    if isinstance(work, Batch):
        return WorkloadSpec(work.name, Kind.BATCH, work.cgroup)
    sli = SliSpec("simulated", (("workload", work.name),))
    return WorkloadSpec(work.name, Kind.LRA, work.cgroup, sli=sli)


def comes_and_goes(times: Sequence[tuple[float, str, bool]]) -> tuple[Event, ...]:
    """Events from (seconds, name, True for an arrival) tuples."""
    return tuple(Arrival(at_s, name) if comes else Departure(at_s, name) for at_s, name, comes in times)
