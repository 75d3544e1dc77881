"""The whole agent with a source that reports once a second: no reading, verdict or rollback is made by its reports."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from perphd.agent.agent import Agent
from perphd.agent.composition import build_agent
from perphd.agent.simulated import simulated_sli
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.domain.decision import Action, Decision, Health
from perphd.domain.reading import Unavailable, available
from perphd.domain.sample import Quality, Sample
from perphd.domain.status import AgentStatus
from perphd.domain.workload import Kind, Mode, SliSpec, WorkloadSpec
from perphd.sim.host import Arrival, SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import Batch, Lra

WEB = Lra("web", "/t/web", rate_per_s=400.0, service_ms=2.0, serial_ms=0.05, wait_ms=1.5)
FEW = Lra("web", "/t/web", rate_per_s=30.0, service_ms=8.0, serial_ms=0.05, wait_ms=1.5)
CLOSED = Lra("web", "/t/web", clients=10, service_ms=2.0, serial_ms=0.05, wait_ms=1.5)
PI = Batch("pi", "/t/pi", threads=8)
FAST_S = 0.25


class Run:
    """An agent on a simulated host, one tick after the other."""

    def __init__(self, state: Path, lra: Lra, resolution: str, backends: int, arrives_s: float) -> None:
        self.host = SimHost(
            (lra, PI), machine=Machine(1, 8), events=(Arrival(arrives_s, "pi"),), seed=3, pmu=False
        )
        if backends:
            self.host.report_sli_every("web", 1.0, backends)
        for work in (lra, PI):
            self.host.fs.write(f"{CGROUP_ROOT}{work.cgroup}/cpuset.cpus", b"0-7")
        told = (("resolution_s", resolution), ("workload", "web")) if resolution else (("workload", "web"),)
        self.agent: Agent = build_agent(
            Config(
                daemon=replace(DaemonConfig(), mode=Mode.ENFORCE, state_dir=str(state)),
                store=StoreConfig(enabled=False),
                workloads=(
                    WorkloadSpec("web", Kind.LRA, "/t/web", sli=SliSpec("simulated", told)),
                    WorkloadSpec("pi", Kind.BATCH, "/t/pi"),
                ),
            ),
            fs=self.host.fs,
            sli_opener=simulated_sli(self.host),
        )
        self.samples: list[Sample] = []
        self.decisions: list[Decision] = []
        self.seen: list[AgentStatus] = []

    async def ticks(self, until_s: float, pace_s: float | None) -> None:
        """``pace_s`` None: the pace that the agent asks for."""
        while self.host.now_s < until_s:
            step_s = self.agent.pace_s if pace_s is None else pace_s
            now_s = self.host.now_s + (step_s if self.samples else 1.0)
            self.host.advance(now_s)
            await self.agent.tick(now_s, step_s)
            self.samples.append(self.agent.samples["web"])
            self.decisions.append(self.agent.decisions("web", limit=1)[0])
            self.seen.append(self.agent.status())
        await self.agent.stop(restore=False)


def rates(run: Run, since_s: float = 0.0) -> list[float]:
    found = [s.work_rate_per_s for s in run.samples if s.at_s >= since_s]
    return [rate for rate in found if available(rate)]


@pytest.mark.parametrize(
    ("resolution", "backends"), [("1", 1), ("1", 4), ("1", 16), ("find", 1), ("find", 3)]
)
async def test_reports_are_no_readings_at_any_pace(tmp_path: Path, resolution: str, backends: int) -> None:
    run = Run(tmp_path, WEB, resolution, backends, arrives_s=1e9)
    await run.ticks(40.0, FAST_S)
    told = rates(run, 3.0)
    assert len(told) >= 25
    assert min(told) > 400.0 * 0.9, "no 0, nothing of a part of a report"
    assert max(told) < 400.0 * 1.1, "nothing of several at once"
    assert not any(s.has(Quality.SLI_MISSING) for s in run.samples if s.at_s > 1.5)
    between = [s for s in run.samples if s.has(Quality.BETWEEN) and s.at_s > 20.0]
    assert between
    assert {s.work_rate_per_s.reason for s in between if isinstance(s.work_rate_per_s, Unavailable)} == {
        "the source reports every 1 s"
    }
    assert (
        run.seen[-1].workloads[0].sli_resolution == f"1 s ({'configured' if resolution == '1' else 'found'})"
    )
    full = run.seen[-2].workloads[0].full_sample
    assert full is not None
    assert available(full.work_rate_per_s), "the last full reading stands"
    unknown = [d for d in run.decisions if d.verdict.health is Health.UNKNOWN and d.at_s > 15.0]
    assert not unknown, "its health stands between two reports"
    assert all(d.action is Action.HOLD for d in run.decisions)
    assert not any(d.verdict.health is Health.DEGRADED for d in run.decisions)
    shares = [s.work_events for s in run.samples if available(s.work_events)]
    windows = [s.sli_window_s for s in run.samples if available(s.sli_window_s)]
    assert sum(shares) == pytest.approx(400.0 * sum(windows), rel=0.03), "none is lost, none is twice"


async def test_the_attentive_pace_is_not_taken_for_a_source_that_is_coarser(tmp_path: Path) -> None:
    coarse = Run(tmp_path / "coarse", CLOSED, "1", 4, arrives_s=20.0)
    await coarse.ticks(45.0, None)
    fine = Run(tmp_path / "fine", CLOSED, "", 0, arrives_s=20.0)
    await fine.ticks(45.0, None)
    assert min(s.pace_s for s in fine.seen) == FAST_S
    assert min(s.pace_s for s in coarse.seen) == 1.0
    for run in (coarse, fine):
        assert any(d.action in (Action.GROW, Action.EXPLORE) for d in run.decisions), "batch is held back"
        assert not any(d.action is Action.ROLLBACK for d in run.decisions)
    assert min(rates(coarse, 3.0)) > 0.8 * min(rates(fine, 3.0)) > 0.0
    assert max(rates(coarse, 3.0)) < 1.2 * max(rates(fine, 3.0))


async def test_few_events_are_waited_for_and_said_so(tmp_path: Path) -> None:
    run = Run(tmp_path, FEW, "", 0, arrives_s=1e9)
    await run.ticks(30.0, 1.0)
    said = [d.verdict.evidence[0].text for d in run.decisions if d.at_s > 10.0 and d.verdict.evidence]
    waiting = [text for text in said if text.startswith("waiting for enough events: ")]
    assert waiting
    assert all(text.endswith(" of 100") for text in waiting)
    events = [s.work_events for s in run.samples if available(s.work_events)]
    assert math.fsum(events) == pytest.approx(30.0 * 30, rel=0.1)
    assert not any(d.verdict.health is Health.UNKNOWN for d in run.decisions if d.at_s > 25.0)
