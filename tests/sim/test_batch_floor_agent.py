"""min_cores on the simulated host: undeclared work fills it, an LRA is protected, and batch gets its CPU time."""

from __future__ import annotations

from pathlib import Path

import pytest

from perphd.agent.composition import build_agent
from perphd.agent.simulated import simulated_sli
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.domain.reading import value_or
from perphd.domain.workload import Kind, Mode, SliSpec, WorkloadSpec
from perphd.sim.host import Arrival, SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import Batch, Lra

DB = Lra("db", "/t/db", clients=6, service_ms=2.0, serial_ms=0.05, wait_ms=1.5)
PI = Batch("pi", "/t/pi", threads=8)
HOG = Batch("hog", "/t/hog", threads=16)
FROM_S, FULL_S, UNTIL_S = 20.0, 60.0, 180


async def used(state: Path, min_cores: float | None, max_starvation_s: float | None = None) -> list[float]:
    """CPU time of batch, second by second, from when the host is full."""
    events = [Arrival(FROM_S, "pi"), Arrival(FULL_S, "hog")]
    host = SimHost([DB, PI, HOG], machine=Machine(1, 4), events=events, seed=1)
    host.fs.write(f"{CGROUP_ROOT}/t/hog/cpu.weight", b"1000")
    config = Config(
        daemon=DaemonConfig(mode=Mode.ENFORCE, state_dir=str(state)),
        store=StoreConfig(enabled=False),
        workloads=(
            WorkloadSpec("db", Kind.LRA, "/t/db", sli=SliSpec("simulated", (("workload", "db"),))),
            WorkloadSpec("pi", Kind.BATCH, "/t/pi", min_cores=min_cores, max_starvation_s=max_starvation_s),
        ),
    )
    agent = build_agent(config, fs=host.fs, opener=host.perf_opener, sli_opener=simulated_sli(host))
    found = []
    for second in range(1, UNTIL_S + 1):
        host.advance(float(second))
        await agent.tick(float(second))
        (pi,) = (item for item in agent.status().workloads if item.spec.name == "pi")
        if second > FULL_S and pi.sample is not None:
            found.append(value_or(pi.sample.cpu_usage_cores, 0.0))
    await agent.stop(restore=True)
    assert b"100" in host.fs.read(f"{CGROUP_ROOT}/t/pi/cpu.weight")
    return found


def least(found: list[float]) -> float:
    return min(sum(found[k : k + 10]) / 10.0 for k in range(len(found) - 9))


@pytest.mark.parametrize("min_cores", [0.5, 1.5])
async def test_batch_gets_its_floor_while_undeclared_work_fills_the_host(
    tmp_path: Path, min_cores: float
) -> None:
    assert least((await used(tmp_path, min_cores))[30:]) >= 0.9 * min_cores


async def test_without_a_floor_it_does_not(tmp_path: Path) -> None:
    assert least((await used(tmp_path, None))[30:]) < 0.4


async def test_starvation_is_bounded(tmp_path: Path) -> None:
    without, longest = 0, 0
    for cores in await used(tmp_path, None, max_starvation_s=10.0):
        without = without + 1 if cores < 0.01 else 0
        longest = max(longest, without)
    assert longest <= 10
