"""The shaper with the forecast worker's forecasts: which counts when, and when an interval ends."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from perphd.agent.memory_forecasts import LIVE_S, MemoryForecasts
from perphd.domain.forecast import MEMORY_FILE, MemoryForecast
from perphd.sizing.shaper import Role, ShaperMode, ShaperSettings
from perphd.sizing.shaping import LEAST_OWN, advance
from perphd.sizing.shaping_state import ShapedSubject, ShapingRules, ShapingState, ShapingStep
from perphd.sizing.shaping_view import view

MIB = 1 << 20
INTERVAL_S = 60.0
RULES = ShapingRules(ShaperMode.PESSIMISTIC, INTERVAL_S, ShaperSettings())
AHEAD = MemoryForecast(1, "gp", 200.0 * MIB, 260.0 * MIB)
WANTED = 200 + 50 + 60
"""Mean, 5 % of the reservation, and three spreads: the distance to the bound."""


def _subject(**changes: object) -> ShapedSubject:
    subject = ShapedSubject(
        "a",
        "a",
        False,
        Role.ELASTIC,
        1000.0 * MIB,
        100.0 * MIB,
        kills=0.0,
        full_ratio=0.0,
        refaults_per_s=0.0,
    )
    return replace(subject, **changes)  # type: ignore[arg-type]


class Host:
    """Looks every ten seconds."""

    def __init__(self) -> None:
        self.state, self.now_s = ShapingState(), 0.0

    def look(self, subject: ShapedSubject, seconds: float = 10.0, due: bool | None = None) -> ShapingStep:
        step = ShapingStep({})
        for _ in range(int(seconds / 10.0)):
            self.now_s += 10.0
            self.state, step = advance(self.state, [subject], 4000.0 * MIB, RULES, self.now_s, due)
        return step

    def target_mib(self, subject: ShapedSubject) -> float:
        row = view(self.state, [subject], 4000.0 * MIB, RULES).workloads[0]
        assert isinstance(row.target_bytes, float)
        return row.target_bytes / MIB

    def model(self, subject: ShapedSubject) -> str:
        return view(self.state, [subject], 4000.0 * MIB, RULES).workloads[0].model


def test_the_workers_forecast_counts_and_the_shapers_own_where_there_is_none() -> None:
    host, told, untold = Host(), _subject(ahead=AHEAD), _subject()
    host.look(told, 12 * INTERVAL_S)
    assert host.target_mib(told) == pytest.approx(WANTED)
    assert host.model(told) == "gp"
    host.look(untold, INTERVAL_S)
    assert 150 <= host.target_mib(untold) < 160
    assert host.model(untold) in ("last", "ses")


def test_what_was_used_while_the_worker_forecast_is_known_to_the_shapers_own_models() -> None:
    host = Host()
    host.look(_subject(), 12 * INTERVAL_S)
    host.look(_subject(ahead=AHEAD, used_bytes=400.0 * MIB), 12 * INTERVAL_S)
    untold = _subject(used_bytes=400.0 * MIB)
    host.look(untold, INTERVAL_S)
    assert 450 <= host.target_mib(untold) < 700, "of the latest use, and of no pending forecast of the first"
    assert host.state.members["a"].ladder.seen >= 24


def test_no_forecast_counts_within_the_grace() -> None:
    host = Host()
    host.look(_subject(ahead=AHEAD), 9 * INTERVAL_S)
    assert host.target_mib(_subject()) == 1000


@pytest.mark.parametrize("change", [{"kills": 1.0}, {"restarted": True}, {"used_bytes": 0.0}])
def test_the_workers_history_of_an_earlier_job_does_not_count(change: dict[str, object]) -> None:
    host, told = Host(), _subject(ahead=AHEAD)
    host.look(told, 12 * INTERVAL_S)
    began_anew = replace(told, **change)  # type: ignore[arg-type]
    host.look(began_anew)
    calm = replace(told, kills=began_anew.kills)
    host.look(calm, 12 * INTERVAL_S)
    assert host.target_mib(calm) < 160
    host.look(calm, LEAST_OWN * INTERVAL_S)
    assert host.target_mib(calm) == pytest.approx(WANTED)


def test_an_interval_ends_when_the_worker_has_forecast_the_next_one() -> None:
    host, told = Host(), _subject(ahead=AHEAD)
    host.look(told, 12 * INTERVAL_S)
    later = replace(told, ahead=replace(AHEAD, mean_bytes=300.0 * MIB, bound_bytes=360.0 * MIB))
    host.look(later, 2 * INTERVAL_S, due=False)
    assert host.target_mib(later) == pytest.approx(WANTED)
    host.look(later, due=True)
    assert host.target_mib(later) == pytest.approx(WANTED + 100)
    host.look(told, due=True)  # the worker's first two forecasts may come shortly after another
    assert host.target_mib(told) == pytest.approx(WANTED + 100)


# --- the file ---------------------------------------------------------------------------------------------------


def _publish(folder: Path, text: str) -> None:
    """As the worker does: a new file in its place."""
    folder.mkdir(exist_ok=True)
    (folder / "new").write_text(text)
    os.replace(folder / "new", folder / MEMORY_FILE)


def _one(number: int, mean: float = 1e6) -> str:
    return json.dumps({"a": {"number": number, "model": "gp", "mean_bytes": mean, "bound_bytes": 2e6}})


def test_a_new_file_is_told_once_and_a_worker_that_is_silent_is_not_there(tmp_path: Path) -> None:
    wall_s = [1000 * 60.0]
    found = MemoryForecasts(tmp_path / "f", lambda: wall_s[0])
    assert found.look(0.0) is None
    _publish(tmp_path / "f", _one(1000))
    assert found.look(1.0) is True
    assert found.look(2.0) is False
    assert found.of("a") == MemoryForecast(1000, "gp", 1e6, 2e6)
    assert found.of("b") is None
    assert found.look(1.0 + LIVE_S) is None
    _publish(tmp_path / "f", _one(1001))
    assert found.look(200.0) is True


def test_a_forecast_of_another_minute_does_not_count(tmp_path: Path) -> None:
    wall_s = [1000 * 60.0 + 59]
    found = MemoryForecasts(tmp_path / "f", lambda: wall_s[0])
    found.look(0.0)
    _publish(tmp_path / "f", _one(1000))
    found.look(1.0)
    for seconds, counts in ((0.0, True), (60.0, True), (62.0, False), (-3600.0, False)):
        wall_s[0] = 1000 * 60.0 + 59 + seconds
        assert (found.of("a") is not None) is counts


def test_what_is_there_at_the_start_may_be_of_an_earlier_worker(tmp_path: Path) -> None:
    _publish(tmp_path / "f", _one(1000))
    found = MemoryForecasts(tmp_path / "f", lambda: 1000 * 60.0)
    assert found.look(0.0) is None
    assert found.of("a") is not None
    assert found.look(1.0) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"a": 3}',
        '{"a": {"number": 1000}}',
        _one(1000, 3e6),
        _one(1000, -1),
        _one(1000, float("nan")),
    ],
)
def test_a_file_that_says_something_else_says_nothing(tmp_path: Path, text: str) -> None:
    found = MemoryForecasts(tmp_path / "f", lambda: 1000 * 60.0)
    found.look(0.0)
    _publish(tmp_path / "f", text)
    found.look(1.0)
    assert found.of("a") is None
