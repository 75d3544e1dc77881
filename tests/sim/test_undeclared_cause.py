"""Whose doing it is, on the simulated host: undeclared work that fills it, or an application slowed from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from perphd.agent.composition import build_agent
from perphd.agent.simulated import simulated_sli
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.domain.decision import AWAITED, Cause, Decision, Health
from perphd.domain.workload import Kind, Mode, SliSpec, WorkloadSpec
from perphd.sim.host import Arrival, Event, SimHost, WorkChange
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import Batch, Lra, Workload

MACHINE = Machine(1, 4)
FROM_S, UNTIL_S = 30.0, 120
HOG = "/cron.slice/backup.service"
OPEN = Lra("db", "/t/db", rate_per_s=1000.0, service_ms=1.5, serial_ms=0.05, wait_ms=1.5)
CLOSED = Lra("db", "/t/db", clients=6, service_ms=2.0, serial_ms=0.05, wait_ms=1.5)
SMALL = Lra("small", "/cron.slice/small", rate_per_s=20.0, service_ms=5.0)
PI = Batch("pi", "/t/pi", threads=8)


async def verdicts(
    state: Path, works: Sequence[Workload], events: Sequence[Event], seed: int, mode: Mode
) -> list[Decision]:
    """What was decided about the LRA from ``FROM_S`` on, tick by tick."""
    host = SimHost(works, machine=MACHINE, events=events, seed=seed, pmu=seed % 2 == 0)
    if any(work.cgroup == HOG for work in works):
        host.fs.write(f"{CGROUP_ROOT}{HOG}/cpu.weight", b"400")
    specs = [WorkloadSpec("db", Kind.LRA, "/t/db", sli=SliSpec("simulated", (("workload", "db"),)))]
    if any(work.name == "pi" for work in works):
        specs.append(WorkloadSpec("pi", Kind.BATCH, "/t/pi"))
    config = Config(
        daemon=DaemonConfig(mode=mode, state_dir=str(state)),
        store=StoreConfig(enabled=False),
        workloads=tuple(specs),
    )
    agent = build_agent(config, fs=host.fs, opener=host.perf_opener, sli_opener=simulated_sli(host))
    found = []
    for second in range(1, UNTIL_S + 1):
        host.advance(float(second))
        await agent.tick(float(second))
        if second > FROM_S:
            found.append(agent.decisions("db", limit=1)[0])
    await agent.stop(restore=True)
    return found


def degraded(found: Sequence[Decision]) -> list[Decision]:
    return [decision for decision in found if decision.verdict.health is Health.DEGRADED]


@pytest.mark.parametrize("lra", [OPEN, CLOSED], ids=["open", "closed"])
@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ENFORCE])
@pytest.mark.parametrize("with_batch", [False, True], ids=["alone", "with batch"])
@pytest.mark.parametrize("seed", [1, 2])
async def test_undeclared_hogs_are_the_cause_and_named(
    tmp_path: Path, lra: Lra, mode: Mode, with_batch: bool, seed: int
) -> None:
    works: list[Workload] = [
        lra,
        Batch("hog", HOG, threads=16),
        SMALL,
    ]
    events: list[Event] = [Arrival(FROM_S, "hog")]
    if with_batch:
        works.append(replace(PI, threads=2))
        events.append(Arrival(FROM_S, "pi"))
    found = await verdicts(tmp_path, works, events, seed, mode)
    seen = degraded(found)
    causes = Counter(decision.verdict.cause for decision in seen)
    assert len(seen) >= 30
    assert causes[Cause.NEIGHBOUR] >= 0.9 * len(seen)
    assert all(decision.verdict.cause is not Cause.REMOTE for decision in found)
    blamed = [d for d in seen if d.verdict.cause is Cause.NEIGHBOUR]
    assert sum(d.verdict.culprit == HOG for d in blamed) >= 0.9 * len(blamed)
    against = [e for e in blamed[-1].verdict.evidence if e.signal == f"use of {HOG}"]
    assert against
    assert "CPI2" in against[0].text


async def test_who_was_named_stays_named_until_there_are_enough_events_again(tmp_path: Path) -> None:
    rare = Lra("db", "/t/db", rate_per_s=60.0, service_ms=20.0, wait_ms=1.5)
    hog = Batch("hog", HOG, threads=16)
    found = await verdicts(tmp_path, [rare, hog, SMALL], [Arrival(FROM_S, "hog")], 1, Mode.OBSERVE)
    pairs = [
        (before.verdict, after.verdict)
        for before, after in pairwise(found)
        if before.verdict.culprit == HOG and any(e.signal == AWAITED for e in after.verdict.evidence)
    ]
    assert len(pairs) >= 20
    assert all((after.cause, after.culprit) == (before.cause, HOG) for before, after in pairs)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_an_application_slowed_from_outside_is_remote(tmp_path: Path, seed: int) -> None:
    slow = replace(OPEN, wait_ms=60.0).on(MACHINE.ghz)
    # Batch is there all the time, so that nobody takes the slow application for an undisturbed one.
    works = (OPEN, replace(PI, threads=1), SMALL)
    events: list[Event] = [Arrival(FROM_S - 10.0, "pi"), WorkChange(FROM_S, slow)]
    found = await verdicts(tmp_path, works, events, seed, Mode.ENFORCE)
    seen = degraded(found)
    causes = Counter(decision.verdict.cause for decision in seen)
    assert len(seen) >= 60
    assert causes[Cause.REMOTE] >= 0.9 * len(seen)


async def test_batch_that_fills_the_host_is_still_to_blame(tmp_path: Path) -> None:
    works = (CLOSED, replace(PI, threads=16), SMALL)
    found = await verdicts(tmp_path, works, [Arrival(FROM_S, "pi")], 1, Mode.OBSERVE)
    causes = Counter(decision.verdict.cause for decision in degraded(found))
    assert causes[Cause.CPU] + causes[Cause.SMT] >= 0.9 * sum(causes.values()) > 0
