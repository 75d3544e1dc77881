"""perphctl suggest: the undeclared hog is named first, with lines to paste that the configuration accepts."""

from __future__ import annotations

from pathlib import Path

from perphd.agent.composition import build_agent
from perphd.agent.simulated import simulated_sli
from perphd.config.file import Config, DaemonConfig, StoreConfig, parse
from perphd.domain.reading import available
from perphd.domain.workload import Kind, SliSpec, WorkloadSpec
from perphd.sim.host import Arrival, SimHost
from perphd.sim.machine import CGROUP_ROOT
from perphd.sim.workload import Batch
from tests.sim.test_undeclared_cause import FROM_S, HOG, MACHINE, OPEN, SMALL


async def test_the_group_that_slows_an_lra_is_suggested_with_its_gain(tmp_path: Path) -> None:
    host = SimHost(
        (OPEN, SMALL, Batch("hog", HOG, threads=16)),
        machine=MACHINE,
        events=(Arrival(FROM_S, "hog"),),
        seed=4,
    )
    host.fs.write(f"{CGROUP_ROOT}{HOG}/cpu.weight", b"400")
    db = WorkloadSpec("db", Kind.LRA, "/t/db", sli=SliSpec("simulated", (("workload", "db"),)))
    config = Config(
        daemon=DaemonConfig(state_dir=str(tmp_path)), store=StoreConfig(enabled=False), workloads=(db,)
    )
    agent = build_agent(config, fs=host.fs, opener=host.perf_opener, sli_opener=simulated_sli(host))
    assert agent.suggestions() == ()
    for second in range(1, 121):
        host.advance(float(second))
        await agent.tick(float(second))
    found = agent.suggestions()
    await agent.stop(restore=False)
    assert found[0].group == HOG
    gain = found[0].gains[0]
    assert gain.lra == "db"
    assert gain.named_s > 60.0
    assert available(gain.work_ratio)
    assert available(gain.delay_ratio)
    assert gain.work_ratio > 1.0
    assert gain.delay_ratio < 1.0
    assert 'match = "unit:backup.service"' in found[0].config
    assert [m.name for m in parse(found[0].config, "pasted").matches] == ["backup"]
