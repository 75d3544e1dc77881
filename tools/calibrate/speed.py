"""``python -m tools.calibrate.speed``: speed of the simulated host and the node model on this machine.

Prints virtual seconds per CPU second for a 16-core host with three workloads at 1 Hz, physics alone and with the
agent on top, and microseconds per alternative of a sweep over allocations of four workloads. Nothing is asserted.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time

from perphd.agent.composition import build_agent
from perphd.agent.simulated import simulated_sli
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.domain.workload import Kind, SliSpec, WorkloadSpec
from perphd.sim.host import Arrival, SimHost
from perphd.sim.machine import CGROUP_ROOT
from perphd.sim.node.archetypes import archetype
from perphd.sim.node.grant import Grant, product
from perphd.sim.node.machine import SILVER_4110
from perphd.sim.node.model import Node
from perphd.sim.workload import placed

_WARM_S, _MEASURED_S = 60, 200


async def host() -> None:
    works = [
        placed("mysql-oltp", "/lra/mysql", "mysql"),
        placed("xapian", "/lra/xapian", rate_per_s=2000),
        placed("batch-pi", "/batch/pi", "pi"),
    ]
    simulated = SimHost(works, machine=SILVER_4110, pmu=True, resctrl=True, events=[Arrival(30, "pi")])
    for work in works:
        online = str(simulated.machine.online).encode()
        simulated.fs.write(f"{CGROUP_ROOT}{work.cgroup}/cpuset.cpus", online)
    specs = tuple(
        WorkloadSpec(work.name, work.node.kind, work.cgroup)
        if work.node.kind is Kind.BATCH
        else WorkloadSpec(
            work.name, work.node.kind, work.cgroup, sli=SliSpec("simulated", (("workload", work.name),))
        )
        for work in works
    )
    with tempfile.TemporaryDirectory() as folder:
        config = Config(
            daemon=DaemonConfig(state_dir=folder),
            workloads=specs,
            store=StoreConfig(path=f"{folder}/store.db"),
        )
        agent = build_agent(
            config, fs=simulated.fs, opener=simulated.perf_opener, sli_opener=simulated_sli(simulated)
        )
        physics = ticks = 0.0
        for second in range(1, _WARM_S + _MEASURED_S + 1):
            start = time.process_time()
            simulated.advance(second)
            between = time.process_time()
            await agent.tick(float(second))
            if second > _WARM_S:
                physics += between - start
                ticks += time.process_time() - between
    print(
        f"physics alone       {_MEASURED_S / physics:8.0f} x real time ({physics / _MEASURED_S * 1e3:.2f} ms/s)"
    )
    print(f"with perphd's agent {_MEASURED_S / (physics + ticks):8.0f} x real time")
    print(f"the agent alone     {ticks / _MEASURED_S * 1e3:8.2f} ms a tick")


def sweep() -> None:
    machine = SILVER_4110
    names = ("mysql-oltp", "xapian", "batch-pi", "batch-stream")
    node = Node(machine, [archetype(name).workload for name in names])
    first, full = machine.first_cores, machine.full_mask
    cpus = [
        [first(a), first(b, a), first(16 - a - b, a + b), first(16 - a - b, a + b)]
        for a in range(1, 12)
        for b in range(1, 4)
    ]
    masks = [[(1 << w) - 1] * 2 + [full & ~((1 << w) - 1)] * 2 for w in range(1, 11)]
    levels = [[100, 100, level, level] for level in (10, 30, 50, 100)]
    table, _ = product(machine, [Grant()] * 4, cpus=cpus, masks=masks, mba_pct=levels)
    start = time.process_time()
    node.solve(table)
    spent = time.process_time() - start
    print(f"a sweep             {spent / table.count * 1e6:8.0f} us per alternative ({table.count} of them)")


def main() -> int:
    asyncio.run(host())
    sweep()
    return 0


if __name__ == "__main__":
    sys.exit(main())
