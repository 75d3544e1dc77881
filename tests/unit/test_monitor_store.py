"""The store: what goes in comes out, bounded in age and size, through kill -9, damage and full disks."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perphd.domain.allocation import Allocation, CpuGrant
from perphd.domain.decision import Action, Cause, Decision, Health, Outcome, Verdict
from perphd.domain.errors import PerphError
from perphd.domain.plan import Stage, Write
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable
from perphd.domain.sample import READINGS, Quality, Sample
from perphd.domain.wire import from_json
from perphd.monitor import store as store_module
from perphd.monitor.query import run_query
from perphd.monitor.retention import trim
from perphd.monitor.schema import SCHEMA_VERSION, StoreRefused, open_database
from perphd.monitor.store import MAX_PENDING_ROWS, RETRY_AFTER_BATCHES, Store

NOW = 1_750_000_000.0
MIB = 1 << 20
DAY = 86400.0


def sample(workload: str = "db", at_s: float = 1.0, mips: Reading = NOT_MEASURED) -> Sample:
    return Sample(workload, at_s, 1.0, mips=mips)


def decision() -> Decision:
    allocation = Allocation(CpuGrant(2, 1, 10))
    verdict = Verdict(Health.DEGRADED, Cause.CPU, 3.0, ())
    target = Unavailable("not yet")
    return Decision(
        5.0, "db", verdict, Action.GROW, 100.0, target, allocation, allocation, (), "slow", "perph"
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "perphd.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    made = Store(path, DAY, 64 * MIB)
    yield made
    made.close()


def rows(path: Path, sql: str) -> tuple[tuple[object, ...], ...]:
    return run_query(path, sql).rows


def _never_paused() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


class Waited(threading.Event):
    """Knows that somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.asked.set()
        return super().wait(timeout)


def test_nothing_is_written_while_the_writer_is_paused(
    path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(store_module, "LONGEST_PAUSE_S", 600.0)
    open_database(path).close()
    store._may_write = store._writer._may_write = waited = Waited()
    with store.paused():
        store.start()
        for number in range(store_module.FLUSH_AT_ROWS):
            store.add_event(NOW, "mode", str(number))
        assert waited.asked.wait(60.0)
        assert rows(path, "SELECT count(*) FROM events") == ((0,),)
    store.close()
    assert rows(path, "SELECT count(*) FROM events") == ((store_module.FLUSH_AT_ROWS,),)


def test_a_pause_that_does_not_end_holds_a_batch_up_once(
    path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(store_module, "LONGEST_PAUSE_S", 0.001)
    with store.paused():
        store.start()
        store.add_samples(NOW, [sample()])
        store.add_event(NOW, "mode", "enforce")
        store.close()
    assert rows(path, "SELECT data FROM events") == (("enforce",),)
    assert rows(path, "SELECT count(*) FROM samples") == ((1,),)


def test_everything_that_goes_in_comes_out(path: Path, store: Store):
    store.start()
    measured: dict[str, Any] = {name: float(n) for n, name in enumerate(READINGS)}
    store.add_samples(NOW, [Sample("db", 7.0, 1.5, quality=(Quality.LATE, Quality.SETTLING), **measured)])
    outcome = Outcome(9.0, "db", 5.0, 0.7, Unavailable("gone"), True, "it helped")
    store.add_decision(NOW, decision())
    store.add_outcome(NOW, outcome)
    write = Write("batch", "cpu weight", "/sys/fs/cgroup/cpu/b/cpu.shares", "2", "1024", Stage.DEMOTE)
    store.add_writes(NOW, [write, write], "ok")
    store.add_event(NOW, "mode", {"to": "enforce"})
    store.add_event(NOW, "problem", "the disk is slow")
    store.close()
    assert (store.problem, store.dropped_rows) == (None, 0)
    assert rows(path, f"SELECT {', '.join(READINGS)} FROM samples") == (tuple(measured.values()),)
    assert rows(path, "SELECT wall_s, at_s, interval_s, workload, quality, reasons FROM samples") == (
        (NOW, 7.0, 1.5, "db", "late,settling", "{}"),
    )
    ((action, health, work, delay, record),) = rows(
        path, "SELECT action, health, target_work, target_delay, record FROM decisions"
    )
    assert (action, health, work, delay) == ("grow", "degraded", 100.0, None)
    assert from_json(str(record), Decision) == decision()
    ((record, after),) = rows(path, "SELECT record, score_after FROM outcomes")
    assert from_json(str(record), Outcome) == outcome
    assert after is None
    assert (
        rows(path, "SELECT path, stage, before, value, result FROM writes")
        == ((write.path, "demote", "1024", "2", "ok"),) * 2
    )
    assert rows(path, "SELECT kind, data FROM events") == (
        ("mode", '{"to": "enforce"}'),
        ("problem", "the disk is slow"),
    )


def test_reasons_are_stored_only_when_they_change(path: Path, store: Store):
    for at_s, why in enumerate(("no PMU", "no PMU", "refused", "no PMU")):
        store.add_samples(NOW + at_s, [sample(at_s=float(at_s), mips=Unavailable(why))])
    store.start()
    store.close()
    stored = [
        None if r is None else json.loads(str(r))["mips"]
        for (r,) in rows(path, "SELECT reasons FROM samples")
    ]
    assert stored == ["no PMU", None, "refused", "no PMU"]
    assert rows(path, "SELECT mips FROM samples LIMIT 1") == ((None,),)


def test_of_workloads_that_are_gone_no_reasons_are_remembered(path: Path, store: Store):
    why = Unavailable("no PMU")
    for n in range(300):
        store._writer.write([(NOW + n, [sample("db", n, why), sample(f"job-{n}", n, why)])], [])
    assert store._writer._reasons.keys() <= {"db", *(f"job-{n}" for n in range(290, 300))}
    assert rows(path, "SELECT count(reasons) FROM samples WHERE workload = 'db'") == ((1,),)
    store._writer.close()


def test_reasons_are_stated_again_before_the_rows_with_them_are_gone(path: Path, store: Store, monkeypatch):
    monkeypatch.setattr(store_module, "REASONS_EVERY_BATCHES", 3)
    for n in range(7):
        store._writer.write([(NOW + n, [sample("db", n, Unavailable("no PMU"))])], [])
    stated = rows(path, "SELECT wall_s FROM samples WHERE reasons IS NOT NULL")
    assert [wall_s for (wall_s,) in stated] == [NOW, NOW + 3, NOW + 6]
    store._writer.close()


def test_where_the_size_ends_rows_the_reasons_of_those_that_stay_are_known(path: Path, store: Store):
    made = Store(path, DAY, MIB)
    why = Unavailable("no PMU")
    for n in range(40):
        ticks = [(NOW + n + 0.1 * t, [sample(f"job-{i}", n, why) for i in range(50)]) for t in range(10)]
        made._writer.write(ticks, [])
    made._writer.close()
    connection = sqlite3.connect(path)
    all_rows = connection.execute("SELECT rowid, workload, reasons FROM samples ORDER BY rowid").fetchall()
    connection.close()
    known, unknown, stated = set(), 0, 0
    for _, workload, reasons in all_rows:
        if reasons is not None:
            known.add(workload)
            stated += 1
        unknown += workload not in known
    assert all_rows[0][0] > 5000, "rows went for the size"
    assert unknown <= 2 * 2000 + 500, "it is looked after every 2000 rows"
    assert 50 <= stated <= len(all_rows) / 20, "and not stated with every row"


def test_limit_holds_while_many_workloads_come_and_go(path: Path, store: Store):
    made = Store(path, DAY, MIB)
    largest = 0
    for n in range(21):
        ticks = [(NOW + n + 0.1 * t, [sample(f"job-{n}-{i}", n) for i in range(100)]) for t in range(10)]
        made._writer.write(ticks, [("events", (NOW + n, "x", f"job-{n}"))])
        largest = max(largest, path.stat().st_size)
    assert largest <= 1.5 * MIB
    assert rows(path, "SELECT data FROM events ORDER BY wall_s DESC LIMIT 1") == (("job-20",),)
    assert Path(f"{path}-wal").stat().st_size <= 9 * MIB
    made._writer.close()


def test_appends_to_what_is_there(path: Path):
    for second in range(2):
        store = Store(path, DAY, 64 * MIB)
        store.start()
        store.start()
        store.add_samples(NOW + second, [sample()])
        store.close()
        store.close()
    assert rows(path, "SELECT count(*), count(reasons) FROM samples") == ((2, 2),)
    assert os.stat(path).st_mode & 0o777 == 0o640


def test_rows_from_many_threads(path: Path, store: Store):
    store.start()

    def feed(name: str) -> None:
        for n in range(200):
            store.add_samples(NOW + n, [sample(name, float(n))])
            store.add_event(NOW + n, "tick", name)

    threads = [threading.Thread(target=feed, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    assert rows(path, "SELECT count(*) FROM samples") == ((800,),)
    assert rows(path, "SELECT count(*) FROM events") == ((800,),)


def test_backlog_is_bounded_and_samples_go_first(path: Path, store: Store):
    store.add_decision(NOW, decision())
    tick = [sample()] * 100
    for n in range(MAX_PENDING_ROWS // 100 + 5):
        store.add_samples(NOW + n, tick)
    assert store.dropped_rows == 600
    assert "the disk is too slow" in str(store.problem)
    store.start()
    store.close()
    assert rows(path, "SELECT count(*), min(wall_s) FROM samples") == ((MAX_PENDING_ROWS - 100, NOW + 6),)
    assert rows(path, "SELECT count(*) FROM decisions") == ((1,),)


def test_backlog_without_samples_is_bounded_too(store: Store):
    for n in range(MAX_PENDING_ROWS + 7):
        store.add_event(NOW, "n", str(n))
    assert store.dropped_rows == 7


# -- retention ----------------------------------------------------------------------------------------------


def filled(path: Path, count: int) -> sqlite3.Connection:
    connection = open_database(path)
    connection.execute("BEGIN")
    for n in range(count):
        connection.execute(
            "INSERT INTO samples (wall_s, at_s, interval_s, workload, quality) VALUES (?, 0, 1, 'db', '')",
            (NOW + n,),
        )
        connection.execute("INSERT INTO events VALUES (?, 'x', ?)", (NOW + n, "y" * 100))
    connection.execute("COMMIT")
    return connection


def count(connection: sqlite3.Connection, table: str) -> tuple[int, float]:
    rows, oldest_s = connection.execute(f"SELECT count(*), min(wall_s) FROM {table}").fetchone()
    return int(rows), float(oldest_s)


def test_old_rows_are_deleted_from_every_table(path: Path):
    connection = filled(path, 5000)
    assert trim(connection, NOW + 4000, 64 * MIB) == 8000
    assert count(connection, "samples") == (1000, NOW + 4000)
    assert count(connection, "events") == (1000, NOW + 4000)
    assert trim(connection, NOW + 4000, 64 * MIB) == 0
    connection.close()


def test_size_is_kept_by_deleting_the_oldest_and_the_file_shrinks(path: Path):
    connection = filled(path, 20000)
    before = path.stat().st_size + Path(f"{path}-wal").stat().st_size
    limit = MIB
    while trim(connection, 0.0, limit):
        pass
    for _ in range(20):
        trim(connection, 0.0, limit)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert path.stat().st_size <= limit < before
    samples, oldest = count(connection, "samples")
    assert 0 < samples < 20000
    assert oldest > NOW
    assert abs(count(connection, "events")[1] - oldest) <= 2 * 2000  # all tables reach back about as far
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_few_rows_are_not_the_price_of_many(path: Path):
    connection = open_database(path)
    connection.execute("BEGIN")
    for n in range(20000):
        connection.execute(
            "INSERT INTO samples (wall_s, at_s, interval_s, workload, quality) VALUES (?, 0, 1, 'db', '')",
            (NOW + n,),
        )
        if n % 100 == 0:
            connection.execute("INSERT INTO events VALUES (?, 'x', 'y')", (NOW + n,))
    connection.execute("COMMIT")
    while trim(connection, 0.0, MIB // 2):
        pass
    samples, oldest = count(connection, "samples")
    events, oldest_event = count(connection, "events")
    assert 0 < samples < 20000
    assert events == (NOW + 20000 - oldest_event) / 100, "the newest are all there"
    assert oldest <= oldest_event < oldest + 100
    connection.close()


def test_a_clock_that_was_set_back_does_not_cost_what_is_rare_its_newest_rows(path: Path):
    connection = open_database(path)
    connection.execute("BEGIN")
    for n in range(20000):
        # Set back by a day in the middle: every sample from before it is later than all that comes after.
        wall_s = NOW + n if n < 10000 else NOW + n - DAY
        connection.execute(
            "INSERT INTO samples (wall_s, at_s, interval_s, workload, quality) VALUES (?, ?, 1, 'db', '')",
            (wall_s, n),
        )
        if n % 20 == 0:
            connection.execute("INSERT INTO events VALUES (?, 'x', ?)", (wall_s, str(n)))
    connection.execute("COMMIT")
    while trim(connection, 0.0, MIB // 2):
        pass
    samples, oldest = connection.execute("SELECT count(*), min(at_s) FROM samples").fetchone()
    events = {int(data) for (data,) in connection.execute("SELECT data FROM events")}
    assert 0 < samples < 10000, "the clock was set back within what is gone"
    assert events >= {n for n in range(0, 20000, 20) if n >= oldest}, "the newest are all there"
    connection.close()


def test_the_last_row_of_the_longest_table_takes_nothing_with_it(path: Path):
    connection = open_database(path)
    connection.execute("INSERT INTO writes VALUES (?, 'db', 'cpus', ?, 'grow', '', '', '')", (NOW, "y" * MIB))
    connection.execute("INSERT INTO events VALUES (?, 'x', 'y')", (NOW,))
    assert trim(connection, 0.0, MIB // 2) == 1
    assert count(connection, "events") == (1, NOW)
    connection.close()


def test_a_few_large_rows_are_trimmed_too(path: Path):
    connection = open_database(path)
    for n in range(8):
        connection.execute(
            "INSERT INTO events VALUES (?, 'x', ?)", (NOW - n, "y" * (MIB // 4))
        )  # clock goes back
    while trim(connection, 0.0, MIB):
        pass
    left, _ = count(connection, "events")
    assert 1 <= left <= 4
    assert connection.execute("SELECT max(wall_s) FROM events").fetchone()[0] < NOW, (
        "those that came first went"
    )
    connection.close()


def test_store_trims_by_itself(path: Path):
    connection = filled(path, 3000)
    connection.close()
    store = Store(path, 10.0, 64 * MIB)
    store.start()
    store.add_samples(NOW + 3005, [sample()])
    store.close()
    ((left, oldest),) = rows(path, "SELECT count(*), min(wall_s) FROM samples")
    assert left == 6
    assert oldest == NOW + 2995


# -- other people's and damaged files -----------------------------------------------------------------------


def refused(path: Path) -> str:
    store = Store(path, DAY, 64 * MIB)
    store.start()
    store.add_samples(NOW, [sample()])
    store.close()
    assert store.dropped_rows == 1
    return str(store.problem)


def test_newer_schema_is_refused_and_left_alone(path: Path):
    open_database(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    assert "written by a newer perphd" in refused(path)
    with pytest.raises(StoreRefused):
        open_database(path)
    assert rows(path, "SELECT count(*) FROM samples") == ((0,),)


def test_somebody_elses_database_is_refused_and_left_alone(path: Path):
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    assert "database of another program" in refused(path)
    assert rows(path, "SELECT name FROM sqlite_master") == (("theirs",),)


def test_readings_that_are_new_get_their_column(path: Path):
    connection = open_database(path)
    connection.execute("ALTER TABLE samples DROP COLUMN mips")
    connection.close()
    store = Store(path, DAY, 64 * MIB)
    store.start()
    store.add_samples(NOW, [sample(mips=3.0)])
    store.close()
    assert rows(path, "SELECT mips FROM samples") == ((3.0,),)


@pytest.mark.parametrize("damage", ["nonsense", "torn", "zeroed page"])
def test_damaged_file_is_moved_aside_and_a_new_one_begun(path: Path, damage: str):
    connection = filled(path, 500)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    content = path.read_bytes()
    match damage:
        case "nonsense":
            path.write_bytes(b"this is no database at all. " * 1000)
        case "torn":
            path.write_bytes(content[: 4096 * 3 + 100])
        case _:
            path.write_bytes(content[:4096] + bytes(4096 * 4) + content[4096 * 5 :])
    store = Store(path, DAY, 64 * MIB)
    store.start()
    store.add_samples(NOW, [sample()])
    store.close()
    assert "was damaged" in str(store.problem)
    assert f"{path}.damaged" in str(store.problem)
    assert Path(f"{path}.damaged").exists()
    assert rows(path, "SELECT count(*) FROM samples") == ((1,),)
    assert store.dropped_rows == 0


def test_unusable_place_is_a_problem_and_nothing_more(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    assert "Not a directory" in refused(tmp_path / "file" / "perphd.db") or "File exists" in refused(
        tmp_path / "file" / "perphd.db"
    )
    (tmp_path / "dir").mkdir()
    assert "directory" in refused(tmp_path / "dir")


def test_full_disk_costs_rows_and_is_over_when_there_is_room(path: Path, monkeypatch: pytest.MonkeyPatch):
    """The database refuses to grow as on a full disk; later it is allowed to."""
    full = {"pages": 12}

    def limited(where: Path) -> sqlite3.Connection:
        connection = open_database(where)
        connection.execute(f"PRAGMA max_page_count = {full['pages']}")
        return connection

    monkeypatch.setattr(store_module, "open_database", limited)
    writer = store_module._Writer(path, DAY, 64 * MIB, _never_paused())
    big = [("events", (NOW, "x", "y" * 100_000))]
    assert writer.write([(NOW, [sample()])], [])
    assert not writer.write([], big)
    assert "full" in str(writer.problem)
    assert "retries automatically" in str(writer.problem)
    full["pages"] = 1000
    tries = [writer.write([], big) for _ in range(RETRY_AFTER_BATCHES + 1)]
    assert tries == [False] * RETRY_AFTER_BATCHES + [True]
    assert writer.problem is None
    writer.close()
    assert rows(path, "SELECT count(*) FROM samples") == ((1,),)


def test_texts_with_kernel_paths_that_are_no_utf8_are_stored(path: Path, store: Store):
    odd = os.fsdecode(b"/cg/b\xffd/cpu.shares")
    said = replace(decision(), reason=f"{odd}: ENOENT")
    store.start()
    store.add_samples(NOW, [sample(mips=Unavailable(odd))])
    store.add_decision(NOW, said)
    store.add_writes(NOW, [Write("batch", "cpu_weight", odd, "2", "1024", Stage.DEMOTE)], "ok")
    store.add_event(NOW, "problem", f"{odd}: ENOENT")
    store.close()
    assert (store.problem, store.dropped_rows) == (None, 0)
    shown = r"/cg/b\udcffd/cpu.shares"
    assert rows(path, "SELECT path FROM writes") == ((shown,),)
    assert rows(path, "SELECT data FROM events") == ((f"{shown}: ENOENT",),)
    ((reasons,),) = rows(path, "SELECT reasons FROM samples")
    assert json.loads(str(reasons))["mips"] == odd
    ((record,),) = rows(path, "SELECT record FROM decisions")
    assert from_json(str(record), Decision) == said, "what is replayed is as it was, bit for bit"


def test_what_cannot_be_stored_costs_its_batch_and_is_said(
    path: Path, store: Store, caplog: pytest.LogCaptureFixture
):
    writer = store_module._Writer(path, DAY, 64 * MIB, _never_paused())
    impossible = [("events", (NOW, "x", 1 << 70))]  # SQLite has no such number: OverflowError
    assert writer.write([], [("events", (NOW, "x", "before"))])
    assert not writer.write([(NOW, [sample()])], impossible)
    assert not writer.write([], impossible)
    assert writer.write([], [("events", (NOW, "x", "after"))])
    assert "3 rows could not be stored and were dropped, the last for OverflowError" in str(writer.problem)
    assert [record.exc_info is not None for record in caplog.records] == [True], "once, and where it was"
    writer.close()
    assert rows(path, "SELECT data FROM events") == (("before",), ("after",))
    assert rows(path, "SELECT count(*) FROM samples") == ((0,),)


def test_the_thread_outlives_what_cannot_be_stored(path: Path, store: Store):
    store.start()
    store._add_record("events", (NOW, "x", 1 << 70))
    deadline = time.monotonic() + 30
    while store.problem is None and time.monotonic() < deadline:
        time.sleep(0.01)
    store.add_event(NOW, "x", "after")
    store.close()
    assert "1 rows could not be stored" in str(store.problem)
    assert store.dropped_rows == 1
    assert rows(path, "SELECT data FROM events") == (("after",),)


_CHILD = """
import sys
from perphd.domain.sample import Sample
from perphd.monitor.store import Store
{setup}
store = Store(sys.argv[1], 1e9, 1 << 40)
store.start()
n = 0
while True:
    store.add_samples(1e9 + n, [Sample(f"w{{i}}", float(n), 1.0, cpu_usage_cores=1.0) for i in range(50)])
    n += 1
    {pace}
"""


def child(path: Path, setup: str = "", pace: str = "") -> subprocess.Popen[str]:
    program = _CHILD.format(setup=setup, pace=pace)
    return subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)


def test_samples_wait_for_company_and_go_at_once_with_what_was_decided(
    path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(store_module, "FLUSH_EVERY_S", 3600.0)
    monkeypatch.setattr(store_module, "RECORDS_WITHIN_S", 0.01)
    store.start()
    store.add_samples(NOW, [sample()])
    store.add_samples(NOW + 1, [sample()])
    assert not path.exists()
    store.add_event(NOW + 1, "mode", "observe")
    found: tuple[tuple[object, ...], ...] = ()
    give_up_s = time.monotonic() + 30.0
    while found in ((), ((0, 0),)) and time.monotonic() < give_up_s:
        with suppress(PerphError):  # not made yet
            found = rows(path, "SELECT (SELECT count(*) FROM samples), (SELECT count(*) FROM events)")
    assert found == ((2, 1),)


def test_kill_9_while_writing_leaves_whole_ticks(path: Path):
    with child(
        path, "import time", 'time.sleep(0.002)\n    if n == 300: print("busy", flush=True)'
    ) as writing:
        try:
            assert writing.stdout is not None
            assert writing.stdout.readline() == "busy\n"
        finally:
            writing.send_signal(signal.SIGKILL)
    store = Store(path, 1e9, 64 * MIB)
    store.start()
    store.add_event(1e9, "back", "")
    store.close()
    assert store.problem is None
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    ticks = connection.execute("SELECT count(*), max(at_s) FROM samples GROUP BY at_s").fetchall()
    assert len(ticks) > 10
    assert {size for size, _ in ticks} == {50}
    connection.close()


def test_file_size_limit_does_not_end_the_process(path: Path):
    setup = "import resource, signal\nresource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))"
    pace = "import time; time.sleep(0.001)\n    if store.problem:\n        print(store.problem, flush=True); break"
    limited = child(path, setup, pace)
    said, _ = limited.communicate(timeout=60)
    assert limited.returncode == 0
    assert str(path) in said
    assert "retries automatically" in said
    assert int(str(rows(path, "SELECT count(*) FROM samples")[0][0])) >= 0
