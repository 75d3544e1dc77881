"""Latency targets on disks: who may ask for one, what is written and given back, and what doctor says."""

from __future__ import annotations

from pathlib import Path

import pytest

from perphd.agent.agent import Agent
from perphd.agent.composition import build_agent
from perphd.agent.devices import latency
from perphd.agent.devices.latency import LOOK_S, DiskLatency
from perphd.agent.simulated import simulated_sli
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.config.workloads import read_workload
from perphd.domain.allocation import UNTOUCHED, Settings
from perphd.domain.errors import ConfigError
from perphd.domain.workload import Kind, Mode, SliSpec, WorkloadSpec
from perphd.host.disk_use import DiskCounters
from perphd.qos.band_report import latency_line
from perphd.sim.host import SimHost
from perphd.sim.kernel.cgroup2 import tree
from perphd.sim.kernel.cgroup2.rules import DISK, Kernel
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import Batch, Lra

FILE = f"{CGROUP_ROOT}/t/db/io.latency"


def db(**changes: object) -> WorkloadSpec:
    return WorkloadSpec("db", Kind.LRA, "/t/db", **changes)  # type: ignore[arg-type]


def test_lras_and_silver_batch_may_ask_for_a_target() -> None:
    asked: dict[str, object] = {"name": "db", "cgroup": "/t/db", "tuning": {"io_latency_ms": 5}}
    assert read_workload(Kind.LRA, asked, "file", "lra[0]").io_latency_ms == 5.0
    assert read_workload(Kind.BATCH, asked | {"band": "silver"}, "file", "batch[0]").io_latency_ms == 5.0
    for band in ({}, {"band": "copper"}):
        with pytest.raises(ConfigError, match="only LRAs and silver batch"):
            read_workload(Kind.BATCH, asked | band, "file", "batch[0]")
    with pytest.raises(ConfigError, match="io_latency_ms"):
        read_workload(Kind.LRA, asked | {"tuning": {"io_latency_ms": -1}}, "file", "lra[0]")


def test_every_disk_gets_the_target_and_disks_are_looked_up_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = ["8:0"]
    monkeypatch.setattr(latency, "disk_counters", lambda _: dict.fromkeys(there))
    disks = DiskLatency(SimHost([], machine=Machine(1, 2)).fs)
    assert disks.over(db(), UNTOUCHED, 0.0) == UNTOUCHED
    asked = db(io_latency_ms=2.5)
    assert disks.over(asked, UNTOUCHED, 0.0).io_latency_us == (("8:0", 2500),)
    there.append("254:0")
    assert disks.disks(LOOK_S - 1.0) == ("8:0",)
    assert disks.over(asked, UNTOUCHED, LOOK_S).io_latency_us == (("254:0", 2500), ("8:0", 2500))
    there.clear()
    assert disks.over(asked, UNTOUCHED, 3 * LOOK_S) == UNTOUCHED
    own = Settings(io_latency_us=(("8:0", 1),))
    assert disks.over(asked, own, 0.0) == own


@pytest.mark.parametrize("found", ["", f"{DISK} target=900\n", f"{DISK} target=70000\n"])
async def test_the_daemon_sets_it_keeps_a_stricter_one_and_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    monkeypatch.setattr(tree, "Kernel", lambda: Kernel(io_latency=True))
    monkeypatch.setattr(latency, "disk_counters", lambda _: {DISK: DiskCounters(0, 0)})
    host, agent = world(tmp_path)
    if found:
        host.fs.write(FILE, found.strip().encode())
    for second in (1.0, 2.0, 3.0):
        host.advance(second)
        await agent.tick(second)
    assert host.fs.read(FILE) == f"{DISK} target={900 if '=900' in found else 5000}\n".encode()
    line = next(each for each in agent.bands() if "io_latency_ms" in each)
    assert line.startswith(f"db (io_latency_ms): io.latency of 5 ms on {DISK}; ")
    assert "slows down sibling groups for it: pi" in line
    await agent.stop(restore=True)
    assert host.fs.read(FILE).decode() == found


async def test_doctor_says_where_the_kernel_has_no_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency, "disk_counters", lambda _: {DISK: DiskCounters(0, 0)})
    host, agent = world(tmp_path)
    for second in (1.0, 2.0):
        host.advance(second)
        await agent.tick(second)
    line = next(each for each in agent.bands() if "io_latency_ms" in each)
    assert line.startswith("db (io_latency_ms): no target on disks: ")
    assert not agent.blocked("pi")
    await agent.stop(restore=True)


def world(folder: Path) -> tuple[SimHost, Agent]:
    host = SimHost(
        [Lra("db", "/t/db", clients=2, service_ms=2.0), Batch("pi", "/t/pi", threads=2)],
        machine=Machine(1, 4),
        seed=1,
    )
    config = Config(
        daemon=DaemonConfig(mode=Mode.ENFORCE, policy="none", state_dir=str(folder)),
        store=StoreConfig(enabled=False),
        workloads=(
            db(sli=SliSpec("simulated", (("workload", "db"),)), io_latency_ms=5.0),
            WorkloadSpec("pi", Kind.BATCH, "/t/pi"),
        ),
    )
    return host, build_agent(config, fs=host.fs, opener=host.perf_opener, sli_opener=simulated_sli(host))


def test_only_siblings_are_slowed_down() -> None:
    asked = db(io_latency_ms=5.0)
    others = [
        WorkloadSpec("near", Kind.BATCH, "/t/near"),
        WorkloadSpec("far", Kind.BATCH, "/batch.slice"),
        WorkloadSpec("lra", Kind.LRA, "/u/lra"),
        WorkloadSpec("lost", Kind.BATCH, ""),
    ]
    line = latency_line(asked, True, ("8:0",), "", others)
    assert "for it: near; it has no effect on far, which is below another parent group" in line
    assert latency_line(asked, False, (), "", others).endswith("nothing is set: it is only observed")
    assert "does not exist" in latency_line(WorkloadSpec("x", Kind.LRA, ""), True, (), "", ())
    assert "no workload" in latency_line(asked, True, ("8:0",), "", ())
