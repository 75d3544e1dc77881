"""The whole agent on a simulated host with two sockets: an LRA's protection ends at its own socket."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from perphd.domain.cpuset import CpuSet
from perphd.sim.host import SimHost
from perphd.sim.machine import CGROUP_ROOT
from perphd.sim.node.machine import SILVER_4114
from tools.bench.policies.agentmode import agent_on, host_of
from tools.bench.policies.scenarios import batch, service
from tools.bench.policies.scene import GRACE, Actor, Scenario

RESCTRL = "/sys/fs/resctrl"
TWO = replace(SILVER_4114, sockets=2, memory_bytes=92 << 30)
ALL_WAYS, NO_THROTTLE = 0x7FF, 100


def scene(*actors: Actor) -> Scenario:
    return Scenario("two-sockets", "test", "", TWO, actors, 60.0, step_s=0.5)


def values(host: SimHost, name: str) -> dict[tuple[str, int], int]:
    """What a workload's threads have: (resource, domain) -> value, as the kernel's tree says."""
    path = f"{RESCTRL}/perphd.{name}/schemata"
    if not host.fs.exists(path):
        path = f"{RESCTRL}/schemata"
    found = {}
    for line in host.fs.read(path).decode().splitlines():
        resource, _, rest = line.strip().partition(":")
        for part in rest.split(";"):
            domain, _, value = part.partition("=")
            found[resource, int(domain)] = int(value, 16 if resource == "L3" else 10)
    return found


def play(
    state_dir: Path, scenario: Scenario, pinned: Mapping[str, CpuSet], seconds: int = 60
) -> tuple[dict[str, list[dict[tuple[str, int], int]]], dict[str, float]]:
    """What each batch job had at every second, and each LRA's mean score over the last twenty."""
    host = host_of(scenario, 0)
    for name, cpus in pinned.items():
        host.fs.write(f"{CGROUP_ROOT}/bench/{name}/cpuset.cpus", str(cpus).encode())
    before = sorted(host.fs.listdir(RESCTRL))
    had: dict[str, list[dict[tuple[str, int], int]]] = {a.name: [] for a in scenario.batch}
    scores: dict[str, list[float]] = {a.name: [] for a in scenario.lras}

    async def run() -> None:
        agent = agent_on(host, scenario, str(state_dir), "perph")
        try:
            for second in range(1, seconds + 1):
                host.advance(float(second))
                await agent.tick(float(second))
                for name, seen in had.items():
                    seen.append(values(host, name))
                for actor in scenario.lras:
                    assert actor.goal is not None
                    served = host.outcome(actor.name)
                    scores[actor.name].append(actor.goal.score(served.work_per_s, served.p95_ms))
        finally:
            await agent.stop(restore=True)

    asyncio.run(run())
    assert sorted(host.fs.listdir(RESCTRL)) == before
    return had, {name: sum(seen[-20:]) / 20 for name, seen in scores.items()}


def stream(label: str) -> Actor:
    return batch("batch-stream", label, starts_s=10.0, threads=16)


def narrowed(had: list[dict[tuple[str, int], int]], domain: int) -> bool:
    return any(seen["L3", domain] != ALL_WAYS or seen["MB", domain] != NO_THROTTLE for seen in had)


def test_batch_keeps_the_cache_and_bandwidth_of_the_socket_where_no_lra_runs(tmp_path: Path) -> None:
    scenario = scene(service(TWO, "img-dnn", 0.5), stream("near"), stream("far"))
    pinned = {"img-dnn": TWO.socket_cpus(0), "near": TWO.socket_cpus(0), "far": TWO.socket_cpus(1)}
    had, scores = play(tmp_path, scenario, pinned)
    assert narrowed(had["near"], 0)
    assert not narrowed(had["near"], 1)
    assert not narrowed(had["far"], 1)
    assert scores["img-dnn"] >= 1.0 / GRACE


def test_two_lras_on_two_sockets_each_get_what_they_need(tmp_path: Path) -> None:
    scenario = scene(
        service(TWO, "img-dnn", 0.5), service(TWO, "memcached", 0.2), stream("left"), stream("right")
    )
    left, right = TWO.socket_cpus(0), TWO.socket_cpus(1)
    pinned = {"img-dnn": left, "left": left, "memcached": right, "right": right}
    had, scores = play(tmp_path, scenario, pinned)
    assert narrowed(had["left"], 0)
    # What is laid on the two sockets is not the strictest wish of both.
    assert any((seen["L3", 0], seen["MB", 0]) != (seen["L3", 1], seen["MB", 1]) for seen in had["left"])
    assert min(scores.values()) >= 1.0 / GRACE
