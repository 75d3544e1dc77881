"""The demo tells the truth: the loop recovers and gives back, and it says so only then."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from perphd.agent.demo import MIN_SECONDS, run_demo
from perphd.agent.demo_report import Comparison, Second
from perphd.domain.errors import ConfigError


def play(seconds: int = 120, seed: int = 1) -> tuple[int, str]:
    out = io.StringIO()
    code = run_demo(seconds, seed, speed=None, console=Console(file=out, width=120))
    return code, out.getvalue()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_loop_recovers_and_gives_back(seed: int) -> None:
    code, text = play(seed=seed)
    assert code == 0, text
    for word in ("arrives", "seen", "decided", "written", "judged", "leaves", "stopped", "native"):
        assert word in text
    assert "FAILED" not in text


def test_the_same_seed_tells_the_same_story() -> None:
    assert play(120) == play(120)


@pytest.mark.parametrize(("seconds", "speed"), [(MIN_SECONDS - 1, None), (180, 0.0), (180, -1.0)])
def test_what_makes_no_scenario_is_refused(seconds: int, speed: float | None) -> None:
    with pytest.raises(ConfigError, match="demo: s"):
        run_demo(seconds, speed=speed)


def recording(*rates: float) -> list[Second]:
    return [Second(at, rate, 5.0, 1.0) for at, rate in enumerate(rates, start=1)]


def compare(perphd: list[float], native: list[float] | None = None) -> Comparison:
    quiet = [100.0] * 20
    return Comparison(recording(*quiet), recording(*(native or [50.0] * 20)), recording(*perphd), 5, 20, 10.0)


def test_recovery_is_counted_from_the_arrival_to_the_first_of_three_good_seconds() -> None:
    good = compare([100.0] * 5 + [50.0, 50.0, 90.0, 50.0] + [90.0] * 11)
    assert good.target_per_s == pytest.approx(90.0)
    assert good.recovery_s(good.perphd) == 5.0
    assert good.problems() == []
    assert compare([100.0] * 20).recovery_s(recording(*[100.0] * 20)) == 0.0


def test_what_was_not_shown_is_a_problem() -> None:
    never = compare([50.0] * 20)
    assert never.recovery_s(never.perphd) is None
    assert "did not bring" in never.problems()[0]
    relapse = compare([100.0] * 12 + [50.0] * 8)
    assert "did not bring" in relapse.problems()[0]
    harmless = replace(relapse, perphd=recording(*[100.0] * 20), native=recording(*[100.0] * 20))
    assert "cannot be shown" in harmless.problems()[0]
