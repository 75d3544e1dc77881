"""A few scenarios with the whole agent, unmodified, on the simulated host's kernel trees: the slower, fuller check."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from dataclasses import replace
from typing import Any, Final, cast

from perphd.agent.agent import Agent
from perphd.agent.composition import POLICIES as COMPOSED
from perphd.agent.composition import build_agent
from perphd.agent.simulated import simulated_sli
from perphd.config.file import parse
from perphd.domain.workload import Mode, SliSpec
from perphd.sim.host import Arrival, Departure, SimHost
from perphd.sim.machine import CGROUP_ROOT
from perphd.sim.node.machine import SILVER_4110
from perphd.sim.workload import Placed
from tools.bench.policies import oracle, scenarios
from tools.bench.policies.catalogue import ENTRANTS
from tools.bench.policies.scene import GRACE, Scenario

SPEED: Final = "three-on-16-cores"
"""Two services and a batch job on 16 cores, to measure the speed of virtual time including the agent."""
SCENARIOS: Final = ("paper-tpcc", "paper-kafka", "mix-1lra-1batch-50", "antagonists", SPEED)
POLICIES: Final = (
    *COMPOSED, "cpu-sbs", "koordinator", "heracles", "heracles-literal", "parties", "perph-literal",
)  # fmt: skip
"""The daemon's own policies, and published ones that replace the daemon's."""


def scene(name: str) -> Scenario:
    """One of ``SCENARIOS``."""
    if name == SPEED:
        actors = (
            scenarios.closed(SILVER_4110, "mysql-oltp"),
            scenarios.service(SILVER_4110, "xapian", 0.3),
            scenarios.batch("batch-pi", threads=32, starts_s=scenarios.BATCH_COMES_S),
        )
        return Scenario(
            SPEED, "speed", "two services and a batch job on 16 cores", SILVER_4110, actors, 300.0,
            count_from_s=scenarios.BATCH_COMES_S, step_s=0.5,
        )  # fmt: skip
    return next(s for s in scenarios.standard() if s.name == name)


def measure_agent(name: str, policy: str) -> dict[str, object]:
    """Run the agent with this policy; violations, work and speed."""
    logging.getLogger("perphd").setLevel(logging.CRITICAL)
    return asyncio.run(_run(scene(name), policy))


def host_of(scenario: Scenario, seed: int) -> SimHost:
    """The simulated host of a scenario. Jobs do not end by themselves here."""
    works = [Placed(a.work, f"/bench/{a.name}") for a in scenario.actors]
    events: list[Arrival | Departure] = []
    for actor in scenario.actors:
        if actor.starts_s > 0:
            events.append(Arrival(actor.starts_s, actor.name))
        if actor.ends_s < scenario.duration_s:
            events.append(Departure(actor.ends_s, actor.name))
    loads = {a.name: a.load for a in scenario.lras}
    host = SimHost(
        works, machine=scenario.machine, events=events, seed=seed, pmu=True, resctrl=True, loads=loads,
        step_s=scenario.step_s,
    )  # fmt: skip
    for work in works:
        host.fs.write(f"{CGROUP_ROOT}{work.cgroup}/cpuset.cpus", str(host.machine.online).encode())
    return host


def agent_on(host: SimHost, scenario: Scenario, state_dir: str, policy: str) -> Agent:
    """The agent that controls the scenario's workloads on this host: enforcing, without a store."""
    specs = tuple(
        replace(a.spec, sli=SliSpec("simulated", (("workload", a.name),))) if a.is_lra else a.spec
        for a in scenario.actors
    )
    plain = parse("", "bench")
    own = policy in COMPOSED
    daemon = replace(
        plain.daemon, mode=Mode.ENFORCE, state_dir=state_dir, policy=cast(Any, policy if own else "none")
    )
    return build_agent(
        replace(plain, daemon=daemon, workloads=specs),
        policy=None if own else ENTRANTS[policy].make(scenario, 0),
        fs=host.fs,
        opener=host.perf_opener,
        sli_opener=simulated_sli(host),
        store=False,
        delays=host,
    )


async def _run(scenario: Scenario, policy: str) -> dict[str, object]:
    host = host_of(scenario, 0)
    missed = counted = done = work = 0.0
    alone = {a.name: oracle.alone_rate(scenario.machine, a.work) for a in scenario.actors}
    with tempfile.TemporaryDirectory(prefix="perphd-bench-") as folder:
        agent = agent_on(host, scenario, folder, policy)
        began = time.process_time()
        try:
            for now_s in range(1, int(scenario.duration_s) + 1):
                host.advance(float(now_s))
                await agent.tick(float(now_s))
                if now_s <= scenario.count_from_s:
                    continue
                counted += 1.0
                lras = [(a, host.outcome(a.name)) for a in scenario.lras if a.goal is not None]
                scores = [a.goal.score(o.work_per_s, o.p95_ms) for a, o in lras if a.goal is not None]
                missed += min(scores, default=1.0) < 1.0 / GRACE
                work += sum(o.work_per_s / alone[a.name] for a, o in lras) / max(1, len(lras))
                there = [a for a in scenario.batch if host.running(a.name)]
                done += sum(host.outcome(a.name).work_per_s / alone[a.name] for a in there) / max(
                    1, len(there)
                )
            seconds = time.process_time() - began
        finally:
            await agent.stop(restore=True)
    return {
        "scenario": scenario.name,
        "policy": policy,
        "seconds": counted,
        "violation_s": missed,
        "work": work / counted,
        "batch": done / counted,
        "speed": scenario.duration_s / seconds,
    }
