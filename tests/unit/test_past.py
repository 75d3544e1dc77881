"""The stored past: values over time, the state of a moment, at a cost that does not grow with what is stored."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perphd.commands.render_status import status_parts
from perphd.control.client import Client, Refused
from perphd.control.past import past_status
from perphd.control.table import plain
from perphd.domain.allocation import IDLE, KEEP
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import Action, Health
from perphd.domain.history import History
from perphd.domain.host_account import CpuAccount, GroupUse, HostAccount
from perphd.domain.plan import Stage, Write
from perphd.domain.sample import Quality, Sample
from perphd.domain.status import AgentStatus
from perphd.domain.wire import decode
from perphd.domain.workload import Kind, Mode
from perphd.monitor.past import LOOKS, LOOKS_PER_SLOT, PastSubject, read_history, read_moment
from perphd.monitor.query import reading
from perphd.monitor.store import Store
from tests.unit.control_fake import Served, decision, serving

NOW = 1_000_130.0
"""The time of day of the served daemon; its monotonic clock says 130."""
OFFSET = NOW - 130.0
DB, PI = PastSubject("db", Kind.LRA), PastSubject("pi", Kind.BATCH)


def sample(name: str, at_s: float, work: float = 1206.0, **values: Any) -> Sample:
    return Sample(name, at_s, 1.0, cpu_usage_cores=2.0, work_rate_per_s=work, **values)


def account(at_s: float, batch: float) -> HostAccount:
    cpu = CpuAccount(8.0, 2.0, batch, 1.0, 0.1, 0.0, 4.9 - batch)
    return HostAccount(at_s, 10.0, cpu, (GroupUse("/user.slice", 1.0),), cpu_some_pct=12.0)


def filled(path: Path, length_s: int) -> Path:
    """A store that ends now: db on target until a minute ago, then at half of it; pi runs all the time."""
    store = Store(path, 1e9, 1 << 30)
    store.start()
    for n in range(length_s):
        wall_s = NOW - length_s + n
        work = 603.0 if wall_s >= NOW - 60 else 1206.0
        rows = [sample("db", float(n), work), sample("pi", float(n), run_delay_cores=1.0)]
        store.add_samples(wall_s, rows)
        if n % 10 == 0:
            store.add_host(wall_s, account(float(n), 3.0 if wall_s >= NOW - 60 else 0.5))
        if n % 60 == 0:
            late = wall_s >= NOW - 60
            made = decision(float(n), Action.GROW if late else Action.HOLD)
            health = Health.DEGRADED if late else Health.HEALTHY
            made = replace(made, mode=Mode.ENFORCE, verdict=replace(made.verdict, health=health))
            store.add_decision(wall_s, made)
    store.add_decision(NOW - 1, replace(decision(float(length_s)), mode=Mode.ENFORCE))
    for knob, file, text in (("cpus", "cpuset.cpus", "3,7"), ("cpu_weight", "cpu.idle", "1")):
        store.add_writes(
            NOW - 59, [Write("pi", knob, f"/cg/pi/{file}", text, "0-7", Stage.SHRINK)], "written"
        )
    store.add_event(NOW - 30, "decision", "db: grow: more; than before")
    store.close()
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("past") / "perphd.db", 600)


def history(path: Path, last_s: float, slots: int, *subjects: PastSubject) -> History:
    with reading(path) as connection:
        return read_history(connection, subjects or (DB, PI), NOW - last_s, NOW, slots, OFFSET)


def test_scores_over_time(path: Path) -> None:
    found = history(path, 600.0, 10)
    db, pi = found.workloads
    assert db.score == pytest.approx([1.0] * 9 + [0.5])
    assert db.work == pytest.approx([1206.0] * 9 + [603.0])
    assert db.target_work == pytest.approx([1206.0] * 10)
    assert db.health == ("healthy",) * 9 + ("degraded",)
    assert (db.work_source, found.step_s, found.slots) == ("sli", 60.0, 10)
    assert pi.score == (None,) * 10
    assert pi.cpu_cores == pytest.approx([2.0] * 10)
    assert pi.wanted_cores == pytest.approx([3.0] * 10)
    assert found.host.batch == pytest.approx([0.5] * 9 + [3.0])
    assert found.stored_since_unix_s == NOW - 600
    assert found.stored_until_unix_s == NOW - 1


def test_nothing_is_stored_of_earlier(path: Path) -> None:
    found = history(path, 1200.0, 4, DB)
    assert found.workloads[0].score[:2] == (None, None)
    assert found.workloads[0].health[:2] == ("", "")
    assert found.host.lras[:2] == (None, None)
    assert found.workloads[0].score[2] == pytest.approx(1.0)


def test_lowest_of_a_slot(path: Path) -> None:
    found = history(path, 120.0, 1, DB).workloads[0]
    assert found.lowest == pytest.approx([0.5])
    assert found.score[0] is not None
    assert found.score[0] > 0.5


def test_samples_that_say_nothing_are_not_looked_at(tmp_path: Path) -> None:
    store = Store(tmp_path / "perphd.db", 1e9, 1 << 30)
    store.start()
    store.add_decision(NOW - 100, decision(0.0))
    for n in range(100):
        flag = Quality.BETWEEN if n % 10 else Quality.SETTLING
        work = 1.0 if n % 10 else 1206.0
        store.add_samples(NOW - 100 + n, [sample("db", float(n), work, quality=(flag,))])
    store.add_samples(NOW, [sample("db", 100.0, 9e9, quality=(Quality.FIRST,))])
    store.close()
    found = history(tmp_path / "perphd.db", 100.0, 5, DB).workloads[0]
    assert found.work == pytest.approx([1206.0] * 5)


def test_a_decision_that_is_stored_again_is_one_change(path: Path) -> None:
    changes = history(path, 600.0, 10, DB).changes
    assert len(changes) == 1
    assert (changes[0].action, changes[0].workload) == (Action.GROW, "db")
    assert changes[0].at_s == pytest.approx(NOW - 60 - OFFSET)


def steps(path: Path, last_s: float) -> int:
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    connection = sqlite3.connect(path)
    connection.set_progress_handler(count, 100)
    read_history(connection, (DB, PI), NOW - last_s, NOW, 60, OFFSET)
    read_moment(connection, (DB, PI), NOW - last_s / 2, OFFSET)
    connection.close()
    return counted


def test_cost_does_not_grow_with_the_past(tmp_path: Path) -> None:
    """A statement's work in the store's own steps: ten times the samples, less than twice of it."""
    short, long = filled(tmp_path / "a.db", 1200), filled(tmp_path / "b.db", 12000)
    assert steps(long, 12000.0) < 2 * steps(short, 1200.0)


def test_many_workloads_get_fewer_slots(path: Path) -> None:
    many = tuple(PastSubject(f"w{n}", Kind.BATCH) for n in range(50))
    assert history(path, 600.0, 1000, *many).slots == 400
    assert LOOKS_PER_SLOT * 120 < LOOKS


def test_moment_before_and_after_the_change(path: Path) -> None:
    with reading(path) as connection:
        before = read_moment(connection, (DB, PI), NOW - 90, OFFSET)
        after = read_moment(connection, (DB, PI), NOW, OFFSET)
        early = read_moment(connection, (DB, PI), NOW - 5000, OFFSET)
    assert before.decisions["db"].verdict.health is Health.HEALTHY
    assert before.decisions["db"].at_s == pytest.approx(NOW - 120 - OFFSET)
    assert before.written == ()
    assert before.samples["db"].work_rate_per_s == 1206.0
    assert after.samples["db"].work_rate_per_s == 603.0
    assert [item.text for item in after.written] == ["3,7", "1"]
    assert after.host is not None
    assert after.host.cpu.batch == 3.0
    assert after.host.undeclared == (GroupUse("/user.slice", 1.0),)
    assert [(event.workload, event.text) for event in after.events] == [("db", "grow: more; than before")]
    assert (early.samples, early.decisions, early.host, early.events) == ({}, {}, None, ())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    filled(tmp_path / "perphd.db", 300)
    with serving(tmp_path) as found:
        yield found


def past(served: Served, at: float) -> tuple[AgentStatus, float]:
    answer = Client(served.socket).get("past", at=str(at))
    return decode(AgentStatus, answer["status"]), answer["clock"]["monotonic_s"]


def test_past_is_shown_as_status_is(served: Served) -> None:
    status, now_s = past(served, NOW - 20)
    by_name = {item.spec.name: item for item in status.workloads}
    assert by_name["pi"].in_force.cpus == CpuSet.parse("3,7")
    assert by_name["pi"].in_force.cpu_weight is IDLE
    assert by_name["pi"].in_force.memory_high_bytes is KEEP
    assert by_name["cache"].present is False
    shown = plain(status_parts(status, now_s))
    assert "603/s" in shown
    assert "CPUs 3,7, idle" in shown
    assert "40 s ago  db: shared -> 2+2 shared (more protection)" in shown
    assert status.problems == ()
    before, _ = past(served, -100)
    assert {item.spec.name: item for item in before.workloads}["pi"].in_force.is_untouched()


def test_history_over_the_socket(served: Served) -> None:
    answer = Client(served.socket).get("history", last_s="300", slots=5, workload="db")
    found = decode(History, answer)
    assert [item.workload for item in found.workloads] == ["db"]
    assert found.workloads[0].score == pytest.approx([1.0] * 4 + [0.5])
    assert answer["clock"]["unix_s"] == NOW


@pytest.mark.parametrize(
    ("route", "query"),
    [
        ("history", {"last_s": "0"}),
        ("history", {"last_s": "nan"}),
        ("history", {"slots": "1001"}),
        ("history", {"slots": "many"}),
        ("history", {"workload": "nobody"}),
        ("history", {"lats_s": "5"}),
        ("past", {"at": "now"}),
        ("past", {"at": "inf"}),
    ],
)
def test_wrong_questions_are_refused(served: Served, route: str, query: dict[str, str]) -> None:
    with pytest.raises(Refused):
        Client(served.socket).get(route, **query)


def test_masks_are_of_the_group_that_a_workload_is_in(served: Served) -> None:
    status = served.agent.status()
    with reading(served.config.store_path) as connection:
        moment = read_moment(connection, (DB, PI), NOW, OFFSET)
    assert moment.written
    made = type(moment.written[0])
    group = "/sys/fs/resctrl/batch"
    writes = (
        made("db", "llc_masks", f"{group}/schemata", "L3:0=00f;1=0ff\nMB:0=100"),
        made("pi", "llc_masks", f"{group}/tasks", "/batch/pi"),
    )
    gone = made("pi", "llc_masks", group, "")
    in_one_line = (replace(writes[0], text="L3:0=00f;1=0ff MB:0=100"), writes[1])

    def masks(*written: Any) -> Any:
        found = past_status(status, replace(moment, written=written))
        return {item.spec.name: item.in_force.llc_masks for item in found.workloads}

    assert masks(*writes) == {"db": KEEP, "cache": KEEP, "pi": ((0, 0x00F), (1, 0x0FF))}
    assert masks(*in_one_line) == masks(*writes)
    assert masks(*writes, gone) == {"db": KEEP, "cache": KEEP, "pi": KEEP}
