"""Samples become one greatest value per window, and nothing that is missing becomes a number."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from perphd.domain.reading import Unavailable
from perphd.monitor.query import QueryError
from perphd.monitor.schema import open_database
from perphd.monitor.windows import SERIES, read_windows
from tests.unit.sizing_store import EVERY_S, GIB, START_S, constant, made, spike, usual


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return made(
        tmp_path / "a.db",
        30,
        {"db": usual(spike(1.0, 4, 7.0), constant(GIB)), "a b": usual(constant(2), constant(1))},
    )


def insert(path: Path, columns: str, *values: object) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"INSERT INTO samples ({columns}) VALUES ({', '.join('?' * len(values))})", values)
    connection.close()


COLUMNS = "wall_s, at_s, interval_s, workload, quality, cpu_usage_cores"


def test_windows_hold_the_greatest_value_and_the_last_is_present_use(path: Path):
    found = read_windows(path, 1e9)
    assert [each.workload for each in found.workloads] == ["a b", "db"]
    cpu = found.workloads[1].series["cpu_usage_cores"]
    first = int(START_S / 60)
    assert cpu.numbers == tuple(range(first, first + 30))
    assert cpu.values == (*[1.0] * 4, 7.0, *[1.0] * 25)
    assert cpu.now == 1.0
    assert found.newest_s == START_S + 30 * 60 + 2 * EVERY_S


def test_only_what_is_asked_for_is_read(path: Path):
    found = read_windows(path, 600.0, "db", ("cpu_usage_cores",))
    (db,) = found.workloads
    assert list(db.series) == ["cpu_usage_cores"]
    assert len(db.series["cpu_usage_cores"].values) == 10
    assert found.names == ("a b", "db")
    assert read_windows(path, 600.0, "nobody").workloads == ()


@pytest.mark.parametrize(("known", "new"), [(-1, 30), (0, 30), (26, 3), (28, 1), (29, 0), (500, 0)])
def test_windows_that_the_caller_knows_are_not_read_again(path: Path, known: int, new: int):
    """Beside the new ones, the present window is always read, also after the clock was set back."""
    first = int(START_S / 60)
    (db,) = read_windows(path, 1e9, "db", after=known if known < 1 else first + known).workloads
    cpu = db.series["cpu_usage_cores"]
    assert cpu.numbers == tuple(range(first + 30 - new, first + 30))
    assert cpu.values == tuple([*[1.0] * 4, 7.0, *[1.0] * 25][30 - new :])
    assert cpu.now == 1.0


def test_rates_of_short_samples_do_not_count_beside_longer_ones(path: Path):
    both = f"{COLUMNS}, memory_working_set_bytes"
    insert(path, both, START_S + 65, 0.0, 0.4 * EVERY_S, "db", "", 99.0, 5.0 * GIB)
    insert(path, both, START_S + 125, 0.0, 0.6 * EVERY_S, "db", "", 50.0, 1.0)
    insert(path, both, START_S + 30 * 60 + 21, 0.0, EVERY_S, "db", "", 1.0, 1.0)
    series = read_windows(path, 1e9, "db").workloads[0].series
    assert series["cpu_usage_cores"].values[1:3] == (1.0, 50.0)
    assert series["memory_working_set_bytes"].values[1:3] == (5.0 * GIB, 1.0 * GIB)


def test_a_window_sampled_at_a_faster_pace_alone_still_counts(path: Path):
    for i in range(4):
        insert(path, COLUMNS, START_S + 2400 + i, 0.0, 0.1 * EVERY_S, "db", "", 3.0 + i)
    insert(path, COLUMNS, START_S + 2460, 0.0, EVERY_S, "db", "", 1.0)
    assert read_windows(path, 1e9, "db").workloads[0].series["cpu_usage_cores"].values[-1] == 6.0


def test_what_is_missing_says_so(path: Path):
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE samples DROP COLUMN mbw_bytes_per_s")
    connection.close()
    series = read_windows(path, 1e9, "db").workloads[0].series
    assert set(series) == set(SERIES)
    assert series["mbw_bytes_per_s"].missing == "the store has no such column"
    assert series["load_per_s"].missing == "not measured"
    assert series["load_per_s"].values == ()
    assert isinstance(series["load_per_s"].now, Unavailable)


def test_samples_from_before_the_clock_was_set_back_are_not_the_present(path: Path):
    insert(path, COLUMNS, START_S + 30 * 60 + 7200, 0.0, EVERY_S, "db", "", 9.0)
    insert(path, COLUMNS, START_S + 30 * 60 + 7260, 0.0, EVERY_S, "future", "", 9.0)
    insert(path, COLUMNS, START_S + 31 * 60, 0.0, EVERY_S, "db", "", 2.0)
    found = read_windows(path, 1e9)
    assert (found.newest_s, found.names, found.ended) == (START_S + 31 * 60, ("a b", "db"), ())
    cpu = found.workloads[1].series["cpu_usage_cores"]
    assert (cpu.numbers[-1], cpu.now) == (int(START_S / 60) + 30, 2.0)
    assert max(cpu.values) == 7.0


def test_a_workload_that_has_ended_is_named_and_not_listed(path: Path):
    insert(path, COLUMNS, START_S + 30 * 60 + 7200, 0.0, 10.0, "new", "", 1.0)
    found = read_windows(path, 1e9)
    assert [each.workload for each in found.workloads] == ["new"]
    assert found.ended == ("a b", "db")
    assert len(read_windows(path, 1e9, "db").workloads[0].series["cpu_usage_cores"].values) == 31


def test_an_empty_store_another_database_and_no_file_are_refused(tmp_path: Path):
    open_database(tmp_path / "empty.db").close()
    with pytest.raises(QueryError, match="no samples yet"):
        read_windows(tmp_path / "empty.db", 60)
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    with pytest.raises(QueryError, match="not a store of perphd"):
        read_windows(tmp_path / "other.db", 60)
    with pytest.raises(QueryError, match="there is no store"):
        read_windows(tmp_path / "none.db", 60)


def test_reading_changes_nothing(path: Path):
    before = path.read_bytes()
    read_windows(path, 1e9)
    assert path.read_bytes() == before
