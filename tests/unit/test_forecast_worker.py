"""The forecast worker on made stores: cycles, what it keeps and publishes, what it refuses."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perphd.agent.forecasts import Message
from perphd.agent.memory_forecasts import MemoryForecasts
from perphd.control import forecast_cycle
from perphd.control import forecast_files as files
from perphd.control.forecast_cycle import Cycles
from perphd.control.forecast_files import (
    FileRefused,
    Known,
    load_state,
    read_profile,
    save_state,
    write_profile,
)
from perphd.control.forecast_worker import ForecastWorker, Listed, lines_of, parse
from perphd.control.metrics.forecasts import add_forecasts
from perphd.control.metrics.text import Page
from perphd.domain.forecast import MEMORY_FILE, PUBLISHED_FILE, SUMMARY_FILE, Forecasts, ForecastSummary
from perphd.domain.job import HISTORY_FILE, EndedJob
from perphd.domain.reading import Reading, Unavailable, available
from perphd.domain.wire import decode
from perphd.forecast.following import (
    HEAVY,
    LEAST_WINDOWS,
    LONG_GAP,
    Followed,
    continued,
    forecast_together,
    next_window,
    started,
)
from perphd.forecast.headroom import HORIZON
from perphd.forecast.history.features import JobDescription
from perphd.forecast.history.store import JobHistory, Quantity
from perphd.forecast.host_peaks import EVERY, HostPeaks, advanced, outlook
from perphd.forecast.ladder import LOSSES
from perphd.forecast.replay import outlook as replayed_outlook
from perphd.forecast.usage_profile import PodSample, UsageProfile, merged, observed
from perphd.monitor.windows import SERIES, SeriesWindows, StoreWindows, WorkloadWindows, read_windows
from perphd.sizing.shaper import Resource
from tests.unit.sizing_store import GIB, START_S, constant, daily, made, usual

REQUESTS = {name: {Resource.CPU: 4.0, Resource.MEMORY: 4.0 * GIB} for name in ("db", "etl")}


def same(one: Any, other: Any) -> bool:
    """Whether two values of the pure core are equal, arrays included."""
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other, equal_nan=True)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)
        )
    return bool(one == other) or (one != one and other != other)


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [START_S]
    monkeypatch.setattr("perphd.control.forecast_worker.time.time", lambda: now[0])
    return now


def store_of(path: Path, windows: int, first: int = 0) -> None:
    db = usual(daily(0.5, 2.0), constant(1.5 * GIB)) | {"load_per_s": constant(250.0)}
    made(path, windows, {"db": db, "etl": usual(constant(1.0), constant(1.0 * GIB))}, first)


# --- one series -------------------------------------------------------------------------------------------------


def test_a_series_that_is_followed_ends_where_a_replay_ends() -> None:
    random = np.random.default_rng(1)
    values = np.clip(np.cumsum(random.normal(size=500)) * 0.02 + 1, 0.1, None)
    series = started(range(200), values[:200].tolist(), LOSSES)
    assert series is not None
    for i in range(200, 500):
        series = continued(series, [i - 1, i], [99.0, float(values[i])])  # a window that was seen is ignored
    whole = started(range(500), values.tolist(), 490)
    assert whole is not None
    assert same(series.ladder.tracks["gp"].losses, whole.ladder.tracks["gp"].losses)
    assert next_window(series) == next_window(whole)
    assert replayed_outlook(values).windows == 500


def test_a_short_gap_is_skipped_and_a_long_one_starts_again() -> None:
    series = started(range(100), [1.0] * 100, 30)
    assert series is not None
    near = continued(series, [99 + LONG_GAP], [1.0])
    assert near.ladder.seen == 101
    far = continued(series, [100 + LONG_GAP, 101 + LONG_GAP], [1.0, 2.0])
    assert far.ladder.seen == 2
    assert isinstance(next_window(far), Unavailable)
    assert started([], [], 10) is None


# --- the host ---------------------------------------------------------------------------------------------------


def hosted(windows: int, usage: Callable[[int], float], request: Reading = 4.0) -> tuple[HostPeaks, Any]:
    host = HostPeaks()
    for number in range(1, windows + 1):
        values = {"a": usage(number), "b": 1.0}
        host = advanced(host, number, values, {"a": request, "b": 4.0}, UsageProfile(), pairs=True)
    return host, outlook(host, {"a": request, "b": 4.0}, pairs=True)


def test_predictors_are_tested_as_time_goes_on_and_the_tightest_is_picked() -> None:
    random = np.random.default_rng(2)
    _, early = hosted(400, lambda _: 1 + 0.02 * random.random())
    assert early.picked is None  # fewer than 99 predictions were tested
    assert early.peak == 8.0
    host, found = hosted(800, lambda _: 1 + 0.02 * random.random())
    assert found.picked in ("resource-central", "n-sigma")
    assert 2.0 < found.peak < 2.1
    scores = {each.name: each.horizon for each in found.predictors}
    assert scores["borg"].predictions == len(range(60, 800 - HORIZON + 1, EVERY))
    assert scores["borg"].mean_error == pytest.approx(7.2 / 2.02 - 1, abs=0.01)
    assert len(host.pending) == HORIZON / EVERY


def test_a_peak_that_no_predictor_foresaw_costs_it_its_place() -> None:
    _, found = hosted(800, lambda number: 20.0 if number % 200 == 0 else 1.0)
    assert found.picked is None
    assert "using the sum of the reservations" in found.reason
    _, without = hosted(800, lambda number: 20.0 if number % 200 == 0 else 1.0, Unavailable("none set"))
    assert isinstance(without.peak, Unavailable)


def test_hours_without_windows_test_nothing() -> None:
    host, _ = hosted(300, lambda _: 1.0)
    before = len(host.horizon["borg"])
    host = advanced(host, 301 + 5 * HORIZON, {"a": 9.0, "b": 1.0}, {}, UsageProfile(), pairs=True)
    assert len(host.horizon["borg"]) == before + 1  # of one horizon, nine tenths were known
    assert np.max(host.horizon["borg"]) == np.min(host.horizon["borg"])
    assert host.pending == ()
    assert advanced(host, 20, {"a": 1.0}, {}, UsageProfile(), pairs=True) is host


# --- cycles -----------------------------------------------------------------------------------------------------


def test_cycles_one_by_one_know_what_one_cycle_over_all_knows(tmp_path: Path) -> None:
    store_of(tmp_path / "all.db", 90)
    first, whole = Cycles(Known(), UsageProfile(), "n"), Cycles(Known(), UsageProfile(), "n")
    whole.take(read_windows(tmp_path / "all.db", 1e6), ["db", "etl"], REQUESTS)
    for windows in (70, 75, 90):
        store_of(tmp_path / f"{windows}.db", windows)
        found = read_windows(tmp_path / f"{windows}.db", 1e6, after=first.number)
        first.take(found, ["db", "etl"], REQUESTS)
    assert same(dict(first.known.hosts), dict(whole.known.hosts))
    keys = first.known.series.keys()
    assert keys == whole.known.series.keys()
    assert {name for _, name in keys} == {"cpu_usage_cores", "memory_working_set_bytes", "load_per_s"}
    for key in keys:
        one, other = first.known.series[key], whole.known.series[key]
        assert (one.number, one.ladder.seen) == (other.number, other.ladder.seen)
        assert same(one.ladder.values, other.ladder.values)


def test_heavy_fits_of_series_that_began_together_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve series, of which two heavy fits may be done in a cycle; each is fitted again, only later."""
    monkeypatch.setattr(forecast_cycle, "LEAST_FITS", 2)
    names = [f"w{number:02}" for number in range(12)]
    noise = np.random.default_rng(3).normal(5.0, 1.0, (len(names), 400))
    cycles = Cycles(Known(), UsageProfile(), "n")
    fits: list[int] = []

    def windows(first: int, end: int) -> StoreWindows:
        empty = SeriesWindows()
        return StoreWindows(
            60.0 * end,
            tuple(names),
            tuple(
                WorkloadWindows(
                    name,
                    60.0 * end,
                    dict.fromkeys(SERIES, empty)
                    | {SERIES[0]: SeriesWindows(tuple(range(first, end)), tuple(values[first:end]))},
                )
                for name, values in zip(names, noise, strict=True)
            ),
            (),
        )

    cycles.take(windows(0, 200), names, {})
    for number in range(200, 320):
        before = {key: series.ladder.tracks for key, series in cycles.known.series.items()}
        cycles.take(windows(number, number + 1), names, {})
        fits.append(
            sum(
                series.ladder.tracks[model].fitted_at != before[key][model].fitted_at
                for key, series in cycles.known.series.items()
                for model in HEAVY
            )
        )
    assert max(fits) <= 3, "the last series of a cycle may need both"
    fitted = [
        series.ladder.tracks[model].fitted_at for series in cycles.known.series.values() for model in HEAVY
    ]
    assert all(at is not None and at > 200 for at in fitted), "put off, not left out"


def test_a_worker_publishes_keeps_its_state_and_goes_on(tmp_path: Path, wall: list[float]) -> None:
    store_of(tmp_path / "perphd.db", 200)
    roster = [Listed("db", "/app/db", 0, frozenset()), Listed("etl", "/app/etl", 0, frozenset())]
    wall[0] = START_S + 200 * 60 + 30
    worker = ForecastWorker(tmp_path / "perphd.db", tmp_path / "f", "node1", str(tmp_path))
    worker.cycle(roster)
    published = decode(Forecasts, json.loads((tmp_path / "f" / PUBLISHED_FILE).read_text()))
    db = {each.series: each for each in published.workloads[0].series}
    assert db["load_per_s"].mean == pytest.approx(250.0)
    assert db["load_per_s"].p99 == pytest.approx(250.0, rel=0.01)
    assert available(db["cpu_usage_cores"].covered_ratio)
    assert db["cpu_usage_cores"].windows == 200
    assert [host.resource for host in published.hosts] == ["cpu", "memory"]
    summary = decode(ForecastSummary, json.loads((tmp_path / "f" / SUMMARY_FILE).read_text()))
    assert (summary.series, summary.forecasts, summary.problem) == (5, 5, "")
    shaped = MemoryForecasts(tmp_path / "f", lambda: wall[0])
    shaped.look(0.0)
    ahead, memory = shaped.of("etl"), published.workloads[1].series[1]
    assert ahead is not None
    assert memory.series == "memory_working_set_bytes"
    assert (ahead.model, ahead.mean_bytes, ahead.bound_bytes) == (memory.model, memory.mean, memory.p99)
    worker.save()
    again = ForecastWorker(tmp_path / "perphd.db", tmp_path / "f", "node1", str(tmp_path))
    assert same(dict(again._cycles.known.series), dict(worker._cycles.known.series))
    assert same(dict(again._cycles.known.hosts), dict(worker._cycles.known.hosts))
    store_of(tmp_path / "later.db", 10, first=200)
    wall[0] += 600
    for each in (again, worker):
        each._store = tmp_path / "later.db"
        each.cycle(roster)
    assert again._cycles.known.series["db", "load_per_s"].ladder.seen == 210
    assert same(dict(again._cycles.known.series), dict(worker._cycles.known.series))


def test_forecasts_go_on_after_the_clock_was_set_back(tmp_path: Path, wall: list[float]) -> None:
    """A host whose hardware clock runs in local time is hours ahead until the network corrects its clock."""
    store_of(tmp_path / "perphd.db", 100)
    roster = [Listed("db", "/app/db", 0, frozenset()), Listed("etl", "/app/etl", 0, frozenset())]
    made(tmp_path / "ahead.db", 3, {"db": usual(constant(9.0), constant(9.0 * GIB))}, first=220)
    with sqlite3.connect(tmp_path / "perphd.db") as store:
        store.execute("ATTACH ? AS ahead", (str(tmp_path / "ahead.db"),))
        columns = ", ".join(row[1] for row in store.execute("PRAGMA table_info(samples)"))
        store.execute(f"INSERT INTO samples ({columns}) SELECT {columns} FROM ahead.samples")
    store.close()
    worker = ForecastWorker(tmp_path / "perphd.db", tmp_path / "f", "node1", str(tmp_path))
    wall[0] = START_S + 223 * 60 + 30
    worker.cycle(roster)
    assert worker._cycles.number == int(START_S / 60) + 222
    worker.save()
    with sqlite3.connect(tmp_path / "perphd.db") as store:
        store.execute(
            "INSERT INTO samples (wall_s, at_s, interval_s, workload, quality, cpu_usage_cores,"
            " memory_working_set_bytes) VALUES (?, 0.0, 10.0, 'db', '', 1.0, ?)",
            (START_S + 103 * 60 + 5, 1.5 * GIB),
        )
    store.close()
    again = ForecastWorker(tmp_path / "perphd.db", tmp_path / "f", "node1", str(tmp_path))
    for each in (worker, again):
        wall[0] = START_S + 103 * 60 + 30
        each.cycle(roster)
        wall[0] += 60
        each.cycle(roster)
        assert each._cycles.number == int(START_S / 60) + 102
        memory = each._cycles.known.series["db", "memory_working_set_bytes"]
        assert (memory.number, memory.ladder.seen) == (int(START_S / 60) + 100, 101)
        assert each._cycles.memory(["db"])["db"].mean_bytes == pytest.approx(1.5 * GIB, rel=0.5)


def test_nothing_is_forecast_beyond_what_the_host_has(tmp_path: Path, wall: list[float]) -> None:
    jump = usual(
        lambda i: 7.0 if i >= 129 else 0.05 + 0.001 * (i % 7), lambda i: GIB * (7 if i >= 129 else 1)
    )
    made(tmp_path / "perphd.db", 130, {"db": jump})
    published = {}
    for name, most in (
        ("blind", {}),
        ("told", {"cpu_usage_cores": 8.0, "memory_working_set_bytes": 9.0 * GIB}),
    ):
        worker = ForecastWorker(tmp_path / "perphd.db", tmp_path / name, "node1", str(tmp_path))
        worker.cycle([Listed("db", "", 0, frozenset())], (), most)
        data = json.loads((tmp_path / name / PUBLISHED_FILE).read_bytes())
        memory = json.loads((tmp_path / name / MEMORY_FILE).read_bytes())["db"]["bound_bytes"]
        published[name] = (data["workloads"][0]["series"][0]["p99"], memory)
    assert published["blind"] > (8.0, 9.0 * GIB)
    assert published["told"] == (8.0, 9.0 * GIB)


def test_a_workload_that_is_off_the_list_is_not_published_and_forgotten_later(
    tmp_path: Path, wall: list[float]
) -> None:
    store_of(tmp_path / "perphd.db", 100)
    wall[0] = START_S + 100 * 60 + 30
    worker = ForecastWorker(tmp_path / "perphd.db", tmp_path / "f", "node1", str(tmp_path))
    worker.cycle([Listed("db", "/app/db", 0, frozenset())])
    assert {name for name, _ in worker._cycles.known.series} == {"db"}
    store_of(tmp_path / "later.db", 70, first=100)
    worker._store = tmp_path / "later.db"
    wall[0] += 70 * 60
    worker.cycle([Listed("etl", "/app/etl", 0, frozenset())])
    assert {name for name, _ in worker._cycles.known.series} == {"etl"}


def test_a_series_that_defeats_a_model_starts_again_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store_of(tmp_path / "one.db", 90)
    cycles = Cycles(Known(), UsageProfile(), "n")
    found = read_windows(tmp_path / "one.db", 1e6)
    cycles.take(found, ["db"], REQUESTS)
    assert len(cycles.known.series) == 3

    def fails(series: Any, numbers: Any, values: Any, **named: Any) -> Any:
        if series.ladder.values[-1] == pytest.approx(250.0):
            raise np.linalg.LinAlgError("Singular matrix")
        return continued(series, numbers, values, **named)

    monkeypatch.setattr("perphd.control.forecast_cycle.continued", fails)
    cycles.take(found, ["db"], REQUESTS)
    assert {name for _, name in cycles.known.series} == {"cpu_usage_cores", "memory_working_set_bytes"}
    assert "db load_per_s: its forecasts restart" in caplog.text


def test_a_forecast_that_fails_among_others_restarts_only_its_series(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    values = [1.0, 2.0, 1.5] * 30
    given = {"cpu_usage_cores": values, "load_per_s": [*values[:80], 99.0, *values[81:]]}

    def fails(series: list[Followed], priors: Any) -> list[Followed]:
        if any(each.ladder.values[-1] == 99.0 for each in series):
            raise np.linalg.LinAlgError("Singular matrix")
        return forecast_together(series, priors)

    monkeypatch.setattr("perphd.control.forecast_cycle.forecast_together", fails)
    cycles = Cycles(Known(), UsageProfile(), "n")
    for end, load_seen in ((80, 80), (81, None), (82, 82)):
        series = {
            name: SeriesWindows(tuple(range(end)), tuple(given[name][:end]))
            if name in given
            else SeriesWindows()
            for name in SERIES
        }
        found = StoreWindows(60.0 * end, ("db",), (WorkloadWindows("db", 60.0 * end, series),), ())
        cycles.take(found, ["db"], {})
        known = {name: each.ladder for (_, name), each in cycles.known.series.items()}
        assert known["cpu_usage_cores"].seen == end
        assert known["cpu_usage_cores"].forecast is not None
        assert (known["load_per_s"].seen if "load_per_s" in known else None) == load_seen
    assert "db load_per_s: its forecasts restart" in caplog.text


def test_a_store_that_cannot_be_read_is_a_published_problem(tmp_path: Path, wall: list[float]) -> None:
    worker = ForecastWorker(tmp_path / "none.db", tmp_path / "f", "node1", str(tmp_path))
    worker.cycle([Listed("db", "/app/db", 0, frozenset())])
    summary = decode(ForecastSummary, json.loads((tmp_path / "f" / SUMMARY_FILE).read_text()))
    assert "there is no store" in summary.problem
    assert summary.series == 0


@pytest.mark.parametrize("damage", ["cut", "empty", "other", "not finite", "long", "endless"])
def test_a_damaged_state_is_refused_and_starts_again(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    series = started(range(80), [1.0, 2.0] * 40, 20)
    assert series is not None
    save_state(tmp_path, Known({("db", "load_per_s"): series}))
    whole = (tmp_path / files.STATE).read_bytes()
    text = {
        "cut": whole[:-9], "empty": b"", "other": b"something else" + whole,
        "long": _with_length(whole, 1 << 60), "endless": _with_length(whole, (1 << 64) - 1),
        "not finite": whole.replace(np.float64(2.0).tobytes(), np.float64(np.nan).tobytes()),
    }[damage]  # fmt: skip
    (tmp_path / files.STATE).write_bytes(text)
    with pytest.raises(FileRefused, match="forecasts restart"):
        load_state(tmp_path)
    worker = ForecastWorker(tmp_path / "none.db", tmp_path, "node1", str(tmp_path))
    assert worker._cycles.known.series == {}
    assert "forecasts restart" in caplog.text


def _with_length(whole: bytes, length: int) -> bytes:
    """The state with another length of its first part."""
    at = whole.index(b"\n") + 1
    return whole[:at] + length.to_bytes(8, "little") + whole[at + 8 :]


# --- profiles ---------------------------------------------------------------------------------------------------


def profile_of(first: str, usage: float) -> UsageProfile:
    pods = [PodSample(first, 4.0, usage), PodSample("z", 4.0, 1.0)]
    return observed(UsageProfile(), pods, 20_000)


def test_profiles_of_other_nodes_are_merged_once_they_are_there(tmp_path: Path, wall: list[float]) -> None:
    worker = ForecastWorker(tmp_path / "none.db", tmp_path / "f", "node1", str(tmp_path))
    other = merged([profile_of("a", 3.0), profile_of("b", 1.0)])
    write_profile(tmp_path / "f" / files.IMPORTED / "node2.json", other)
    (tmp_path / "f" / files.IMPORTED / "broken.json").write_text("{}")
    worker.cycle([])
    assert worker._cycles.profile == other
    worker.cycle([])
    worker.save()
    assert read_profile(tmp_path / "f" / files.PROFILE) == other
    for text in (
        "",
        "[]",
        '{"format": "x", "peaks": [], "memory": []}',
        '{"format": "perphd usage profile 1"}',
    ):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(FileRefused, match=r"bad\.json: not a usage profile"):
            read_profile(tmp_path / "bad.json")


# --- the process ------------------------------------------------------------------------------------------------


def test_every_line_is_read_and_the_end_ends_it(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b'["old"]\n["new"]\n["begun')
    lines, rest = lines_of(reading)
    assert (lines, rest) == ([b'["old"]', b'["new"]'], b'["begun')
    os.write(writing, b'"]\n')
    assert lines_of(reading, rest) == ([b'["begun"]'], b"")
    os.close(writing)
    assert lines_of(reading)[0] == []
    os.close(reading)


def test_the_newest_list_of_workloads_counts_and_every_job() -> None:
    jobs = [EndedJob("pi", "", 0, ("pi", str(i)), None, 2.0, 3, {"run_time_s": 7.0}) for i in range(2)]
    lines = [
        Message(
            [("db", "/app/db", 5, ("cpu_max_cores",), 7, "shop")] if i else [], [job], {"load_per_s": 8.0}
        ).line()
        for i, job in enumerate(jobs)
    ]
    db = Listed("db", "/app/db", 5, frozenset({"cpu_max_cores"}), 7, "shop")
    assert parse(lines) == ([db], jobs, {"load_per_s": 8.0})


def test_a_daemon_that_is_older_than_its_worker_is_understood() -> None:
    """An upgrade replaces the files while a daemon runs, which may have to restart its worker."""
    line = b'{"workloads": [["db", "/app/db", 5, [], 7]], "jobs": [], "most": {}}'
    assert parse([line]) == ([Listed("db", "/app/db", 5, frozenset(), 7)], [], {})


def test_ended_jobs_are_recorded_and_old_rows_forgotten(tmp_path: Path, wall: list[float]) -> None:
    worker = ForecastWorker(tmp_path / "none.db", tmp_path / "f", "node1", str(tmp_path), history_rows=50)
    train = ("/opt/train.py", "--seed=4", "--password", "hunter2", "--token=abc")
    for seconds in (60.0, 70.0, 80.0):
        took = {"run_time_s": seconds, "memory_bytes": 1e9}
        worker.cycle([], [EndedJob("train", "train@17.service", 0, train, None, 4e9, 3, took)])
    with JobHistory(tmp_path / HISTORY_FILE) as history:
        found = history.predict(JobDescription(user="root", image="train@#.service"), Quantity.RUN_TIME_S)
        assert found is not None
        assert found.distribution.count == 3
        assert history.predict(
            JobDescription(argv=("train.py", "--seed=9", "--password", "x", "--token=y")),
            Quantity.MEMORY_BYTES,
        )
        text = "".join(history.exported())
        assert "hunter2" not in text
        assert "abc" not in text
        assert len(history) == 2 * 21
    worker.cycle([], [EndedJob("other", "", 1, ("other",), None, None, 4, {"run_time_s": 5.0})])
    worker.save()
    with JobHistory(tmp_path / HISTORY_FILE) as history:
        assert len(history) == 50
        assert history.predict(JobDescription(name="other"), Quantity.RUN_TIME_S) is not None


def test_a_history_that_cannot_be_written_is_a_published_problem(tmp_path: Path, wall: list[float]) -> None:
    (tmp_path / HISTORY_FILE).write_text("not a database, and long enough to have a header of one" * 5)
    worker = ForecastWorker(tmp_path / "none.db", tmp_path / "f", "node1", str(tmp_path), history_rows=50)
    worker.cycle([], [EndedJob("other", "", 1, ("other",), None, None, 4, {"run_time_s": 5.0})])
    summary = json.loads((tmp_path / "f" / SUMMARY_FILE).read_text())
    assert "1 ended jobs are not recorded" in summary["problem"]
    worker.save()


def test_the_process_gives_way_to_everybody() -> None:
    code = (
        "import os; from perphd.control.forecast_worker import give_way; give_way();"
        "print(os.getpriority(os.PRIO_PROCESS, 0), open('/proc/self/oom_score_adj').read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=True)
    assert done.stdout.split() == [b"19", b"500"]


def test_the_process_serves_a_line_and_saves_at_the_end_of_its_input(tmp_path: Path) -> None:
    store_of(tmp_path / "perphd.db", LEAST_WINDOWS + 5)
    command = [sys.executable, "-m", "perphd.control.forecast_worker", str(tmp_path / "perphd.db"),
               str(tmp_path / "f"), "node1", str(tmp_path)]  # fmt: skip
    line = Message([("db", "/app/db", 0, (), 0, "db")]).line()
    done = subprocess.run(command, input=line, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "f" / PUBLISHED_FILE).exists()
    assert (tmp_path / "f" / files.STATE).exists()
    command[3:] = ["s", "/dev/null/x", "n"]
    failed = subprocess.run(command, input=b"", capture_output=True, timeout=120, check=False)
    assert failed.returncode == 1
    assert b"forecast worker: " in failed.stderr
    assert b"Traceback" not in failed.stderr


# --- metrics ----------------------------------------------------------------------------------------------------


def test_metrics_have_what_is_known_and_nothing_else(tmp_path: Path, wall: list[float]) -> None:
    store_of(tmp_path / "perphd.db", 100)
    wall[0] = START_S + 100 * 60 + 30
    worker = ForecastWorker(tmp_path / "perphd.db", tmp_path / "f", "node1", str(tmp_path))
    worker.cycle([Listed("db", "/app/db", 0, frozenset())])
    text = (tmp_path / "f" / PUBLISHED_FILE).read_bytes()
    found = dict(line.rsplit(" ", 1) for line in page_of(text).splitlines() if not line.startswith("#"))
    bound = float(found['perphd_forecast_p99{workload="db",series="load_per_s"}'])
    assert bound == pytest.approx(250.0, rel=0.01)
    assert float(found["perphd_forecast_series"]) == 3
    assert 'perphd_host_peak_predicted{resource="cpu",predictor="n-sigma"}' in found
    assert 'perphd_host_peak_predicted{resource="cpu",predictor="borg"}' not in found  # nothing is reserved
    assert 'perphd_host_peak{resource="cpu"}' not in found
    for nothing in (Unavailable("off"), b"", b"{}", b'{"summary": {}}'):
        assert page_of(nothing) == ""


def page_of(published: bytes | Unavailable) -> str:
    page = Page()
    add_forecasts(page, published)
    return page.text().decode()
