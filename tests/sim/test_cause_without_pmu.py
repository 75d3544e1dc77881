"""Which cause an agent names where the processor's events cannot be counted: by resctrl's counters, or not at all."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from perphd.agent.agent import Agent
from perphd.agent.composition import build_agent
from perphd.agent.simulated import simulated_sli
from perphd.agent.sli import SliOpener
from perphd.commands.explain import explain_parts
from perphd.commands.render_status import status_parts
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.control.metrics import Collector
from perphd.control.table import plain
from perphd.domain.decision import TROUBLED, Cause
from perphd.domain.workload import Kind, Mode, SliSpec, WorkloadSpec
from perphd.monitor.sli import PushSource
from perphd.sim.host import Arrival, SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import placed

ARRIVES_S = 60.0
SLI = SliSpec("simulated", (("workload", "db"),))


def world(
    state: Path, *, resctrl: bool, sli: SliSpec | None, opener: SliOpener | None = None
) -> tuple[SimHost, Agent]:
    """A key-value store beside a job that streams through memory, on sixteen cores without a PMU."""
    host = SimHost(
        (placed("masstree", "/t/db", "db"), placed("batch-stream", "/t/hog", "hog")),
        machine=Machine(1, 16),
        events=(Arrival(ARRIVES_S, "hog"),),
        seed=5,
        pmu=False,
        resctrl=resctrl,
    )
    for cgroup in ("/t/db", "/t/hog"):
        host.fs.write(f"{CGROUP_ROOT}{cgroup}/cpuset.cpus", str(host.machine.online).encode())
    specs = (
        WorkloadSpec("db", Kind.LRA, "/t/db", sli=sli),
        WorkloadSpec("hog", Kind.BATCH, "/t/hog"),
    )
    config = Config(
        daemon=DaemonConfig(mode=Mode.ENFORCE, state_dir=str(state)),
        store=StoreConfig(enabled=False),
        workloads=specs,
    )
    agent = build_agent(
        config, fs=host.fs, opener=host.perf_opener, sli_opener=opener or simulated_sli(host)
    )  # fmt: skip
    return host, agent


async def test_bandwidth_trouble_is_named_by_the_counters_of_resctrl(tmp_path: Path) -> None:
    host, agent = world(tmp_path, resctrl=True, sli=SLI)
    named: Counter[Cause] = Counter()
    for second in range(1, 120):
        host.advance(float(second))
        await agent.tick(float(second))
        verdict = agent.decisions("db", limit=1)[0].verdict
        if verdict.health in TROUBLED and second > ARRIVES_S:
            named[verdict.cause] += 1
    await agent.stop(restore=False)
    assert named[Cause.MBW] + named[Cause.LLC] > 2 * named[Cause.CPU]
    assert named[Cause.MBW] >= 3


async def test_an_indicator_that_gives_nothing_is_named_and_not_taken_for_a_missing_one(
    tmp_path: Path,
) -> None:
    silent = SliSpec("push")
    host, agent = world(tmp_path, resctrl=False, sli=silent, opener=lambda spec, _: PushSource(spec))
    for second in range(1, 75):
        host.advance(float(second))
        await agent.tick(float(second))
    status = agent.status()
    shown = " ".join(plain(status_parts(status, 75.0, verbose=True)).split())
    assert "! db: its indicator gives no rate: nothing has been pushed yet (for 73 s)" in shown
    assert "db: judged by CPU time only" in shown
    assert "because the SLI gives no rate now" in shown
    assert "an SLI shows it" not in shown
    item = next(item for item in status.workloads if item.spec.name == "db")
    late = replace(item, full_sample=None, sample=replace(item.sample, quality=()) if item.sample else None)
    shown_late = replace(status, workloads=(late,))
    metrics = Collector(lambda: shown_late, lambda: agent.tally, lambda: agent.topology).text().decode()
    assert 'perphd_lra_sli_up{workload="db"} 0' in metrics
    await agent.stop(restore=False)


async def test_cpu_time_as_the_only_signal_is_said_in_status_and_explain(tmp_path: Path) -> None:
    host, agent = world(tmp_path, resctrl=False, sli=None)
    for second in range(1, 75):
        host.advance(float(second))
        await agent.tick(float(second))
    status = plain(status_parts(agent.status(), 75.0, verbose=True))
    line = (
        "db: judged by CPU time only: a slowdown by cache or memory bandwidth cannot be seen; an SLI shows it"
    )
    assert status.count(line) == 1
    told = plain(explain_parts(agent.decisions("db", limit=1), 0.0))
    work = next(text for text in told.splitlines() if "work (CPU time)" in text)
    assert " cores, target " in work
    assert "cannot be seen" in work
    assert "/s" not in work
    await agent.stop(restore=False)
