"""The agent takes in what its matches find, follows it, and gives back what it lets go."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest

from perphd.agent.workload_registry import DISCOVER_S, FORGET_S
from perphd.config.discovery import Discovery, Found
from perphd.config.opt_in import DECLARATION
from perphd.config.tables import OptInConfig
from perphd.control.render import declared_lines
from perphd.domain.allocation import UNTOUCHED
from perphd.domain.errors import ConfigError, KernelError
from perphd.domain.status import WorkloadStatus
from perphd.domain.workload import Kind, Mode, SliSpec, WorkloadSpec
from tests.sim.test_agent_loop import ARRIVES_S, Bench

LRA = WorkloadSpec("db", Kind.LRA, "", sli=SliSpec("simulated", (("workload", "db"),)), match="cgroup:/t/db")
MANY = WorkloadSpec("jobs", Kind.BATCH, "", match="cgroup:/t/p*")
NOBODY = WorkloadSpec("late", Kind.BATCH, "", match="unit:late.service")


def rows(bench: Bench) -> dict[str, WorkloadStatus]:
    return {item.spec.name: item for item in bench.agent.status().workloads}


class Scripted(Discovery):
    """Finds what the test says."""

    def __init__(self) -> None:
        self.found = Found()
        self.gone: set[str] = set()

    def forget_processes(self, declared: object) -> None:
        pass

    def look(self, declared: object, others: object, opt_in: object = None) -> Found:
        return self.found

    def exists(self, cgroup: str) -> bool:
        return cgroup not in self.gone

    def says(self, *specs: WorkloadSpec) -> None:
        names = {spec.name: spec.name.partition(".")[0] for spec in specs}
        self.found = Found({spec.name: spec for spec in specs}, names)


def scripted(bench: Bench) -> Scripted:
    script = Scripted()
    bench.agent._registry._discovery = script
    return script


async def test_what_is_found_is_enforced_and_given_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path, workloads=(), matches=(LRA, MANY, NOBODY))
    await bench.run(int(ARRIVES_S) + 60)
    found = rows(bench)
    assert set(found) == {"db", "jobs.i", "late"}
    assert found["jobs.i"].spec.cgroup == "/t/pi"
    assert found["jobs.i"].in_force != UNTOUCHED, "it gives way"
    assert "waiting for unit:late.service" in found["late"].problem
    assert any("nothing matches unit:late.service" in text for text in bench.agent.status().problems)

    in_force = found["jobs.i"].in_force
    await bench.agent.reload(bench.config)
    assert rows(bench)["jobs.i"].in_force == in_force, "reading the configuration again loses nothing"

    assert [spec.name for spec in bench.agent.declared] == ["db", "jobs", "late"]
    with pytest.raises(ConfigError, match=r"'jobs\.i' was found for 'jobs' and would be found again"):
        await bench.agent.remove_workload("jobs.i")

    await bench.agent.remove_workload("jobs")
    await bench.agent.remove_workload("late")
    assert set(rows(bench)) == {"db"}
    await bench.agent.stop(restore=True)
    assert bench.files() == bench.before


async def test_a_declaration_that_goes_with_a_reload_takes_what_it_found_along(tmp_path: Path) -> None:
    bench = Bench(tmp_path, workloads=(), matches=(LRA, MANY))
    await bench.run(3)
    await bench.agent.reload(replace(bench.config, matches=(LRA,)))
    await bench.run(int(DISCOVER_S) + 1)
    assert set(rows(bench)) == {"db"}
    await bench.agent.stop(restore=True)


async def test_a_declaration_that_looks_elsewhere_after_a_reload_is_looked_for_there(tmp_path: Path) -> None:
    bench = Bench(tmp_path, workloads=(), matches=(LRA, replace(MANY, name="job", match="cgroup:/t/pi")))
    await bench.run(int(ARRIVES_S) + 15)
    assert rows(bench)["job"].in_force != UNTOUCHED
    bench.host.cgroups.make("/t/next")
    elsewhere = replace(MANY, name="job", match="cgroup:/t/next")
    await bench.agent.reload(replace(bench.config, matches=(LRA, elsewhere)))
    for path, value in bench.before.items():
        if path.startswith("/t/pi/"):
            assert bench.files()[path] == value, "what is not meant any more is given back"
    await bench.run(int(DISCOVER_S) + 1)
    assert rows(bench)["job"].spec.cgroup == "/t/next"
    await bench.agent.stop(restore=True)


async def test_a_move_waits_until_everything_was_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, workloads=(), matches=(LRA, MANY))
    bench.host.cgroups.make("/t/next")
    script = scripted(bench)
    database = replace(LRA, cgroup="/t/db")
    script.says(database, replace(MANY, name="jobs.i", cgroup="/t/pi"))
    await bench.run(int(ARRIVES_S) + 15)
    assert bench.files() != bench.before
    script.says(database, replace(MANY, name="jobs.i", cgroup="/t/next"))
    real, write = bench.host.fs, bench.host.fs.write

    def refuse(path: str, data: bytes) -> None:
        if "/t/pi/" in path:
            raise KernelError(path, "write", errno.EIO)
        write(path, data)

    monkeypatch.setattr(real, "write", refuse)
    await bench.run(int(DISCOVER_S) + 1)
    assert rows(bench)["jobs.i"].spec.cgroup == "/t/pi"
    assert any("its old group is not fully restored" in text for text in bench.agent.status().problems)
    monkeypatch.setattr(real, "write", write)
    await bench.run(int(DISCOVER_S) + 1)
    assert rows(bench)["jobs.i"].spec.cgroup == "/t/next"
    assert not any("not everything was restored" in text for text in bench.agent.status().problems)
    for path, value in bench.before.items():
        if path.startswith("/t/pi/"):
            assert bench.files()[path] == value
    await bench.agent.stop(restore=True)


async def test_what_was_given_and_is_to_be_found_after_a_reload_is_given_back_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.run(int(ARRIVES_S) + 15)
    assert bench.files() != bench.before
    db = bench.config.workloads[0]
    late = replace(NOBODY, name="pi")
    await bench.agent.reload(replace(bench.config, workloads=(db,), matches=(late,)))
    await bench.run(1)  # what the LRA had of its own goes with the next tick
    assert bench.files() == bench.before
    assert "waiting for unit:late.service" in rows(bench)["pi"].problem

    here = replace(late, match="cgroup:/t/pi")
    await bench.agent.reload(replace(bench.config, workloads=(db,), matches=(here,)))
    await bench.run(3)
    assert rows(bench)["pi"].spec.cgroup == "/t/pi"
    await bench.agent.reload(bench.config)  # given again: it is not looked for, and so not missed
    script = scripted(bench)
    script.says()
    await bench.run(int(FORGET_S) + 2 * int(DISCOVER_S))
    assert rows(bench)["pi"].present
    await bench.agent.stop(restore=True)


async def test_a_process_that_no_file_can_name_stays_over_a_reload(tmp_path: Path) -> None:
    bench = Bench(tmp_path, workloads=(), matches=(LRA, NOBODY))
    await bench.agent.add_workload(WorkloadSpec("proc", Kind.BATCH, "", match="pid:77"))
    await bench.run(1)
    assert any("unit:late.service" in text for text in bench.agent.status().problems)
    await bench.agent.reload(replace(bench.config, matches=(LRA,)))
    assert not any("unit:late.service" in text for text in bench.agent.status().problems)
    await bench.run(1)
    assert set(rows(bench)) == {"db", "proc"}
    await bench.agent.stop(restore=True)


async def test_one_of_many_is_forgotten_when_it_stays_away_and_the_one_is_waited_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, workloads=(), matches=(LRA, MANY))
    script = scripted(bench)
    script.says(replace(LRA, cgroup="/t/db"), replace(MANY, name="jobs.i", cgroup="/t/pi"))
    await bench.run(2)
    script.says()
    await bench.run(int(FORGET_S) - 10)
    assert set(rows(bench)) == {"db", "jobs.i"}, "not at once: it may be on its way back"
    await bench.run(20)
    assert set(rows(bench)) == {"db", "jobs"}
    assert rows(bench)["jobs"].problem == "waiting for cgroup:/t/p*"
    await bench.agent.stop(restore=True)


async def test_a_group_that_is_found_under_another_name_is_one_workload(tmp_path: Path) -> None:
    bench = Bench(tmp_path, workloads=(), matches=(LRA, MANY))
    script = scripted(bench)
    database = replace(LRA, cgroup="/t/db")
    script.says(database, replace(MANY, name="jobs.i", cgroup="/t/pi/inner"))
    await bench.run(2)
    for name in ("jobs.j", "jobs.k"):
        script.says(database, replace(MANY, name=name, cgroup="/t/pi"))
        await bench.run(int(DISCOVER_S) + 1)
        assert set(rows(bench)) == {"db", name}
    await bench.agent.stop(restore=True)
    assert bench.files() == bench.before


async def test_after_a_restore_nothing_is_enforced_that_is_found_later(tmp_path: Path) -> None:
    always = replace(MANY, mode=Mode.ENFORCE)
    bench = Bench(tmp_path, workloads=(), matches=(LRA, always))
    script = scripted(bench)
    script.says(replace(LRA, cgroup="/t/db"))
    await bench.run(2)
    await bench.agent.restore()
    script.says(replace(LRA, cgroup="/t/db"), replace(always, name="jobs.i", cgroup="/t/pi"))
    await bench.run(int(DISCOVER_S) + 1)
    assert rows(bench)["jobs.i"].mode is Mode.OBSERVE
    bench.agent.set_mode(Mode.ENFORCE, "db")
    assert {name: row.mode for name, row in rows(bench).items()} == {
        "db": Mode.ENFORCE,
        "jobs.i": Mode.OBSERVE,
    }
    bench.agent.set_mode(Mode.OBSERVE)
    assert rows(bench)["jobs.i"].mode is Mode.ENFORCE, "its own mode again"
    await bench.agent.restore()
    assert rows(bench)["jobs.i"].mode is Mode.OBSERVE
    await bench.agent.reload(bench.config)
    assert rows(bench)["jobs.i"].mode is Mode.OBSERVE, "reading the configuration again enforces nothing"
    await bench.agent.stop(restore=True)


async def test_a_mode_that_was_set_stays_when_its_workload_goes_and_comes_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path, workloads=(), matches=(LRA, MANY))
    script = scripted(bench)
    job = replace(MANY, name="jobs.i", cgroup="/t/pi")
    script.says(job)
    await bench.run(1)
    bench.agent.set_mode(Mode.OBSERVE, "jobs.i")
    await bench.agent._registry.let_go("jobs.i")
    assert "jobs.i" not in rows(bench)
    await bench.run(int(DISCOVER_S) + 1)
    assert rows(bench)["jobs.i"].mode is Mode.OBSERVE
    await bench.agent.remove_workload("jobs")
    await bench.agent.add_workload(MANY)
    await bench.run(1)
    assert rows(bench)["jobs.i"].mode is Mode.ENFORCE, "another declaration, though it has the name"
    await bench.agent.stop(restore=True)


@pytest.mark.parametrize("by_itself", [False, True])
async def test_what_is_removed_while_it_waits_to_move_or_change_does_not_come_back(
    tmp_path: Path, by_itself: bool
) -> None:
    bench = Bench(tmp_path, workloads=(), matches=(LRA, MANY))
    script, registry = scripted(bench), bench.agent._registry
    job = replace(MANY, name="jobs.i", cgroup="/t/pi")
    script.says(job)
    await bench.run(1)
    assert "jobs.i" in rows(bench)
    bench.host.cgroups.make("/t/next")
    script.says(replace(job, declared_by="its unit") if by_itself else replace(job, cgroup="/t/next"))
    async with registry._lock:  # as during a round, or a reload
        removing = asyncio.create_task(bench.agent.remove_workload("jobs"))
        for _ in range(5):
            await asyncio.sleep(0)
        looking = asyncio.create_task(registry.discover(bench.now_s + DISCOVER_S))
        for _ in range(5):
            await asyncio.sleep(0)
    await asyncio.gather(removing, looking)
    assert "jobs.i" not in bench.agent._workloads.specs
    assert "jobs.i" not in bench.agent._workloads.found
    await bench.agent.stop(restore=True)
    assert bench.files() == bench.before


async def test_a_mode_goes_with_a_declaration_that_a_reload_removes(tmp_path: Path) -> None:
    bench = Bench(tmp_path, workloads=(), matches=(LRA, MANY))
    await bench.run(3)
    bench.agent.set_mode(Mode.OBSERVE, "jobs")
    bench.agent.set_mode(Mode.OBSERVE, "jobs.i")
    await bench.agent.reload(bench.config)
    assert rows(bench)["jobs.i"].mode is Mode.OBSERVE
    await bench.agent.reload(replace(bench.config, matches=(LRA,)))
    await bench.agent.reload(bench.config)
    await bench.run(int(DISCOVER_S) + 1)
    assert rows(bench)["jobs.i"].mode is Mode.ENFORCE, "another declaration, though it has the name"
    await bench.agent.stop(restore=True)


async def test_the_mode_of_a_declaration_is_that_of_all_that_is_found_for_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, workloads=(), matches=(LRA, MANY))
    script = scripted(bench)
    await bench.run(1)
    bench.agent.set_mode(Mode.OBSERVE, "jobs")
    assert rows(bench)["jobs"].mode is Mode.OBSERVE
    script.says(replace(MANY, name="jobs.i", cgroup="/t/pi"))
    await bench.run(int(DISCOVER_S) + 1)
    assert rows(bench)["jobs.i"].mode is Mode.OBSERVE
    bench.agent.set_mode(Mode.ENFORCE, "jobs.i")
    assert rows(bench)["jobs.i"].mode is Mode.ENFORCE
    bench.agent.set_mode(Mode.OBSERVE, "jobs")
    assert rows(bench)["jobs.i"].mode is Mode.OBSERVE, "what was said last counts"
    with pytest.raises(ConfigError, match=r"no workload is named 'nope' \(allowed: db, jobs, jobs\.i\)"):
        bench.agent.set_mode(Mode.OBSERVE, "nope")
    await bench.agent.stop(restore=True)


async def test_a_workload_that_moves_is_followed_with_its_model(tmp_path: Path) -> None:
    bench = Bench(tmp_path, workloads=(), matches=(LRA, MANY))
    script = scripted(bench)
    batch = replace(MANY, name="jobs.i", cgroup="/t/pi")
    script.says(replace(LRA, cgroup="/t/gone"), batch)
    await bench.run(2)
    model = bench.parts.models.model("db")
    assert not rows(bench)["db"].present
    script.says(replace(LRA, cgroup="/t/db"), batch)
    await bench.run(int(DISCOVER_S) + 3)
    assert rows(bench)["db"].spec.cgroup == "/t/db"
    assert rows(bench)["db"].present
    assert bench.parts.models.model("db") is model
    await bench.agent.stop(restore=True)
    assert bench.files() == bench.before


BY_ITSELF = replace(
    MANY, name="pi", cgroup="/t/pi", match="unit:pi.service", declared_by="the unit's drop-in /x.conf"
)


def declares(script: Scripted, *specs: WorkloadSpec, problem: str = "") -> None:
    """These declare themselves, and db is there as declared by the operator."""
    database = replace(LRA, cgroup="/t/db")
    names = {spec.name: DECLARATION if spec.declared_by else spec.name for spec in (database, *specs)}
    problems = {DECLARATION: problem} if problem else {}
    script.found = Found({spec.name: spec for spec in (database, *specs)}, names, problems)


async def one_by_itself(tmp_path: Path) -> tuple[Bench, Scripted]:
    """A batch unit that declared itself, and gives way."""
    bench = Bench(tmp_path, workloads=(), matches=(LRA,))
    bench.agent._config.now = replace(bench.agent.config, opt_in=OptInConfig(units="batch"))
    script = scripted(bench)
    declares(script, BY_ITSELF)
    await bench.run(int(ARRIVES_S) + 15)
    assert rows(bench)["pi"].in_force != UNTOUCHED
    return bench, script


def is_given_back(bench: Bench) -> bool:
    now = bench.files()
    return all(now[path] == value for path, value in bench.before.items() if path.startswith("/t/pi/"))


async def test_one_that_declares_itself_is_shown_with_where_it_did_so(tmp_path: Path) -> None:
    bench, script = await one_by_itself(tmp_path)
    status = bench.agent.status()
    assert rows(bench)["pi"].spec.declared_by == BY_ITSELF.declared_by
    assert "pi (batch): declared by the unit's drop-in /x.conf" in declared_lines(status.workloads)
    declares(script, BY_ITSELF, problem="[opt_in]: x.service: wrong")
    await bench.run(int(DISCOVER_S) + 1)
    assert "[opt_in]: x.service: wrong" in bench.agent.status().problems
    declares(script, BY_ITSELF)
    await bench.run(int(DISCOVER_S) + 1)
    assert "[opt_in]: x.service: wrong" not in bench.agent.status().problems
    with pytest.raises(
        ConfigError, match=r"'pi' is declared by the unit's drop-in /x\.conf and would be found again"
    ):
        await bench.agent.remove_workload("pi")
    await bench.agent.stop(restore=True)
    assert bench.files() == bench.before


async def test_one_that_takes_its_word_back_is_let_go_at_once(tmp_path: Path) -> None:
    bench, script = await one_by_itself(tmp_path)
    declares(script)
    await bench.run(int(DISCOVER_S) + 1)
    assert set(rows(bench)) == {"db"}
    assert is_given_back(bench)
    await bench.agent.stop(restore=True)


async def test_one_whose_group_is_gone_is_kept_for_a_while(tmp_path: Path) -> None:
    bench, script = await one_by_itself(tmp_path)
    declares(script)
    script.gone.add("/t/pi")
    await bench.run(int(DISCOVER_S) + 1)
    assert "pi" in rows(bench)
    await bench.run(int(FORGET_S) + int(DISCOVER_S))
    assert set(rows(bench)) == {"db"}
    await bench.agent.stop(restore=True)


async def test_a_changed_word_is_taken_over_without_losing_what_is_in_force(tmp_path: Path) -> None:
    bench, script = await one_by_itself(tmp_path)
    in_force = rows(bench)["pi"].in_force
    declares(script, replace(BY_ITSELF, mode=Mode.OBSERVE, declared_by="the unit's drop-in /y.conf"))
    script_looks = int(DISCOVER_S) + 1
    await bench.run(script_looks)
    spec = rows(bench)["pi"].spec
    assert (spec.mode, spec.declared_by) == (Mode.OBSERVE, "the unit's drop-in /y.conf")
    assert rows(bench)["pi"].mode is Mode.OBSERVE
    assert is_given_back(bench), "it asked to be observed only"
    declares(script, BY_ITSELF)
    await bench.run(script_looks + 15)
    assert rows(bench)["pi"].in_force == in_force
    await bench.agent.stop(restore=True)


async def test_a_reload_keeps_it_and_the_operators_word_replaces_it(tmp_path: Path) -> None:
    bench, script = await one_by_itself(tmp_path)
    in_force, config = rows(bench)["pi"].in_force, replace(bench.config, opt_in=OptInConfig(units="batch"))
    await bench.agent.reload(config)
    assert rows(bench)["pi"].in_force == in_force
    # Found for a declaration of the operator from now on, under the same name.
    mine = replace(MANY, name="pi", match="cgroup:/t/pi", min_cores=2.0)
    await bench.agent.reload(replace(config, matches=(LRA, mine)))
    declares(script, replace(mine, cgroup="/t/pi"))
    await bench.run(int(DISCOVER_S) + 1)
    assert (rows(bench)["pi"].spec.declared_by, rows(bench)["pi"].spec.min_cores) == ("", 2.0)
    await bench.agent.stop(restore=True)
    assert bench.files() == bench.before


async def test_it_gives_way_to_a_workload_that_an_operator_adds_for_its_group(tmp_path: Path) -> None:
    bench, script = await one_by_itself(tmp_path)
    declares(script)
    await bench.agent.add_workload(WorkloadSpec("mine", Kind.BATCH, "/t/pi"))
    await bench.run(2)
    assert set(rows(bench)) == {"db", "mine"}
    await bench.agent.stop(restore=True)
    assert bench.files() == bench.before


async def test_it_goes_when_the_operator_closes_the_door(tmp_path: Path) -> None:
    bench, script = await one_by_itself(tmp_path)
    await bench.agent.reload(bench.config)
    assert not bench.agent.config.opt_in.is_on
    declares(script)
    await bench.run(int(DISCOVER_S) + 1)
    assert set(rows(bench)) == {"db"}
    assert is_given_back(bench)
    await bench.agent.stop(restore=True)
