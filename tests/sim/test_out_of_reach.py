"""An unreachable target on a full host: few writes, none that narrows the LRA, and the status says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perphd.admission.arbiter import partition_reach
from perphd.agent.composition import build_agent
from perphd.agent.simulated import simulated_sli
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.domain.workload import Exploration, Kind, Mode, Objective, SliSpec, Touch, WorkloadSpec
from perphd.sim.host import Arrival, SimHost
from perphd.sim.kernel import SimFs
from perphd.sim.machine import CGROUP_ROOT
from perphd.sim.workload import Batch
from tests.sim.test_undeclared_cause import CLOSED, HOG, MACHINE
from tools.bench.policies.catalogue import ENTRANTS, VARIANTS
from tools.bench.policies.harder import unreachable
from tools.bench.policies.scenarios import infeasible

SECONDS = 700
HALF_AN_HOUR_S = 1800.0


class WatchedFs:
    """The simulated kernel's files, with a list of the writes."""

    def __init__(self, host: SimHost) -> None:
        self._host = host
        self.writes: list[tuple[float, str, bytes]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._host.fs, name)

    def write(self, path: str, data: bytes) -> None:
        self.writes.append((self._host.now_s, path, data))
        self._host.fs.write(path, data)


@pytest.mark.parametrize("comes_s", [1.0, 20.0], ids=["there first", "comes"])
async def test_an_unreachable_target_costs_few_writes_and_never_narrows_the_lra(
    tmp_path: Path, comes_s: float
) -> None:
    host = SimHost(
        (CLOSED, Batch("hog", HOG, threads=3), Batch("pi", "/t/pi", threads=12)),
        machine=MACHINE,
        events=(Arrival(comes_s, "hog"), Arrival(comes_s, "pi")),
        seed=2,
    )
    for cgroup in ("/t/db", "/t/pi"):
        host.fs.write(f"{CGROUP_ROOT}{cgroup}/cpuset.cpus", b"0-3")
    watched = WatchedFs(host)
    db = WorkloadSpec(
        "db", Kind.LRA, "/t/db", sli=SliSpec("simulated", (("workload", "db"),)),
        objective=Objective(max_latency_ms=0.5), touch=Touch.BATCH, exploration=Exploration.BATCH,
    )  # fmt: skip
    config = Config(
        daemon=DaemonConfig(mode=Mode.ENFORCE, state_dir=str(tmp_path)),
        store=StoreConfig(enabled=False),
        workloads=(db, WorkloadSpec("pi", Kind.BATCH, "/t/pi")),
    )
    fs: SimFs = watched  # type: ignore[assignment]
    agent = build_agent(config, fs=fs, opener=host.perf_opener, sli_opener=simulated_sli(host))
    for second in range(1, SECONDS):
        host.advance(float(second))
        await agent.tick(float(second))
        decision = agent.decisions("db", limit=1)[0]
        assert not decision.chosen.cpu.exclusive
    times = [at_s for at_s, _, _ in watched.writes]
    await agent.stop(restore=True)
    assert times
    first = [at_s for at_s in times if at_s < comes_s + 60.0]
    later = [at_s for at_s in times if at_s >= comes_s + 60.0]
    assert len(first) <= 8
    assert all(sum(start <= at_s < start + 600.0 for at_s in later) <= 6 for start in later)
    assert not [path for _, path, _ in watched.writes if path.startswith(f"{CGROUP_ROOT}/t/db/cpuset")]


@pytest.mark.parametrize("policy", ["perph-batch", "perph"])
@pytest.mark.parametrize(
    ("world", "seed"),
    [
        ("unreachable-target", 0),
        ("unreachable-target", 1),
        ("unreachable-stranger", 0),
        ("infeasible-crowd", 0),
        ("infeasible-crowd", 1),
    ],
)
def test_few_settings_change_in_half_an_hour_of_a_target_out_of_reach(
    policy: str, world: str, seed: int
) -> None:
    """Also where the LRAs' own cores may be changed, all may be explored, and several LRAs need more than there is."""
    worlds = (*unreachable(), *infeasible())
    scenario = next(scenario for scenario in worlds if scenario.name == world)
    scenario = replace(scenario, duration_s=HALF_AN_HOUR_S, oracle=False)
    entrant = {**ENTRANTS, **VARIANTS}[policy]
    at_s: list[float] = []
    done = entrant.run(
        scenario, entrant.make(scenario, seed), seed, lambda snapshot, _: at_s.append(snapshot.at_s)
    )
    changes = [when_s for when_s, item in zip(at_s, done.rounds, strict=True) if item.moved]
    assert changes
    minute_s = changes[0] + 60.0
    assert sum(when_s < minute_s for when_s in changes) <= 8
    later = [when_s for when_s in changes if when_s >= minute_s]
    assert all(sum(start <= when_s < start + 600.0 for when_s in later) <= 6 for start in later)
    if world == "infeasible-crowd" and policy == "perph":
        assert done.last is not None
        assert all(partition_reach.TOLD in decision.reason for decision in done.last.decisions)
