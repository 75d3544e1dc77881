"""perphd beside the frontier of the static settings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_lab_report import make
from tools.lab import report
from tools.lab.hindsight import STATIC, Best, Setting, best, comparisons

ALONE, SPLIT, SHARES = (
    Setting("alone", 0.0, 1000.0),
    Setting("static", 80.0, 800.0),
    Setting("sbs-1024", 40.0, 850.0),
)


def rates(
    cell="closed-pi4", repetition=0, perphd=(800.0, 60.0), speed=1.0, schemes=("static", "sbs-1024", "idle")
):
    """Runs of one repetition; ``perphd``: its rate and batch work."""
    known = {
        "alone": (1000.0, 0.0), "native": (500.0, 100.0), "static": (800.0, 80.0), "sbs-1024": (600.0, 70.0),
        "idle": (980.0, 20.0),
    }  # fmt: skip
    chosen = {name: known[name] for name in ("alone", "native", *schemes)} | {"perphd": perphd}
    return [
        make(name, repetition, cell=cell, rates=(rate * speed,) * 8, batch=batch * speed)
        for name, (rate, batch) in chosen.items()
    ]


def test_a_single_setting_must_leave_batch_at_least_as_much():
    assert best([SPLIT, SHARES], 30.0, more=True, mixes=False) == Best("sbs-1024", 850.0)
    assert best([SPLIT, SHARES], 41.0, more=True, mixes=False) == Best("static", 800.0)


def test_two_settings_take_turns_for_exactly_that_work():
    assert best([ALONE, SPLIT], 20.0, more=True) == Best("alone + static", 950.0)
    assert best([ALONE, SPLIT, SHARES], 40.0, more=True) == Best("alone + static", 900.0)
    assert best([ALONE, SPLIT], 0.0, more=True) == Best("alone", 1000.0)


def test_a_setting_that_is_better_in_both_needs_no_mix():
    assert best([Setting("sbs-1024", 40.0, 700.0), SPLIT], 50.0, more=True) == Best("static", 800.0)


def test_more_batch_work_than_any_setting_is_compared_with_the_setting_that_has_most():
    assert best([ALONE, SPLIT], 200.0, more=True) == Best("static", 800.0)


def test_less_latency_is_better():
    fast, slow = Setting("idle", 50.0, 2.0), Setting("native", 100.0, 10.0)
    assert best([fast, slow], 75.0, more=False) == Best("idle + native", 6.0)
    assert best([fast, slow], 75.0, more=False, mixes=False) == Best("native", 10.0)


def test_without_settings_there_is_no_frontier():
    assert best([], 10.0, more=True) is None


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(1, 1000)), min_size=1, max_size=6),
    st.floats(0, 120), st.floats(0, 120),
)  # fmt: skip
def test_the_frontier_never_rises_with_batch_work_and_mixes_never_harm(points, one, other):
    settings = [Setting(str(number), *point) for number, point in enumerate(points)]
    less, more = sorted((one, other))

    def rate(batch, mixes=True):
        found = best(settings, batch, more=True, mixes=mixes)
        assert found is not None
        return found.figure

    assert rate(less) >= rate(more) - 1e-6
    assert rate(less) >= rate(less, mixes=False)
    assert rate(less) <= max(figure for _, figure in points) + 1e-6


def test_only_schemes_without_a_daemon_and_with_batch_are_static_settings():
    assert set(STATIC) == {"native", "sbs-1024", "sbs-64", "idle", "confined", "static"}


def test_perphd_is_compared_within_a_repetition_at_its_own_batch_work():
    runs = [
        run for number, speed in enumerate((1.0, 0.5, 0.8)) for run in rates(repetition=number, speed=speed)
    ]
    (found,) = comparisons(runs)
    assert (found.cell, found.scheme, found.figure) == ("closed-pi4", "perphd", "rate")
    assert found.settings == ("native", "sbs-1024", "idle", "static")
    assert found.single is not None
    assert found.mixed is not None
    assert (found.single_name, found.mixed_name) == ("static", "idle + static")
    assert found.single.median == pytest.approx(1.0)
    assert found.mixed.median == pytest.approx(800 / 860)
    assert found.mixed.high == pytest.approx(found.mixed.low)
    assert (found.met, found.not_worse_than_native) == (True, True)


def test_a_poor_exchange_is_missed_and_worse_than_native_is_told():
    (poor,) = comparisons(rates(perphd=(700.0, 60.0)))
    assert (poor.met, poor.not_worse_than_native) == (False, True)
    (worst,) = comparisons(rates(perphd=(490.0, 100.0)))
    assert (worst.met, worst.not_worse_than_native) == (True, False)
    row = report.summary(rates(perphd=(490.0, 100.0))).split("known in hindsight\n")[1]
    assert (
        "| closed-pi4 | perphd | rate | 1.00 | 0.98 | yes | 0.98: native | 0.98: native | met | "
        "native, sbs-1024, idle, static |" in row
    )


def test_an_open_loop_is_compared_by_latency():
    known = {"alone": (2.0, 0.0), "native": (10.0, 100.0), "idle": (3.0, 90.0), "perphd": (3.2, 90.0)}
    runs = [make(name, cell="open-pi4", p95=p95, batch=batch) for name, (p95, batch) in known.items()]
    (found,) = comparisons(runs)
    assert (found.figure, found.single_name) == ("p95", "idle")
    assert found.single is not None
    assert found.single.median == pytest.approx(3.2 / 3.0)
    assert (found.met, found.not_worse_than_native) == (True, True)


def test_repetitions_without_static_settings_are_left_out():
    runs = [*rates(), make("perphd", 1), make("alone", 1)]
    (found,) = comparisons(runs)
    assert found.single is not None
    assert found.single.count == 1
    assert comparisons([make("perphd"), make("alone")]) == []
    assert "hindsight" not in report.summary([make("perphd"), make("alone")])


def test_a_repetition_without_a_figure_names_no_setting():
    def run(name, repetition, p95, batch):
        found = make(name, repetition, cell="open-pi4", p95=p95 or 1.0, batch=batch)
        return found if p95 else replace(found, whole=replace(found.whole, p95_ms=None))

    runs = []
    for repetition in range(3):
        is_last = repetition == 2
        runs += [
            run("idle", repetition, 3.0, 90.0 if not is_last else 10.0),
            run("static", repetition, 5.0, 95.0),
            run("perphd", repetition, 3.2 if is_last else None, 80.0),
        ]
    (found,) = comparisons(runs)
    assert found.single is not None
    assert (found.single.count, found.single_name) == (1, "static")
