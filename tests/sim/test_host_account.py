"""The account of the simulated host: undeclared work is seen by name, and the status has a line for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from perphd.agent.composition import build_agent
from perphd.agent.simulated import simulated_sli
from perphd.commands.render_status import status_parts
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.control.metrics import Collector
from perphd.control.table import plain
from perphd.domain.workload import Kind, SliSpec, WorkloadSpec
from perphd.sim.host import Arrival, SimHost
from perphd.sim.machine import Machine
from perphd.sim.workload import Batch, Lra


async def test_undeclared_work_is_in_the_account_by_name(tmp_path: Path) -> None:
    host = SimHost(
        (
            Lra("db", "/t/db", clients=4, service_ms=2.0, serial_ms=0.05, wait_ms=1.5),
            Batch("pi", "/t/pi", threads=2),
            Batch("hog", "/cron.slice/hog", threads=3),
        ),
        machine=Machine(1, 8),
        events=(Arrival(10.0, "hog"),),
        seed=3,
    )
    config = Config(
        daemon=DaemonConfig(state_dir=str(tmp_path)),
        store=StoreConfig(enabled=False),
        workloads=(
            WorkloadSpec("db", Kind.LRA, "/t/db", sli=SliSpec("simulated", (("workload", "db"),))),
            WorkloadSpec("pi", Kind.BATCH, "/t/pi"),
        ),
    )
    agent = build_agent(config, fs=host.fs, opener=host.perf_opener, sli_opener=simulated_sli(host))
    for second in range(1, 61):
        host.advance(float(second))
        await agent.tick(float(second))
        account = agent.status().host
        if second == 9:
            assert account is not None
            assert account.cpu.undeclared < 0.05
    account = agent.status().host
    assert account is not None
    cpu = account.cpu
    parts = (cpu.lras, cpu.batch, cpu.undeclared, cpu.kernel, cpu.steal, cpu.idle)
    assert sum(parts) == pytest.approx(cpu.capacity)
    assert cpu.capacity == 8.0
    assert account.undeclared[0].group == "/cron.slice/hog"
    assert account.undeclared[0].cpu_cores == pytest.approx(3.0, rel=0.1)
    assert "/cron.slice/hog 3" in plain(status_parts(agent.status(), 60.0))
    shown = Collector(agent.status, lambda: agent.tally, lambda: agent.topology).text().decode()
    assert 'perphd_host_undeclared_cpu_cores{group="/cron.slice/hog"}' in shown
    assert 'perphd_host_cpu_seconds_total{part="idle"}' in shown
    await agent.stop(restore=False)
