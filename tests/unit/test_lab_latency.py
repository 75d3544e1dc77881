"""Histograms of the lab: reading, arithmetic, percentiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.lab.latency import Histogram, histogram_line, merge

counts = st.dictionaries(st.floats(0.001, 1e5, allow_nan=False), st.integers(1, 1000), max_size=20)


def test_percentiles_are_the_value_that_so_many_did_not_exceed():
    histogram = Histogram({1.0: 50, 2.0: 45, 3.0: 4, 9.0: 1})
    assert histogram.percentile(50) == 1.0
    assert histogram.percentile(95) == 2.0
    assert histogram.percentile(99) == 3.0
    assert histogram.percentile(99.5) == 9.0
    assert histogram.percentile(100) == 9.0


def test_one_transaction_is_every_percentile():
    assert [Histogram({7.5: 1}).percentile(p) for p in (1, 50, 99, 100)] == [7.5] * 4


def test_no_transactions_have_no_percentile():
    assert Histogram().percentile(95) is None


@given(counts, counts)
def test_difference_of_cumulative_histograms_is_what_came_between(first, second):
    earlier, between = Histogram(first), Histogram(second)
    later = earlier + between
    assert (later - earlier).counts == between.counts
    assert later.total == earlier.total + between.total == merge([earlier, between]).total


def test_a_histogram_that_shrank_is_refused():
    with pytest.raises(ValueError, match=r"2\.0 ms shrank"):
        Histogram({2.0: 3}) - Histogram({2.0: 4})


@given(counts.filter(bool), st.floats(0.1, 100))
def test_percentile_is_a_value_that_occurred_and_covers_its_share(found, percent):
    histogram = Histogram(found)
    value = histogram.percentile(percent)
    assert value in found
    covered = sum(count for latency, count in found.items() if latency <= value)
    assert covered * 100 >= percent * histogram.total * (1 - 1e-9)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("       0.432 |                                         4\n", (0.432, 4)),
        ("       1.551 |**************************************** 321", (1.551, 321)),
        ("    1129.236 |*                                        2", (1129.236, 2)),
        ("       value  ------------- distribution ------------- count", None),
        ("    transactions:                        4527   (2261.73 per sec.)", None),
        ("", None),
    ],
)
def test_lines_of_sysbench_histogram(line, expected):
    assert histogram_line(line) == expected


@given(st.text())
def test_arbitrary_text_is_no_histogram_line_or_two_numbers(text):
    found = histogram_line(text)
    assert found is None or found[1] >= 0
