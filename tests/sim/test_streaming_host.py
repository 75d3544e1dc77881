"""The whole agent on a simulated host: of two batch jobs beside a service, the one that streams gets one way.

It also gets fewer cores than the other.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from perphd.domain.cpuset import CpuSet
from perphd.sim.machine import CGROUP_ROOT
from perphd.sim.node.machine import SILVER_4114
from tools.bench.policies.agentmode import agent_on, host_of
from tools.bench.policies.scenarios import batch, service
from tools.bench.policies.scene import GRACE, Scenario

RESCTRL = "/sys/fs/resctrl"


def scene() -> Scenario:
    actors = (service(SILVER_4114, "memcached", 0.3), batch("batch-stream"), batch("batch-thrash"))
    return Scenario("streaming", "test", "", SILVER_4114, actors, 60.0, step_s=0.5)


def test_the_streamer_gets_one_way_in_the_kernels_tree_and_everything_goes_back(tmp_path: Path) -> None:
    scenario = scene()
    host = host_of(scenario, 0)
    before = sorted(host.fs.listdir(RESCTRL))

    async def run() -> None:
        agent = agent_on(host, scenario, str(tmp_path), "perph")
        masks: dict[str, str] = {}
        cpus: dict[str, CpuSet] = {}
        rates: list[float] = []
        try:
            for second in range(1, 91):
                host.advance(float(second))
                await agent.tick(float(second))
                rates.append(host.outcome("batch-thrash").work_per_s)
            for name in ("batch-stream", "batch-thrash"):
                path = f"{RESCTRL}/perphd.{name}/schemata"
                if host.fs.exists(path):
                    masks[name] = host.fs.read(path).decode()
                cpus[name] = CpuSet.parse(host.fs.read(f"{CGROUP_ROOT}/bench/{name}/cpuset.cpus").decode())
            goal = scenario.lras[0].goal
            served = host.outcome("memcached")
            assert goal is not None
            assert goal.score(served.work_per_s, served.p95_ms) >= 1.0 / GRACE
        finally:
            await agent.stop(restore=True)
        line = next(text for text in masks["batch-stream"].splitlines() if "L3" in text)
        assert int(line.split("=")[1], 16).bit_count() == 1, masks
        assert "batch-thrash" not in masks, "it shares what everybody has"
        assert cpus["batch-stream"] <= cpus["batch-thrash"], "of batch's cores"
        assert 0 < len(cpus["batch-stream"]) < len(cpus["batch-thrash"])
        assert all(len(core.cpus & cpus["batch-stream"]) in (0, 2) for core in SILVER_4114.topology().cores)
        assert max(rates[-5:]) > 1.3 * min(rates[15:30]), "what the other job wins by it"

    asyncio.run(run())
    assert sorted(host.fs.listdir(RESCTRL)) == before
    for name in ("batch-stream", "batch-thrash"):
        path = f"{CGROUP_ROOT}/bench/{name}/cpuset.cpus"
        assert CpuSet.parse(host.fs.read(path).decode()) == SILVER_4114.online
