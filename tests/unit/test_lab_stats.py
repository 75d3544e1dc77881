"""Spreads, recovery, order of runs, timelines and windows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.lab.latency import Histogram
from tools.lab.load import Second
from tools.lab.records import interpolate, timeline, whole_cycles, window
from tools.lab.schemes import halves
from tools.lab.stats import Spread, ratio, recovery_s, rotated, share_good, spread
from tools.lab.usage import machine_seconds


def test_spread_ignores_what_was_not_measured():
    assert spread([3.0, None, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)
    assert spread([None]) is None
    assert spread([]) is None


def test_ratio_of_missing_or_zero_is_missing():
    assert ratio(3.0, 2.0) == 1.5
    assert ratio(None, 2.0) is None
    assert ratio(3.0, None) is None
    assert ratio(3.0, 0.0) is None


def recover(values, sustain=3):
    return recovery_s([float(i + 1) for i in range(len(values))], values, lambda value: value >= 10, sustain)


def test_recovery_is_the_end_of_the_first_good_second_that_opens_three_good_on_average():
    assert recover([2, 5, 12, 11, 10, 3]) == 3.0
    assert recover([2, 8, 20, 9, 10, 3]) == 3.0


def test_a_relapse_that_the_mean_shows_restarts_the_count():
    assert recover([12, 11, 5, 12, 12, 12]) == 4.0


def test_never_disturbed_recovers_in_the_first_second():
    assert recover([11, 11, 11]) == 1.0


def test_two_good_seconds_at_the_end_do_not_prove_recovery():
    assert recover([1, 1, 1, 12, 12]) is None
    assert recover([]) is None


def test_share_of_good_seconds():
    assert share_good([1, 12, 13, 2], lambda value: value >= 10) == 0.5
    assert share_good([], lambda value: True) is None


@given(st.lists(st.text(min_size=1), unique=True), st.integers(0, 50))
def test_every_repetition_runs_every_scheme_once(names, repetition):
    assert sorted(rotated(names, repetition)) == sorted(names)


def test_repetitions_differ_in_order():
    names = ["a", "b", "c", "d"]
    orders = [rotated(names, repetition) for repetition in range(4)]
    assert orders[0] == names
    assert len({order[0] for order in orders}) > 2
    assert len(set(map(tuple, orders))) == 4


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [("0-1", ("0", "1")), ("0-3", ("0-1", "2-3")), ("0,2,4", ("0,2", "4")), ("2-3,6-7", ("2-3", "6-7"))],
)
def test_halves_of_a_cpu_list(cpus, expected):
    assert halves(cpus) == expected


def second(at_s, events, latency):
    return Second(at_s, 1.0, events, 0, Histogram({latency: events}))


def test_batch_work_is_attributed_to_the_second_it_was_done_in_even_if_it_was_read_late():
    seconds = [second(101.0, 10, 1.0), second(102.0, 20, 2.0), second(103.0, 30, 4.0)]
    counts = [
        (101.0, 100.0),
        (103.0, 300.0),
        (103.0, 300.0),
    ]  # the second report was read together with the third
    points = timeline(seconds, counts, 100.0)
    assert [point.batch for point in points] == pytest.approx([100.0, 100.0, 100.0])
    assert [point.end_s for point in points] == pytest.approx([1.0, 2.0, 3.0])
    assert [point.p95_ms for point in points] == [1.0, 2.0, 4.0]


def test_without_batch_its_work_is_zero():
    assert [point.batch for point in timeline([second(101.0, 1, 1.0)], [], 100.0)] == [0.0]


@pytest.mark.parametrize(("at", "expected"), [(-1.0, 0.0), (0.0, 0.0), (1.0, 5.0), (2.0, 10.0), (9.0, 10.0)])
def test_interpolation_stays_within_what_is_known(at, expected):
    assert interpolate([(0.0, 0.0), (2.0, 10.0)], at) == expected


def test_window_merges_latencies_and_may_leave_out_the_beginning():
    seconds = [second(100.0 + i, 100, float(i)) for i in range(1, 9)]
    points = timeline(seconds, [(100.0 + i, 7.0 * i) for i in range(1, 9)], 100.0)
    whole, settled = window(seconds, points), window(seconds, points, after_s=5.0)
    assert (whole.seconds, settled.seconds) == (8.0, 3.0)
    assert (whole.p50_ms, settled.p50_ms) == (4.0, 7.0)
    assert whole.tps == settled.tps == 100.0
    assert whole.batch == settled.batch == pytest.approx(7.0)


def repeating(lengths, client, begin_s, end_s):
    """(client, time) of events of these lengths, over and over."""
    at_s, number, found = begin_s, 0, []
    while (at_s := at_s + lengths[number % len(lengths)]) < end_s:
        found.append((client, at_s))
        number += 1
    return found


@given(st.lists(st.floats(0.1, 5.0), min_size=2, max_size=6), st.floats(0.0, 5.0))
def test_whole_cycles_give_the_same_rate_whichever_events_fall_into_the_window(lengths, begin_s):
    cycle = len(lengths)
    found = whole_cycles(repeating(lengths, 0, begin_s, begin_s + 3.5 * sum(lengths)), cycle)
    assert found is not None
    assert found[0] == pytest.approx(cycle / sum(lengths))
    assert found[1] in (2, 3)


def test_each_client_has_its_own_rate():
    ends = repeating([1.0, 3.0], 0, 0.0, 20.0) + repeating([0.5, 1.5], 1, 0.0, 20.0)
    found = whole_cycles(sorted(ends, key=lambda end: end[1]), 2)
    assert found is not None
    assert found[0] == pytest.approx(0.5 + 1.0)
    assert found[1] == 4  # of the slower one


def test_a_client_without_a_whole_cycle_gives_no_rate():
    assert whole_cycles([], 3) is None
    assert whole_cycles([(0, 1.0), (0, 2.0), (0, 3.0)], 3) is None
    assert whole_cycles([(0, 1.0), (0, 2.0), (0, 3.0), (0, 4.0), (1, 1.0)], 3) is None


def test_a_window_of_whole_cycles_does_not_count_what_the_fixed_time_cut_off():
    ends = repeating([0.2, 0.2, 2.6], 0, 100.0, 108.0)
    seconds = [
        Second(at_s, 1.0, len(inside), 0, Histogram({1.0: len(inside)}), tuple(inside))
        for at_s in (100.0 + i for i in range(1, 9))
        for inside in [[end for end in ends if at_s - 1.0 <= end[1] < at_s]]
    ]
    points = timeline(seconds, [], 100.0)
    counted, whole = window(seconds, points), window(seconds, points, cycle=3)
    assert (counted.tps, counted.cycles) == (1.0, None)
    assert whole.cycles == 2
    assert whole.tps == pytest.approx(1.0)
    longer = window(seconds[:7], points[:7], cycle=3)
    assert window(seconds[:7], points[:7]).tps == pytest.approx(8 / 7)
    assert longer.tps == pytest.approx(1.0)


def test_an_empty_window_has_no_percentiles():
    empty = window([], [])
    assert (empty.seconds, empty.tps, empty.p95_ms) == (0.0, 0.0, None)


def test_machine_time_counts_busy_and_stolen_apart():
    found = machine_seconds("cpu  100 20 30 999 5 1 2 40 0 0\ncpu0 1 2 3\n")
    assert found is not None
    assert found[0] / found[1] == pytest.approx(153 / 40)
    assert machine_seconds("nonsense") is None
