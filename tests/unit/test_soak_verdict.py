"""The soak's own arithmetic: who comes and goes, what counts as growth, what must fill first."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from perphd.agent.records import KEPT_LEFT, Records
from tools.soak import churn
from tools.soak.churn import Happens
from tools.soak.meter import Reading
from tools.soak.trend import trend
from tools.soak.verdict import JOURNAL_BYTES, judge, report, warm_up_s

MIB = 1 << 20


def readings(
    seconds: int, growth_per_h: float = 0.0, journal_bytes: float = MIB, late: float = 1.0
) -> list[Reading]:
    random = Random(7)
    return [
        Reading(
            at_s=at_s,
            churned_s=at_s * late,
            open_fds=480 + random.randrange(-20, 20),
            rss_bytes=85 * MIB + growth_per_h * at_s / 3600.0 + random.gauss(0.0, 0.02 * MIB),
            blocks=400_000 + random.gauss(0.0, 10_000),
            threads=8,
            cpu_s=0.12 * at_s,
            journal_bytes=journal_bytes,
            store_bytes=22 * MIB,
            other_bytes=0.3 * MIB,
            other_files=11,
            state_files=15,
            aside_files=12,
        )
        for at_s in range(0, seconds, 5)
    ]


def test_what_is_flat_passes_and_what_grows_does_not() -> None:
    flat = judge(readings(1500), 600.0, 16 * MIB, 10)
    assert flat.passed
    assert "passed" in report("real", flat, 100, 10.0, 1500.0)
    grown = judge(readings(1500, growth_per_h=4 * MIB), 600.0, 16 * MIB, 10)
    assert [one.name for one in grown.trends if one.grows()] == ["rss_bytes"]
    assert not grown.passed
    assert "| rss MiB |" in (text := report("real", grown, 100, 10.0, 1500.0))
    assert "GROWS" in text


def test_a_limit_that_was_ever_exceeded_fails() -> None:
    found = readings(1500)
    found[3] = readings(20, journal_bytes=JOURNAL_BYTES + 1)[3]
    verdict = judge(found, 600.0, 16 * MIB, 10)
    assert [bound.name for bound in verdict.bounds if not bound.holds] == ["journal_bytes"]
    assert not verdict.passed
    assert "EXCEEDED" in report("real", verdict, 100, 10.0, 1500.0)


def test_models_of_who_has_gone_fill_up_to_a_limit_and_no_further() -> None:
    filling = [
        replace(
            r,
            state_files=min(15 + n // 8, 50),
            other_files=min(11 + n // 8, 46),
            other_bytes=0.02 * MIB * min(11 + n // 8, 46),
        )
        for n, r in enumerate(readings(1500))
    ]
    assert judge(filling, 600.0, 16 * MIB, 10).passed
    endless = [replace(r, state_files=15 + n // 3) for n, r in enumerate(filling)]
    verdict = judge(endless, 600.0, 16 * MIB, 10)
    assert [bound.name for bound in verdict.bounds if not bound.holds] == ["state_files"]
    growing = [replace(r, other_bytes=r.other_bytes * (1 + n / 300.0)) for n, r in enumerate(filling)]
    assert [one.name for one in judge(growing, 600.0, 16 * MIB, 10).trends if one.grows()] == [
        "mean_file_bytes"
    ]


def test_the_warm_up_is_counted_in_what_came_and_went() -> None:
    with pytest.raises(ValueError, match="no trend"):
        judge(readings(1500, late=0.3), 600.0, 16 * MIB, 10)


def test_a_single_step_is_no_slope_and_a_ramp_is_one() -> None:
    """Memory moves in steps: blocks before and after one resemble each other, and say less than so many others."""
    at_s = [float(5 * n) for n in range(200)]
    random = Random(3)
    noise = [random.gauss(0.0, 0.01) for _ in at_s]
    step = trend("rss", at_s, [85.0 + (0.5 if n >= 60 else 0.0) + noise[n] for n in range(200)])
    ramp = trend("rss", at_s, [85.0 + 0.0025 * n + noise[n] for n in range(200)])
    assert ramp.grows()
    assert ramp.low_per_h == pytest.approx(1.8, abs=0.05)
    assert step.high_per_h - step.low_per_h > 20 * (ramp.high_per_h - ramp.low_per_h)


def test_the_plan_is_one_that_can_be_followed() -> None:
    places, seconds = 40, 600
    names, here, away = churn.first_names(places), set(range(places)), set[int]()
    ever = set(names)
    for step in churn.steps(places, seconds, 1):
        assert names[step.place] == step.name
        if step.what is Happens.VANISHES:
            here.remove(step.place)
            away.add(step.place)
        elif step.what is Happens.RETURNS:
            away.remove(step.place)
            here.add(step.place)
        else:
            assert step.place in here - set(churn.RESIDENTS)
            assert step.newcomer not in ever
            names[step.place] = step.newcomer
            ever.add(step.newcomer)
    replaced = len(ever) - places
    assert replaced / seconds == pytest.approx(
        (places - len(churn.RESIDENTS)) / churn.mean_life_s(places), rel=0.15
    ), "a life is as long on average as is said"
    assert warm_up_s(places, 1.0) > 5 * churn.mean_life_s(places)
    first, again = (list(itertools.islice(churn.steps(places, seconds, 1), 50)) for _ in range(2))
    assert first == again


def test_problems_that_workloads_left_behind_do_not_pile_up(tmp_path: Path) -> None:
    records = Records(None, lambda: 0.0)
    records.problem("missing:db", "db is missing", 0.0)
    for number in range(3 * KEPT_LEFT):
        records.left_behind(f"left:job-{number}", f"job-{number}: not everything was restored", float(number))
    assert len(records.problems) == 1 + KEPT_LEFT
    assert records.problems[0] == "db is missing", "what holds now stays"
    assert records.problems[-1].startswith(f"job-{3 * KEPT_LEFT - 1}:")
    records.left_behind(f"left:job-{3 * KEPT_LEFT - 1}", None, 1e3)
    assert len(records.problems) == KEPT_LEFT
