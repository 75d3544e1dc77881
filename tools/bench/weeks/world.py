"""A week of a simulated host, shortened: seven days of a hundred seconds, two LRAs, batch that comes and goes.

The same seed gives the same demands in observe and in enforce, so the predictions of a report on the observed week can
be compared with the records of the enforced week.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Final

from perphd.agent.composition import build_agent
from perphd.agent.simulated import simulated_sli
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.domain.workload import Kind, Mode, SliSpec, WorkloadSpec
from perphd.sim.host import Arrival, Departure, Event, SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.node.load import Diurnal
from perphd.sim.workload import Batch, Lra, Workload

EPOCH_S: Final = 1.7e9
DAY_S: Final = 100.0
WEEK_S: Final = 7 * DAY_S
_CORES: Final = 8
_QUIET_S: Final = 30.0
"""Seconds before batch first arrives, so that perphd sees the LRAs alone."""


def live(seed: int, mode: Mode, folder: Path, seconds: float = WEEK_S) -> Path:
    """Simulate a week in this mode; returns its store in ``folder``."""
    return asyncio.run(_live(seed, mode, folder, seconds))


def workloads(seed: int) -> tuple[Workload, ...]:
    """The workloads in the week of this seed."""
    random = Random(seed)
    db = Lra(
        "db", "/b/db", rate_per_s=random.uniform(500.0, 1300.0), service_ms=random.uniform(1.5, 2.5),
        serial_ms=0.05, wait_ms=1.5,
    )  # fmt: skip
    web = Lra(
        "web", "/b/web", clients=random.randint(2, 8), service_ms=random.uniform(0.8, 2.0),
        serial_ms=random.uniform(0.02, 0.2), wait_ms=random.uniform(1.0, 4.0),
    )  # fmt: skip
    jobs = [
        Batch(f"job{i}", f"/b/job{i}", threads=random.choice((2, 4, 8)), pollution=random.uniform(0.5, 2.0))
        for i in range(random.randint(1, 2))
    ]
    return (db, web, *jobs)


def visits(seed: int, names: list[str], seconds: float) -> list[Event]:
    """Times of batch's arrivals and departures."""
    random = Random(seed + 1_000_000)
    events: list[Event] = []
    for name in names:
        now_s = _QUIET_S + random.uniform(0.0, 30.0)
        while now_s < seconds:
            events.append(Arrival(now_s, name))
            now_s += random.uniform(40.0, 160.0)
            events.append(Departure(now_s, name))
            now_s += random.uniform(20.0, 80.0)
    return events


async def _live(seed: int, mode: Mode, folder: Path, seconds: float) -> Path:
    people = workloads(seed)
    jobs = [work.name for work in people if isinstance(work, Batch)]
    host = SimHost(
        people, machine=Machine(1, _CORES), seed=seed, step_s=0.5, pmu=True, events=visits(seed, jobs, seconds),
        loads={"db": Diurnal(0.4, 1.2, DAY_S)},
    )  # fmt: skip
    for work in people:
        host.fs.write(f"{CGROUP_ROOT}{work.cgroup}/cpuset.cpus", f"0-{_CORES - 1}".encode())
    specs = tuple(
        WorkloadSpec(work.name, Kind.BATCH, work.cgroup)
        if work.name in jobs
        else WorkloadSpec(
            work.name, Kind.LRA, work.cgroup, sli=SliSpec("simulated", (("workload", work.name),))
        )
        for work in people
    )
    config = Config(
        daemon=DaemonConfig(state_dir=str(folder), mode=mode), store=StoreConfig(), workloads=specs
    )
    now_s = 0.0
    agent = build_agent(
        config, fs=host.fs, opener=host.perf_opener, sli_opener=simulated_sli(host),
        wall_clock=lambda: EPOCH_S + now_s,
    )  # fmt: skip
    for second in range(1, round(seconds) + 1):
        now_s = float(second)
        host.advance(now_s)
        await agent.tick(now_s)
    await agent.stop(restore=True)
    return Path(config.store_path)
