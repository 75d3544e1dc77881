"""Workloads of ever new names come and go: neither the agent's memory nor the journal grows with their number."""

from __future__ import annotations

import asyncio
import gc
import re
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from perphd.agent import records
from perphd.agent.agent import Agent
from perphd.agent.composition import build_agent
from perphd.agent.simulated import simulated_sli
from perphd.config.file import parse
from perphd.domain.workload import Kind, Objective, SliSpec, WorkloadSpec
from perphd.monitor import store
from perphd.sim.host import Arrival, Departure, SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import Batch, Lra

PLACES, GONE = 6, 80
NAME = re.compile(r"\bw\d+-(\d+)\b")


def spec(place: int, number: int) -> WorkloadSpec:
    name, cgroup = f"w{place}-{number}", f"/soak/p{place}"
    if place < 2:  # it never gets what is asked for it, so that something is always in force
        sli = SliSpec("simulated", (("workload", f"p{place}"),))
        return WorkloadSpec(name, Kind.LRA, cgroup, sli=sli, objective=Objective(min_work_rate_per_s=1e6))
    return WorkloadSpec(name, Kind.BATCH, cgroup)


def remembered(agent: Agent) -> set[int]:
    """Numbers of the workloads whose names stand anywhere in what the agent holds."""
    found: set[int] = set()
    seen: set[int] = set()
    waiting: list[object] = [agent]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, type | ModuleType):
            continue
        seen.add(id(item))
        if isinstance(item, str):
            found.update(int(number) for number in NAME.findall(item))
        elif isinstance(item, FunctionType):  # its globals are all of Python
            waiting += [item.__closure__, item.__defaults__]
        else:
            waiting += gc.get_referents(item)
            if isinstance(item, dict):
                waiting += list(item)  # the collector does not look at keys that are strings
    return found


async def test_of_workloads_that_are_gone_nothing_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "KEPT_DECISIONS", 8)
    monkeypatch.setattr(store, "FLUSH_EVERY_S", 0.02)
    work = [
        Lra(f"p{place}", f"/soak/p{place}", clients=4, service_ms=2.0, wait_ms=2.0, threads=4)
        if place < 2
        else Batch(f"p{place}", f"/soak/p{place}", threads=4)
        for place in range(PLACES)
    ]
    host = SimHost(work, machine=Machine(1, 4), seed=1, step_s=1.0, pmu=True, resctrl=True)
    for one in work:
        host.fs.write(f"{CGROUP_ROOT}{one.cgroup}/cpuset.cpus", b"0-3")
    text = (
        f'[daemon]\nmode = "enforce"\nperiod_s = 1.0\nstate_dir = "{tmp_path}"\n'
        "[tuning.daemon]\nmodel_save_s = 20.0\n[tuning.policy]\nconfirm_ticks = 1\nsettle_s = 0.5\n"
        "[tuning.isolation]\nchanges_per_s = 2.0\n"
    )
    config = replace(parse(text, "soak"), workloads=tuple(spec(place, 0) for place in range(PLACES)))
    agent = build_agent(
        config,
        fs=host.fs,
        opener=host.perf_opener,
        sli_opener=simulated_sli(host),
        wall_clock=lambda: host.now_s,
    )
    here = [spec(place, 0) for place in range(PLACES)]
    written = 0
    for number in range(1, GONE + 1):
        host.advance(float(number))
        await agent.tick(host.now_s)
        place = 2 + number % (PLACES - 2) if number % 10 else number // 10 % 2
        if number % 4 == 0:  # first its cgroup goes, then it leaves the list
            host._happen(Departure(host.now_s, f"p{place}", remove_cgroup=True))
            await agent.tick(host.now_s + 0.01)
        await agent.remove_workload(here[place].name)
        host._happen(Arrival(host.now_s, f"p{place}"))
        here[place] = spec(place, number)
        await agent.add_workload(here[place])
        written = max(written, agent.status().journal_entries)
    await agent.tick(host.now_s + 0.02)
    kept = next(
        item for item in gc.get_objects() if isinstance(item, store.Store) and item._thread is not None
    )
    for _ in range(500):  # rows that are not written yet are remembered by right
        await asyncio.sleep(0.02)
        if not kept._pending:
            break
    await asyncio.sleep(0.2)
    left = remembered(agent)
    known = {one.name for one in here}
    await agent.stop(restore=True)
    assert written > 0, "nothing was enforced: this says nothing about what enforcing leaves behind"
    assert {int(name.partition("-")[2]) for name in known} <= left, "the search finds what is there"
    assert len(left) <= 40, f"of {GONE} workloads that are gone {len(left)} are remembered: {sorted(left)}"
    assert {path.stem for path in tmp_path.glob("models/*.json")} <= known
