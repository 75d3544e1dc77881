"""The daemon's side of the forecast worker: started, told, watched, ended; its files read."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from perphd.agent.assembly import assemble
from perphd.agent.composition import build_parts
from perphd.agent.forecasts import (
    FORECASTS_OFF,
    PERIOD_S,
    RESTART,
    ForecastProcess,
    Listed,
    Message,
    set_limits,
)
from perphd.agent.records import Records
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.config.tables import ForecastConfig
from perphd.control.forecast_worker import parse
from perphd.domain.allocation import UNTOUCHED
from perphd.domain.forecast import PUBLISHED_FILE, SUMMARY_FILE, ForecastSummary
from perphd.domain.job import EndedJob
from perphd.domain.reading import Unavailable

ROSTER: list[Listed] = [
    ("db", "/app/db", 1 << 30, ("cpu_max_cores",), 2, "db"),
    ("pi", "/batch/pi", 0, (), 0, "pi"),
]
JOB = EndedJob("pi", "pi.service", 1000, ("pi", "7"), None, 1e9, 3, {"run_time_s": 7.0})
ECHO = """
import sys, os, pathlib
folder = pathlib.Path(sys.argv[2])
for line in sys.stdin.buffer:
    with (folder / "heard").open("ab") as file:
        file.write(line)
(folder / "saved").write_text("saved")
"""
DIES = "import sys; sys.exit(3)"
DEAF = "import time; time.sleep(600)"


@contextmanager
def worker(tmp_path: Path, script: str) -> Iterator[tuple[ForecastProcess, Records, Path]]:
    folder = tmp_path / "forecast"
    records = Records(None, time.time)
    found = ForecastProcess(folder, ("store", str(folder)), records, (sys.executable, "-c", script))
    try:
        yield found, records, folder
    finally:
        found.close()


def until(true: Callable[[], bool]) -> None:
    for _ in range(2000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("waited for nothing")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def stepped(found: ForecastProcess, now_s: float, roster: Sequence[Listed] = ROSTER) -> bool:
    """One step; whether the worker runs and is being told."""
    found.step(now_s, lambda: Message(roster))
    return found._pid is not None and found._told_s == now_s


def test_it_is_told_once_a_minute_and_saves_when_the_daemon_ends(tmp_path: Path) -> None:
    with worker(tmp_path, ECHO) as (found, records, folder):
        until(lambda: stepped(found, 0.0))
        for now_s in (1.0, 30.0, PERIOD_S - 0.1):
            found.step(now_s, lambda: Message(ROSTER))
        found.step(PERIOD_S, lambda: Message(ROSTER[:1], [JOB]))
        until(lambda: (folder / "heard").exists() and (folder / "heard").read_bytes().count(b"\n") == 2)
        first, second = (json.loads(line) for line in (folder / "heard").read_text().splitlines())
        listed = [["db", "/app/db", 1 << 30, ["cpu_max_cores"], 2, "db"], ["pi", "/batch/pi", 0, [], 0, "pi"]]
        assert first == {"workloads": listed, "jobs": [], "most": {}}
        assert second["workloads"] == listed[:1]
        assert parse([json.dumps(first).encode(), json.dumps(second).encode()])[1] == [JOB]
        pid = found._pid
        assert pid is not None
        found.close()
        assert (folder / "saved").read_text() == "saved"
        assert not alive(pid)
        assert records.problems == ()
        found.step(10 * PERIOD_S, lambda: Message(ROSTER))  # after the end nothing starts again
        assert found._pid is None


@pytest.mark.parametrize(
    ("second", "pause_s"), [(8.0, 60.0), (10.0, 58.0), (0.0, 68.0), (40.0, 88.0), (37.0, 31.0)]
)
def test_it_is_told_when_the_store_has_the_minute_that_has_ended(
    tmp_path: Path, second: float, pause_s: float
) -> None:
    wall_s = 60.0 * 1000 + second
    with worker(tmp_path, ECHO) as (found, _, _):
        found._wall_clock = lambda: wall_s
        until(lambda: stepped(found, 0.0))
        assert found._tell_s == pytest.approx(pause_s)


def test_one_that_dies_is_a_problem_and_starts_again_after_a_growing_pause(tmp_path: Path) -> None:
    with worker(tmp_path, DIES) as (found, records, _):
        until(lambda: not stepped(found, 0.0) and bool(records.problems))
        assert "ended with status 3" in records.problems[0]
        assert f"restarted in {RESTART.first_s:.0f} s" in records.problems[0]
        found.step(RESTART.first_s - 1, lambda: Message(ROSTER))
        assert found._starting is None
        until(lambda: not stepped(found, RESTART.first_s) and "in 120 s" in "".join(records.problems))


def test_one_that_somebody_else_reaped_has_ended(tmp_path: Path) -> None:
    with worker(tmp_path, DIES) as (found, records, _):
        until(lambda: stepped(found, 0.0))
        assert found._pid is not None
        os.waitpid(found._pid, 0)
        found.step(1.0, lambda: Message(ROSTER))
        assert "ended with an unknown status" in records.problems[0]


def test_without_a_thread_the_loop_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("perphd.agent.forecasts._thread.start_new_thread", full)
    with worker(tmp_path, ECHO) as (found, records, _):
        found.step(0.0, lambda: Message(ROSTER))
        assert "can't start new thread" in records.problems[0]
        found.step(1.0, lambda: Message(ROSTER))


def test_a_program_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    records = Records(None, time.time)
    found = ForecastProcess(tmp_path / "forecast", ("store",), records, ("/nowhere/python",))
    until(lambda: not stepped(found, 0.0) and bool(records.problems))
    assert "cannot be started: No such file" in records.problems[0]
    found.close()


def test_one_that_never_reads_blocks_nobody_and_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perphd.agent.forecasts.SAVES_WITHIN_S", 0.05)
    many: list[Listed] = [(f"workload-{i}", "/" + "x" * 200, 0, (), 0, "") for i in range(20_000)]
    with worker(tmp_path, DEAF) as (found, _, _):
        until(lambda: stepped(found, 0.0, many))
        for minute in range(1, 4):
            found.step(minute * PERIOD_S, lambda: Message(many))
        assert found._unsent  # more than the pipe holds
        pid = found._pid
        assert pid is not None
        found.close()
        assert not alive(pid)


def test_what_it_publishes_is_read_when_asked(tmp_path: Path) -> None:
    found = ForecastProcess(tmp_path, ("store",), Records(None, time.time))
    nothing = found.summary()
    assert isinstance(nothing, Unavailable)
    assert "a forecast needs an hour of samples" in nothing.reason
    assert isinstance(found.published(), Unavailable)
    (tmp_path / PUBLISHED_FILE).write_text("{}")
    (tmp_path / SUMMARY_FILE).write_text(
        json.dumps(
            {"made_unix_s": 1.0, "newest_unix_s": {"unavailable": "not read"}, "series": 5, "forecasts": 4,
             "peak_cores": 3.5, "peak_bytes": {"unavailable": "no"}, "cpu_pct": 0.2, "rss_bytes": 1e7, "problem": ""}
        )
    )  # fmt: skip
    assert found.published() == b"{}"
    no = Unavailable("no")
    assert found.summary() == ForecastSummary(1.0, Unavailable("not read"), 5, 4, 3.5, no, 0.2, 1e7)
    for damaged in ("", "[]", '{"series": "x"}'):
        (tmp_path / SUMMARY_FILE).write_text(damaged)
        broken = found.summary()
        assert isinstance(broken, Unavailable)
        assert "cannot be read" in broken.reason


def test_limits_of_its_own_are_named() -> None:
    assert set_limits(UNTOUCHED) == ()
    assert set_limits(replace(UNTOUCHED, cpu_max_cores=2.0, memory_high_bytes=1 << 30)) == (
        "cpu_max_cores", "memory_high_bytes",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("enabled", "store", "clock", "there"),
    [(False, True, True, False), (True, False, True, False), (True, True, False, False), (True, True, True, True)],
)  # fmt: skip
def test_it_is_off_unless_configured_with_a_store_and_a_clock(
    tmp_path: Path, enabled: bool, store: bool, clock: bool, there: bool
) -> None:
    config = Config(
        daemon=DaemonConfig(state_dir=str(tmp_path / "state"), socket=str(tmp_path / "s")),
        store=StoreConfig(enabled=store),
        forecast=ForecastConfig(enabled),
    )
    timer = time.monotonic if clock else None
    parts = build_parts(config, clock=timer)
    agent = assemble(config, parts, timer)
    try:
        assert (parts.forecasts is not None) is there
        if not there:
            assert agent.forecasts() == Unavailable(FORECASTS_OFF)
            assert agent.status().forecast is None
        assert any("set enabled = true in [store]" in text for text in agent.status().problems) is (
            enabled and clock and not store
        )
    finally:
        for part in parts.owned:
            part.close()
