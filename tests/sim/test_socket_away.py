"""The whole agent on a simulated host that loses a socket and gets it back: elsewhere everything stays in force."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from perphd.sim.host import SimHost
from perphd.sim.machine import CGROUP_ROOT
from perphd.sim.node.machine import SILVER_4114
from tools.bench.policies.agentmode import agent_on, host_of
from tools.bench.policies.scenarios import batch, service
from tools.bench.policies.scene import Scenario

TWO = replace(SILVER_4114, sockets=2, memory_bytes=92 << 30)
GROUP = "/sys/fs/resctrl/perphd.near/schemata"
FULL = {"L3": "7ff", "MB": "100"}
AWAY_S, BACK_S, END_S = 22, 30, 36


def limits(host: SimHost) -> dict[str, str]:
    """What batch has in the domain that never goes; everything, if it has no group."""
    if not host.fs.exists(GROUP):
        return FULL
    found = {}
    for line in host.fs.read(GROUP).decode().splitlines():
        name, _, rest = line.strip().partition(":")
        found[name] = rest.split(";")[0].partition("=")[2].strip()
    return found


def test_a_socket_that_goes_takes_no_protection_from_the_other(tmp_path: Path) -> None:
    stream = batch("batch-stream", "near", starts_s=10.0, threads=10)
    scenario = Scenario("away", "test", "", TWO, (service(TWO, "masstree", 0.5), stream), END_S, step_s=0.5)
    host = host_of(scenario, 0)
    # On cores of their own on one socket: they meet in its cache and its memory alone.
    for name, cpus in (("masstree", TWO.first_cores(4)), ("near", TWO.first_cores(6, 4))):
        host.fs.write(f"{CGROUP_ROOT}/bench/{name}/cpuset.cpus", str(cpus).encode())
    seen: list[dict[str, str]] = []

    async def run() -> None:
        agent = agent_on(host, scenario, str(tmp_path), "perph")
        try:
            for second in range(1, END_S + 1):
                if second == AWAY_S:
                    host.set_online(TWO.socket_cpus(0))
                elif second == BACK_S:
                    host.set_online(TWO.online)
                host.advance(float(second))
                await agent.tick(float(second))
                seen.append(limits(host))
        finally:
            await agent.stop(restore=True)

    asyncio.run(run())
    before = seen[AWAY_S - 2]
    assert before != FULL, "nothing was in force when the socket went"
    for second in range(AWAY_S, END_S + 1):
        assert seen[second - 1] != FULL, f"all of it was lost at {second} s: {seen[second - 5 : second]}"
    assert seen[AWAY_S - 1] == before, "the loss of the other socket changed it"
    assert seen[BACK_S - 1] == seen[BACK_S - 2], "the return of the other socket changed it"
