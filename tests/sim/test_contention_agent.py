"""Back-off from memory bandwidth through the whole agent, on a simulated server with resctrl."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from perphd.agent.agent import Agent
from perphd.agent.composition import build_agent
from perphd.agent.devices.hints import HINTS, hints_file
from perphd.agent.simulated import simulated_sli
from perphd.config.file import Config, DaemonConfig, ResctrlConfig, StoreConfig
from perphd.config.tables import ContentionConfig
from perphd.domain.reading import available
from perphd.domain.workload import Kind, Mode, WorkloadSpec
from perphd.qos.contention import MAX_ROUNDS, ROUND_S
from perphd.sim.host import Arrival, SimHost
from perphd.sim.kernel.resctrl import MOUNT_POINT
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import placed

ARRIVES_S = 30


@dataclass
class World:
    """Sixteen cores on one cache: four of the LRA's, twelve of a job that streams through memory and comes later."""

    folder: Path
    mode: Mode = Mode.ENFORCE
    takes_hints: bool = False
    obeys: bool = False
    host: SimHost = field(init=False)
    agent: Agent = field(init=False)
    rates: dict[int, float] = field(default_factory=dict)
    rungs: list[str] = field(default_factory=list)
    schemata: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.host = SimHost(
            (placed("batch-stream", "/t/scan", "scan"), placed("batch-stream", "/t/copy", "copy")),
            machine=Machine(1, 16),
            events=(Arrival(float(ARRIVES_S), "copy"),),
            seed=5,
            pmu=True,
            resctrl=True,
        )
        for name, cpus in (("scan", b"0-3"), ("copy", b"4-15")):
            self.host.fs.write(f"{CGROUP_ROOT}/t/{name}/cpuset.cpus", cpus)
        config = Config(
            daemon=DaemonConfig(
                mode=self.mode, state_dir=str(self.folder), policy="none", socket=f"{self.folder}/run/socket"
            ),
            store=StoreConfig(enabled=False),
            resctrl=ResctrlConfig(monitor_in_observe=True),
            contention=ContentionConfig(devices="memory_bandwidth"),
            workloads=(
                WorkloadSpec("scan", Kind.LRA, "/t/scan"),
                WorkloadSpec("copy", Kind.BATCH, "/t/copy", takes_hints=self.takes_hints),
            ),
        )
        self.agent = build_agent(
            config, fs=self.host.fs, opener=self.host.perf_opener, sli_opener=simulated_sli(self.host)
        )

    def hint(self) -> str:
        text = hints_file(self.folder / HINTS, "copy").read_text()
        return text.splitlines()[0].partition("=")[2]

    async def run(self, until_s: int) -> None:
        for second in range(1, until_s):
            self.host.advance(float(second))
            await self.agent.tick(float(second))
            moved = self.agent.samples["scan"].mbw_bytes_per_s
            if available(moved):
                self.rates[second] = moved
            for device in self.agent.contended():
                self.rungs += [share.rung for share in device.restrictions]
            self.schemata |= {
                self.host.fs.read(f"{MOUNT_POINT}/{name}/schemata").decode().replace(" ", "")
                for name in self.host.fs.listdir(MOUNT_POINT)
                if name.startswith("perphd.copy")
            }
            if self.obeys:
                cpus = b"4" if self.hint() else b"4-15"
                self.host.fs.write(f"{CGROUP_ROOT}/t/copy/cpuset.cpus", cpus)

    def share_of_alone(self, first_s: int, last_s: int) -> float:
        """The LRA's bandwidth in these seconds by that before the job came."""
        alone = statistics.median(rate for second, rate in self.rates.items() if second < ARRIVES_S)
        held = [rate for second, rate in self.rates.items() if first_s <= second <= last_s]
        return statistics.median(held) / alone


def ended(world: World, until_s: int) -> World:
    async def live() -> None:
        await world.run(until_s)
        await world.agent.stop(restore=True)

    asyncio.run(live())
    assert not [name for name in world.host.fs.listdir(MOUNT_POINT) if name.startswith("perphd.")]
    return world


def test_the_lra_has_its_bandwidth_back_within_three_rounds(tmp_path: Path) -> None:
    world = ended(World(tmp_path), ARRIVES_S + 30)
    assert world.share_of_alone(ARRIVES_S + 1, ARRIVES_S + 3) < 0.7
    begins_s = ARRIVES_S + 4
    rounds = [
        world.share_of_alone(start + 2, start + int(ROUND_S))
        for start in (begins_s + number * int(ROUND_S) for number in range(MAX_ROUNDS))
    ]
    assert max(rounds) >= 0.9, rounds
    assert {"device ceiling", "cpu ceiling"} <= set(world.rungs)
    assert "hint" not in world.rungs
    assert any("MB:0=10" in text for text in world.schemata)


def test_in_observe_nothing_is_restricted(tmp_path: Path) -> None:
    world = ended(World(tmp_path, Mode.OBSERVE, takes_hints=True), ARRIVES_S + 20)
    assert world.rungs, "it says what it would have done"
    assert not any("MB:0=10" in text for text in world.schemata)
    assert world.share_of_alone(ARRIVES_S + 5, ARRIVES_S + 18) < 0.7


def test_a_job_that_obeys_its_hint_is_not_limited(tmp_path: Path) -> None:
    world = ended(World(tmp_path, takes_hints=True, obeys=True), ARRIVES_S + 12)
    assert set(world.rungs) == {"hint"}
    assert not any("MB:0=10" in text for text in world.schemata)
    assert world.share_of_alone(ARRIVES_S + 6, ARRIVES_S + 8) >= 0.9
