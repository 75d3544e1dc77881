"""Streaming histograms, grids and conditioning, against published and hand-computed values."""

from __future__ import annotations

import json
import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.batch.utility import remaining
from perphd.forecast.grid import (
    GridDistribution,
    added,
    mean_of,
    multiplied,
    nothing,
    of_histogram,
    of_law,
    of_outcomes,
    probability_over,
    quantile_of,
    sum_of,
)
from perphd.forecast.histogram import (
    Histogram,
    Scale,
    as_record,
    from_record,
    insert,
    mean_given,
    merge,
    of_values,
    quantile,
    quantiles,
    share_to,
    shares_to,
    sum_to,
    survival_given,
)
from perphd.forecast.running import Overrun, moved_end, remaining_work

PUBLISHED = (23.0, 19.0, 10.0, 16.0, 36.0, 2.0, 9.0)
LATER = (32.0, 30.0, 45.0)
VALUES = st.lists(st.floats(0, 1e9), min_size=1, max_size=200)


def _pairs(histogram: Histogram) -> list[tuple[float, float]]:
    return list(zip((round(c, 2) for c in histogram.centres), histogram.weights, strict=True))


def test_the_published_example_of_five_bins() -> None:
    first = of_values(PUBLISHED, bins=5)
    assert _pairs(first) == [(2, 1), (9.5, 2), (17.5, 2), (23, 1), (36, 1)]
    merged = merge(first, of_values(LATER, bins=5))
    assert _pairs(merged) == [(2, 1), (9.5, 2), (19.33, 3), (32.67, 3), (45, 1)]
    assert sum_to(merged, 15.0) == pytest.approx(3.2751, abs=5e-5)
    assert quantiles(merged, np.array([1 / 3, 2 / 3])) == pytest.approx([15.223, 28.963], abs=5e-4)


def test_values_that_nearly_coincide_divide_nothing_beyond_a_number() -> None:
    histogram = of_values([0.0, 2.225e-309, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], bins=10)
    with np.errstate(all="raise"):
        assert share_to(histogram, -1.0) == 0.0
        assert share_to(histogram, 6.5) > share_to(histogram, 0.1) > 0.0


@given(VALUES, st.sampled_from(Scale))
def test_number_sum_and_extremes_are_exact_and_the_share_rises(values: list[float], scale: Scale) -> None:
    histogram = of_values(values, scale, bins=10)
    assert (histogram.count, histogram.least, histogram.most) == (len(values), min(values), max(values))
    assert histogram.total == pytest.approx(sum(values))
    assert sum(histogram.weights) == pytest.approx(len(values))
    assert len(histogram.centres) <= 10
    points = np.linspace(min(values) - 1, max(values) + 1, 101)
    shares = shares_to(histogram, points)
    assert np.all(np.diff(shares) >= -1e-9)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert from_record(json.loads(json.dumps(as_record(histogram)))) == histogram


@given(VALUES, st.floats(0, 1))
def test_a_quantile_is_the_inverse_of_the_share(values: list[float], share: float) -> None:
    histogram = of_values(values, bins=10)
    found = quantile(histogram, share)
    assert histogram.least <= found <= histogram.most
    step = 1e-9 * (
        1 + abs(found)
    )  # at a value that carries a mass of its own, the share jumps over ``share``
    assert share_to(histogram, found - step) - 1e-6 <= share <= share_to(histogram, found + step) + 1e-6


@given(VALUES, VALUES, VALUES)
def test_merging_conserves_all_that_is_exact_in_any_order(
    a: list[float], b: list[float], c: list[float]
) -> None:
    one, two, three = (of_values(values, bins=20) for values in (a, b, c))
    left, right = merge(merge(one, two), three), merge(three, merge(two, one))
    assert (left.count, left.least, left.most) == (right.count, right.least, right.most)
    assert sum(left.weights) == pytest.approx(len(a) + len(b) + len(c))
    assert merge(one, Histogram(bins=20)) == one


def test_merged_histograms_are_as_near_to_the_truth_as_one_that_saw_all() -> None:
    values = np.random.default_rng(7).lognormal(3, 1, 6000)
    parts = [of_values(part, Scale.LOGARITHMIC) for part in np.split(values, 6)]
    merged = parts[0]
    for part in parts[1:]:
        merged = merge(merged, part)
    exact = np.arange(1, 6001) / 6000
    assert np.max(np.abs(shares_to(merged, np.sort(values)) - exact)) < 0.01


@pytest.mark.parametrize("name", ["lognormal", "pareto"])
def test_heavy_tails_want_the_logarithmic_scale(name: str) -> None:
    random = np.random.default_rng(3)
    values = random.lognormal(0, 2, 20_000) if name == "lognormal" else random.pareto(1.5, 20_000) + 1
    truth = float(np.median(values))
    logarithmic = quantile(of_values(values, Scale.LOGARITHMIC), 0.5)
    linear = quantile(of_values(values), 0.5)
    assert abs(logarithmic / truth - 1) < 0.02
    assert abs(linear / truth - 1) > 5 * abs(logarithmic / truth - 1)


def test_what_a_histogram_refuses() -> None:
    with pytest.raises(ValueError, match="cannot take nan"):
        insert(Histogram(), math.nan)
    with pytest.raises(ValueError, match="logarithmic histogram cannot take -1"):
        insert(Histogram(Scale.LOGARITHMIC), -1.0)
    with pytest.raises(ValueError, match="empty histogram"):
        quantile(Histogram(), 0.5)
    with pytest.raises(ValueError, match="cannot be merged"):
        merge(Histogram(), Histogram(Scale.LOGARITHMIC))
    with pytest.raises(ValueError, match="ascending"):
        from_record(as_record(of_values([1, 2])) | {"centres": [2.0, 1.0]})


def test_zero_is_kept_on_the_logarithmic_scale() -> None:
    histogram = of_values([0.0, 0.0, 8.0, 8.0], Scale.LOGARITHMIC)
    assert histogram.least == 0.0
    assert share_to(histogram, 0.0) == pytest.approx(0.25, abs=0.01)
    assert histogram.mean == 4.0


# --- conditioning -----------------------------------------------------------------------------------------------


def test_a_uniform_job_halfway_through() -> None:
    uniform = of_values(np.linspace(0, 10, 5001))
    assert survival_given(uniform, 7.5, 5.0) == pytest.approx(0.5, abs=0.01)
    assert survival_given(uniform, 3.0, 5.0) == 1.0
    assert mean_given(uniform, 5.0) == pytest.approx(7.5, abs=0.05)
    assert remaining(uniform, 5.0, Overrun()).survival(2.5) == pytest.approx(0.5, abs=0.01)


def test_a_job_beyond_all_history_is_moved_by_1_2_4_8_cycles() -> None:
    history = of_values([4.0, 6.0, 10.0])
    overrun, moves = Overrun(), []
    for second in range(26):
        later = moved_end(overrun, history.most, float(second), cycle_s=1.0)
        if later is not overrun:
            moves.append(later.end_s - second)
            assert remaining(history, second, later).survival(moves[-1] - 0.5) == 1.0
            assert remaining(history, second, later).survival(moves[-1]) == 0.0
        overrun = later
    assert moves == [1, 2, 4, 8, 16]


@given(VALUES, st.floats(0, 2e9))
def test_remaining_work_is_never_negative_and_all_done_if_beyond_history(
    values: list[float], done: float
) -> None:
    left = remaining_work(of_values(values), done)
    assert left >= 0
    if done >= max(values):
        assert left == done


# --- grids ------------------------------------------------------------------------------------------------------

TASK = {1.0: 0.5, 2.0: 0.3, 4.0: 0.2}
FIRST, SECOND = {3.0: 0.5, 5.0: 0.5}, {2.0: 0.9, 6.0: 0.1}


def _support(usage: GridDistribution) -> dict[float, float]:
    return {float(k * usage.cell): round(float(p), 9) for k, p in enumerate(usage.shares) if p > 1e-12}


def test_the_published_example_of_a_machine_that_may_run_over() -> None:
    wide = [of_outcomes(outcomes, 20.0, 20) for outcomes in (FIRST, SECOND)]
    assert _support(added(*wide)) == {5.0: 0.45, 7.0: 0.45, 9.0: 0.05, 11.0: 0.05}
    running = sum_of((of_outcomes(outcomes, 10.0, 10) for outcomes in (FIRST, SECOND)), 10.0, 10)
    task = of_outcomes(TASK, 10.0, 10)
    over = [probability_over(running, task, tasks) for tasks in (1, 2, 3)]
    assert over == pytest.approx([0.165, 0.415, 0.55])
    independent = [added(running, sum_of([task] * n, 10.0, 10)).over for n in (2, 3)]
    assert independent == pytest.approx([0.3745, 0.7255])  # two tasks of one job are not two jobs


OUTCOMES = st.dictionaries(st.floats(0, 12), st.floats(0.01, 1), min_size=1, max_size=6)


@given(st.lists(OUTCOMES, min_size=1, max_size=3), st.integers(1, 40))
def test_a_sum_is_never_under_estimated(usages: list[dict[float, float]], cells: int) -> None:
    summed = sum_of((of_outcomes(usage, 10.0, cells) for usage in usages), 10.0, cells)
    assert float(np.sum(summed.shares)) + summed.over == pytest.approx(1.0)
    exact: dict[float, float] = {}
    for draws in product(*(usage.items() for usage in usages)):
        value = sum(v for v, _ in draws)
        exact[value] = exact.get(value, 0.0) + math.prod(
            p / sum(usage.values()) for (_, p), usage in zip(draws, usages, strict=True)
        )
    for bound in (2.5, 5.0, 10.0):
        point = math.floor(bound / summed.cell + 1e-9) * summed.cell
        kept = float(np.sum(summed.shares[: round(point / summed.cell) + 1]))
        assert 1 - kept >= sum(p for v, p in exact.items() if v > bound + 1e-6) - 1e-9


@given(OUTCOMES, OUTCOMES)
def test_adding_commutes_and_nothing_adds_nothing(a: dict[float, float], b: dict[float, float]) -> None:
    one, two = of_outcomes(a, 10.0, 50), of_outcomes(b, 10.0, 50)
    assert added(one, two).shares == pytest.approx(added(two, one).shares, abs=1e-12)
    assert added(one, nothing(10.0, 50)).shares == pytest.approx(one.shares, abs=1e-12)
    assert added(one, two).over == pytest.approx(added(two, one).over, abs=1e-12)


@settings(max_examples=50)
@given(OUTCOMES, st.integers(1, 5))
def test_tasks_of_one_job_take_n_times_one_draw(usage: dict[float, float], times: int) -> None:
    one = of_outcomes(usage, 10.0, 30)
    many = multiplied(one, times)
    assert float(np.sum(many.shares)) + many.over == pytest.approx(1.0)
    cells = {k: p for k, p in enumerate(one.shares) if p > 0 and k * times <= 30}
    assert {k: p for k, p in enumerate(many.shares) if p > 0} == {k * times: p for k, p in cells.items()}


def test_a_finer_grid_costs_less_safety() -> None:
    values = np.random.default_rng(1).gamma(1.5625, 1.92, 4000)  # mean 3, coefficient of variation .8
    history = of_values(values, Scale.LOGARITHMIC)
    sums = np.random.default_rng(2).choice(values, (100_000, 20)).sum(axis=1)
    truth = float(np.mean(sums > 80))
    over = {
        cells: sum_of([of_histogram(history, 80.0, cells)] * 20, 80.0, cells).over for cells in (256, 1024)
    }
    assert truth < over[1024] < over[256]
    assert over[1024] < truth * 1.25 + 0.003


def test_a_quantile_of_a_grid() -> None:
    usage = of_outcomes({1.0: 0.5, 4.0: 0.3, 30.0: 0.2}, 10.0, 10)
    assert [quantile_of(usage, share) for share in (0.5, 0.51, 0.8, 0.9)] == [1.0, 4.0, 4.0, math.inf]


def test_a_divided_law_keeps_the_mean_of_sums_on_a_coarse_grid() -> None:
    """30 jobs of 1.8 are 54 on a host of 80, where a cell is 2.5: rounded up they would be 75."""
    constant = of_values([1.8] * 10)
    law = of_law(lambda values: shares_to(constant, values), 80.0, 32)
    assert np.sum(law.shares) + law.over == pytest.approx(1.0)
    assert 1.8 <= mean_of(law) < 1.8 + 2.5 / 4
    total = sum_of([law] * 30, 80.0, 32)
    rounded = sum_of([of_histogram(constant, 80.0, 32)] * 30, 80.0, 32)
    assert 54.0 <= mean_of(total) < 58.0 < 74.0 < mean_of(rounded)
    beyond = of_law(lambda values: shares_to(of_values([90.0] * 3), values), 80.0, 32)
    assert beyond.over == 1.0
    spread = of_values(np.linspace(1.0, 70.0, 500))
    fine = of_law(lambda values: shares_to(spread, values), 80.0, 32)
    assert mean_of(fine) == pytest.approx(spread.mean, abs=2.5 / 4)


@given(
    st.lists(st.tuples(st.floats(0, 12), st.floats(0.01, 1)), min_size=1, max_size=20),
    st.floats(0, 12),
    st.integers(1, 3),
)
def test_a_certain_usage_shifts_another_one_exactly_as_convolution_does(other, certain, tasks):
    first, second = (
        of_outcomes(dict(other), 10.0, 64),
        multiplied(of_outcomes({certain: 0.3}, 10.0, 64), tasks),
    )
    found = added(first, second)
    shares = np.maximum(np.convolve(first.shares, second.shares)[:65], 0.0)
    assert found.shares.tolist() == shares.tolist()
    assert found.over == max(0.0, 1.0 - float(np.sum(shares)))
