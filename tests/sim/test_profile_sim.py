"""perphd profile on the simulated host: through the agent's own loop, with an interruption, to a signed-off model."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perphd.agent.composition import build_agent
from perphd.agent.profiling.explorer import ExplorationGuard, ExplorationStep, Pacing, Stop
from perphd.agent.profiling.host import open_subject
from perphd.agent.profiling.progress import ProfileProgress
from perphd.agent.profiling.run import ProfileOptions, ProfilingPlan, find_lra, profile_simulated, rows_of
from perphd.agent.simulated import simulate, simulated_sli
from perphd.config.file import Config
from perphd.domain.errors import ConfigError
from perphd.domain.workload import Kind, SliSpec, WorkloadSpec
from perphd.predictor.ogbrt.forest import Forest
from perphd.predictor.profile import from_text
from perphd.predictor.profile.merge import evaluate
from perphd.sim.machine import Machine

POINTS = 80
"""Of the 7680 cells of the simulated host; the tool's own default is ten per cent."""


class Told:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.known = 0
        self.left_out: tuple[str, ...] = ()
        self.steps: list[ExplorationStep] = []
        self.said: list[str] = []

    def begin(self, plan: ProfilingPlan) -> None:
        self.cells, self.points, self.known, self.left_out = (
            plan.cells,
            plan.points,
            plan.known,
            plan.left_out,
        )
        self.takes_s = plan.takes_s

    def step(self, step: ExplorationStep) -> None:
        self.steps.append(step)

    def say(self, text: str) -> None:
        self.said.append(text)


async def test_a_simulated_mysql_is_explored_interrupted_taken_up_and_known(tmp_path: Path) -> None:
    progress, out = tmp_path / "progress.json", tmp_path / "mysql.json"
    options = ProfileOptions(points=POINTS, pacing=Pacing(2, 1), engine="numpy", out=out)
    first = Told()
    ended = await profile_simulated("mysql-oltp", options, first, progress=progress, interrupt_after=20)
    assert ended.outcome.stop is Stop.INTERRUPTED
    assert ended.profile is None
    assert not out.exists()
    kept = ProfileProgress.load(progress, "mysql-oltp")
    assert kept is not None
    assert len(kept.measured) == 20

    again = Told()
    result = await profile_simulated("mysql-oltp", options, again, progress=progress)
    assert again.known == 20
    assert len(again.steps) == POINTS - 20
    assert result.outcome.stop is Stop.DONE
    assert not progress.exists()
    profile = from_text(out.read_bytes())
    assert profile.is_signed_off
    assert profile.origin.grid_cells == again.cells == 7680
    assert np.array_equal(profile.y, result.profile.y)  # type: ignore[union-attr]

    # Held out: other cells of the same lattice, measured in the same way, of which the model saw none.
    other = replace(options, seed=7, points=32, out=None)
    too_few = await profile_simulated("mysql-oltp", other, Told(), progress=progress)
    assert too_few.profile is None
    held = ProfileProgress.load(progress, "mysql-oltp")
    assert held is not None
    assert held.reference is not None
    names, _, x, y = rows_of(held, held.reference)
    assert len(y) == 32
    assert evaluate(profile, x, y, names).r2 >= 0.985


async def test_it_stops_when_the_simulated_application_suffers_and_says_so() -> None:
    told = Told()
    options = ProfileOptions(
        points=60, pacing=Pacing(1, 1), guard=ExplorationGuard(max_loss_pct=30.0), engine="numpy"
    )
    result = await profile_simulated("mysql-oltp", options, told)
    assert result.outcome.stop is Stop.SUFFERED
    assert told.steps[-1].complaint
    assert result.profile is None
    assert result.measured < 40


async def test_an_application_on_two_cpus_is_known_within_what_it_may_lose(tmp_path: Path) -> None:
    two, told = Machine(1, 2), Told()
    options = ProfileOptions(
        points=40, guard=ExplorationGuard(max_loss_pct=50.0), engine="numpy", out=tmp_path / "p.json"
    )
    result = await profile_simulated("mysql-oltp", options, told, machine=two)
    assert result.outcome.stop is Stop.DONE
    assert told.points == 40
    assert 0 < told.takes_s <= 600.0
    profile = from_text((tmp_path / "p.json").read_bytes())
    assert "cpu_share" in profile.features

    progress = tmp_path / "progress.json"
    await profile_simulated(
        "mysql-oltp", replace(options, seed=7, points=12, out=None), Told(), progress=progress, machine=two
    )
    held = ProfileProgress.load(progress, "mysql-oltp")
    assert held is not None
    assert held.reference is not None
    names, _, x, y = rows_of(held, held.reference)
    forest = Forest.compile(profile.trees)
    columns = [names.index(name) for name in profile.features]
    assert np.median(np.abs(np.expm1(forest.predict(x[:, columns]) - y))) <= 0.1


@pytest.mark.parametrize("app_class", ["none", "database"])
async def test_an_lra_begins_from_its_class_and_says_so(tmp_path: Path, app_class: str) -> None:
    sli = SliSpec("simulated", (("workload", "mysql"),))
    spec = WorkloadSpec("mysql", Kind.LRA, "/simulated/mysql", sli=sli, app_class=app_class)
    host = simulate((spec,))
    config = Config(workloads=(spec,))
    config = replace(config, daemon=replace(config.daemon, state_dir=os.fspath(tmp_path)))
    agent = build_agent(
        config, fs=host.fs, opener=host.perf_opener, sli_opener=simulated_sli(host), store=False
    )
    try:
        for second in range(1, 4):
            host.advance(second)
            await agent.tick(float(second))
        origin = agent.models()[0].origin
        assert origin == ("began from the class database" if app_class == "database" else "learned here")
        assert not agent.status().problems
    finally:
        await agent.stop(restore=True)


async def test_an_lra_that_is_declared_by_match_is_looked_for_once_and_nobody_else(tmp_path: Path) -> None:
    sli = SliSpec("simulated", (("workload", "mysql"),))
    given = WorkloadSpec("mysql", Kind.LRA, "/simulated/mysql", sli=sli)
    jobs = WorkloadSpec("jobs", Kind.BATCH, "", match="cgroup:/simulated/p*")
    host = simulate((given, WorkloadSpec("pi", Kind.BATCH, "/simulated/pi")))
    one = replace(given, cgroup="", match="cgroup:/simulated/mysql")
    config = Config(matches=(one, jobs), sources=("f",))
    config = replace(config, daemon=replace(config.daemon, state_dir=os.fspath(tmp_path)))
    found = find_lra(config, "mysql", host.fs)
    assert found == replace(one, cgroup="/simulated/mysql")

    many = replace(config, matches=(replace(given, name="db", cgroup="", match="cgroup:/simulated/m*"), jobs))
    assert find_lra(many, "db.ysql", host.fs).cgroup == "/simulated/mysql"
    with pytest.raises(ConfigError, match=r"'db' matches several workloads .*\(allowed: db\.ysql\)"):
        find_lra(many, "db", host.fs)
    with pytest.raises(ConfigError, match=r"no LRA is named 'db\.x' \(allowed: db, db\.ysql\)"):
        find_lra(many, "db.x", host.fs)
    gone = replace(config, matches=(replace(one, match="unit:gone.service"),))
    with pytest.raises(
        ConfigError, match=r"declared by match, and no such LRA was found: .*nothing matches unit:gone"
    ):
        find_lra(gone, "mysql", host.fs)
    for batch in ("jobs", "jobs.i", "nobody"):
        with pytest.raises(ConfigError, match=f"no LRA is named '{batch}' .allowed: mysql"):
            find_lra(config, batch, host.fs)

    async def step() -> float:
        host.advance(host.now_s + 1.0)
        return host.now_s

    subject = open_subject(
        config, found, step, fs=host.fs, opener=host.perf_opener, sli_opener=simulated_sli(host)
    )
    try:
        assert (await subject.look()).workload == "mysql"
        assert [row.spec.name for row in subject._agent.status().workloads] == ["mysql"]
    finally:
        await subject.close()
