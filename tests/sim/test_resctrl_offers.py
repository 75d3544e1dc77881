"""The whole agent on a simulated host: what it makes of a calibration, of a later mount, and of masks for LRAs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from perphd.agent.agent import Agent
from perphd.agent.composition import build_agent
from perphd.agent.simulated import simulated_sli
from perphd.domain.allocation import Settings
from perphd.domain.policy import Snapshot, TargetState
from perphd.host.resctrl import open_groups
from perphd.host.throttle import CAPABILITY, FILE
from perphd.sim.host import SimHost
from perphd.sim.machine import CGROUP_ROOT
from rdt.curves import Calibration, Curve, Point
from rdt.probe import machine_name
from tests.sim.test_two_sockets import ALL_WAYS, NO_THROTTLE, TWO, scene, stream, values
from tools.bench.policies.agentmode import agent_on, host_of
from tools.bench.policies.scenarios import service
from tools.bench.policies.scene import Scenario

MOUNTED_S = 20


def calibration_of(host: SimHost) -> Calibration:
    """As it might have been measured: from 60 % on nothing is held back, below that 0.2 GB/s a core and per cent."""
    groups = open_groups(host.fs)
    assert not isinstance(groups, str)
    info = groups.resctrl.info.bandwidths["MB"]
    points = tuple(Point(level, 10 * 0.2e9 * min(level, 60)) for level in info.steps())
    curves = tuple(Curve("MB", domain, 10, "mbm", points) for domain in info.domains)
    return Calibration(
        machine_name(groups.resctrl.access.fs), "2026-01-01T00:00:00+00:00", info.unit, info.minimum,
        info.granularity, info.thread_throttle_mode, curves,
    )  # fmt: skip


def pinned(scenario: Scenario) -> SimHost:
    host = host_of(scenario, 0)
    for actor in scenario.actors:
        host.fs.write(f"{CGROUP_ROOT}/bench/{actor.name}/cpuset.cpus", str(TWO.socket_cpus(0)).encode())
    return host


def live(agent: Agent, host: SimHost, seconds: int, then: Callable[[int], None]) -> None:
    async def run() -> None:
        try:
            for second in range(1, seconds + 1):
                host.advance(float(second))
                await agent.tick(float(second))
                then(second)
        finally:
            await agent.stop(restore=True)

    asyncio.run(run())


def test_a_calibration_that_comes_while_the_daemon_runs_is_noticed(tmp_path: Path) -> None:
    scenario = scene(service(TWO, "xapian", 0.5), stream("near"))
    host = pinned(scenario)
    agent = agent_on(host, scenario, str(tmp_path), "perph")
    known: list[bool] = []
    said: set[str] = set()

    def look(second: int) -> None:
        if second == 2:
            calibration_of(host).save(tmp_path / FILE)
        known.append(agent.capabilities[CAPABILITY].present)
        said.update(str(d.chosen) for d in agent.decisions("xapian", limit=1))

    live(agent, host, 70, look)
    assert not known[0]
    assert known[-1]
    assert any("(nominal)" in text for text in said), said


def test_bandwidth_that_was_calibrated_is_said_in_bytes(tmp_path: Path) -> None:
    scenario = scene(service(TWO, "xapian", 0.5), stream("near"))
    host = pinned(scenario)
    calibration_of(host).save(tmp_path / FILE)
    agent = agent_on(host, scenario, str(tmp_path), "perph")
    said: set[str] = set()
    live(agent, host, 40, lambda _: said.update(str(d.chosen) for d in agent.decisions("xapian", limit=1)))
    assert any("batch at most" in text and "calibrated)" in text for text in said), said
    assert not any("(nominal)" in text for text in said), said


def test_parties_uses_ways_and_bandwidth_that_are_mounted_later(tmp_path: Path) -> None:
    scenario = scene(service(TWO, "img-dnn", 0.5), stream("near"))
    host = pinned(scenario)
    assert host.resctrl is not None
    host.resctrl.umount()
    agent = agent_on(host, scenario, str(tmp_path), "parties")
    found: list[tuple[dict[tuple[str, int], int], ...]] = []

    def look(second: int) -> None:
        assert host.resctrl is not None
        if second == MOUNTED_S:
            host.resctrl.mount()
        if second >= MOUNTED_S:
            found.append((values(host, "img-dnn"), values(host, "near")))

    live(agent, host, MOUNTED_S + 100, look)
    lra, batch = found[-1]
    assert lra["L3", 0] & batch["L3", 0] == 0
    assert lra["L3", 0] != ALL_WAYS
    assert batch["MB", 0] < NO_THROTTLE


class Fixed:
    """Masks of their own for two LRAs on one domain, and none for batch there."""

    name = "fixed"

    def decide(self, snapshot: Snapshot) -> TargetState:
        return TargetState(
            {
                "img-dnn": Settings(llc_masks=((0, 0x00F),)),
                "xapian": Settings(llc_masks=((0, 0x1F0),)),
                "near": Settings(llc_masks=((0, 0x600),), mba_pct=((0, 50),)),
            }
        )


def test_masks_of_some_domains_leave_the_others_as_they_are(tmp_path: Path) -> None:
    scenario = scene(
        service(TWO, "img-dnn", 0.3), service(TWO, "xapian", 0.3), replace(stream("near"), starts_s=0.0)
    )
    host = pinned(scenario)
    example = agent_on(host, scenario, str(tmp_path / "example"), "perph")
    config = replace(example.config, daemon=replace(example.config.daemon, state_dir=str(tmp_path / "state")))
    asyncio.run(example.stop(restore=True))
    agent = build_agent(
        config, fs=host.fs, opener=host.perf_opener, sli_opener=simulated_sli(host), store=False, delays=host,
        policy=Fixed(),
    )  # fmt: skip
    seen: dict[str, dict[tuple[str, int], int]] = {}

    def look(second: int) -> None:
        seen.update({name: values(host, name) for name in ("img-dnn", "xapian", "near")})

    live(agent, host, 5, look)
    assert [seen[name]["L3", 0] for name in ("img-dnn", "xapian", "near")] == [0x00F, 0x1F0, 0x600]
    assert seen["near"]["MB", 0] == 50
    for name, found in seen.items():
        assert found["L3", 1] == ALL_WAYS, name
        assert found["MB", 1] == NO_THROTTLE, name
        assert name == "near" or found["MB", 0] == NO_THROTTLE
