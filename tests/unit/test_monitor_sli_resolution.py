"""A source's resolution: found for reports of every kind, none seen where there is none, no event lost or twice."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.reading import Awaited, Unavailable, available
from perphd.monitor.rates import FIRST_READING, WENT_BACKWARDS
from perphd.monitor.sli.resolution import (
    EXACT,
    LONGEST_S,
    Counted,
    CountWindow,
    Deliveries,
    Origin,
    Resolution,
    ResolutionFinder,
    least_requests,
)
from tests.unit.monitor_reports import LASTS_S, Server

POSTGRESQL = Resolution(1.0, Origin.STATED)
BEGINS_S = 4.0
"""Until every backend has reported once, the counter tells of less than was done."""


def doubt(server: Server) -> float:
    """What reports may leave out of a window of one resolution, or add to it, at four sigma: see the module."""
    return server.rate * server.every_s / math.sqrt(server.backends)


def watched(
    server: Server,
    pace_s: float,
    known: Resolution | None = None,
    cpu: Callable[[float], float] | None = lambda at_s: 0.5 * at_s,
) -> tuple[ResolutionFinder, list[tuple[float, Counted]], list[Resolution]]:
    """The server read at a jittering pace: the finder, all readings, and what the finder thought of it."""
    rnd = random.Random(7)
    finder, window = ResolutionFinder(known), CountWindow()
    readings: list[tuple[float, Counted]] = []
    thought: list[Resolution] = []
    at_s = used_s = 0.0
    while at_s < LASTS_S:
        at_s += pace_s * rnd.uniform(0.99, 1.01)
        resolution = finder.update(server.counter(at_s), at_s)
        readings.append((at_s, window.update(server.counter(at_s), at_s, resolution)))
        thought.append(resolution)
        finder.worked(None if cpu is None else cpu(at_s) - used_s)
        used_s = 0.0 if cpu is None else cpu(at_s)
    return finder, readings, thought


def assert_true(server: Server, readings: list[tuple[float, Counted]]) -> None:
    """Every reading tells what was answered in its window, as far as chance and one round of reports allow."""
    told = 0
    for at_s, counted in readings:
        if not (available(counted.rate) and available(counted.events) and available(counted.window_s)):
            continue
        if at_s - counted.window_s < BEGINS_S:
            continue
        told += 1
        truth = server.answered(at_s) - server.answered(at_s - counted.window_s)
        assert counted.rate == pytest.approx(counted.events / counted.window_s)
        assert abs(counted.events - truth) <= 4.0 * math.sqrt(max(truth, 1)) + doubt(server), (
            at_s,
            counted,
            truth,
        )
    assert told > 20


@pytest.mark.parametrize("pace_s", [0.1, 0.25, 0.5])
@pytest.mark.parametrize("backends", [1, 4, 16])
@pytest.mark.parametrize(("rate", "closed"), [(400.0, False), (4000.0, True)])
def test_reports_once_a_second_are_found_however_they_are_staggered(
    pace_s: float, backends: int, rate: float, closed: bool
) -> None:
    server = Server(rate, backends, 1.0, closed)
    finder, readings, thought = watched(server, pace_s)
    if pace_s < 0.5 or backends == 1:  # of many, about as many report in each half of a second
        assert 0.85 <= finder.resolution.seconds <= 2.1
    assert len({round(one.seconds) for one in thought}) <= 4, "hysteresis"
    assert_true(server, [item for item in readings if item[0] > 30.0])


@pytest.mark.parametrize("pace_s", [0.1, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("backends", [1, 4, 16])
@pytest.mark.parametrize(("rate", "closed"), [(400.0, False), (4000.0, True), (40.0, False)])
def test_where_the_resolution_is_stated_no_reading_is_an_artefact_of_it(
    pace_s: float, backends: int, rate: float, closed: bool
) -> None:
    server = Server(rate, backends, 1.0, closed)
    _, readings, _ = watched(server, pace_s, POSTGRESQL)
    assert_true(server, readings)
    between = [c.rate for _, c in readings if isinstance(c.rate, Awaited)]
    assert all(reading.reason == "the source reports every 1 s" for reading in between)
    assert (len(between) > 0.6 * len(readings)) == (pace_s < 0.5)
    told = sum(c.events for _, c in readings if available(c.events))
    last_s = max(at_s for at_s, c in readings if available(c.rate))
    first_s = next(at_s for at_s, c in readings if available(c.window_s)) - next(
        c.window_s for _, c in readings if available(c.window_s)
    )
    assert told == pytest.approx(server.counter(last_s) - server.counter(first_s)), (
        "none is lost, none is twice"
    )


@pytest.mark.parametrize("every_s", [5.0, 15.0])
def test_an_exporter_that_answers_from_a_cache_is_found_at_the_usual_pace(every_s: float) -> None:
    server = Server(400.0, 1, every_s)
    finder, readings, _ = watched(server, 1.0)
    assert finder.resolution.seconds == pytest.approx(every_s, rel=0.1)
    rates = [counted.rate for _, counted in readings if available(counted.rate)]
    assert min(rates) > 300.0, "never 0"
    assert max(rates) < 500.0, "never several times too much"


@pytest.mark.parametrize("pace_s", [0.1, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("rate", [0.3, 2.0, 30.0, 400.0])
def test_a_counter_that_moves_rarely_because_requests_are_rare_is_not_coarse(
    pace_s: float, rate: float
) -> None:
    server = Server(rate, 4, 0.0)
    finder, readings, thought = watched(server, pace_s)
    assert all(one.seconds == 0.0 for one in thought)
    assert rate < 400.0 or finder.resolution.proven_s == pytest.approx(pace_s, rel=0.05)
    assert_true(server, readings)


def test_a_program_that_idles_between_bursts_is_not_coarse() -> None:
    bursts = Server(2000.0, 8, 0.0)

    def busy_s(at_s: float) -> float:  # it works for half a second out of every three
        return math.floor(at_s / 3.0) * 0.5 + min(at_s % 3.0, 0.5)

    class Bursts(Server):
        def counter(self, at_s: float) -> float:
            return bursts.counter(busy_s(at_s))

    finder, _, thought = watched(Bursts(1.0, 1, 0.0), 0.25, cpu=busy_s)
    assert all(one.seconds == 0.0 for one in thought)
    assert finder.resolution.origin is Origin.FOUND
    unseen, _, _ = watched(Bursts(1.0, 1, 0.0), 0.25, cpu=None)
    assert unseen.resolution.seconds > 0.0, "only its CPU time tells the two apart"


def test_what_is_found_at_a_slow_pace_does_not_hold_at_a_faster_one() -> None:
    finder, window = ResolutionFinder(), CountWindow()
    server = Server(400.0, 4, 1.0)
    for tick in range(1, 41):
        finder.update(server.counter(float(tick)), float(tick))
        window.update(server.counter(float(tick)), float(tick), finder.resolution)
        finder.worked(0.5)
    assert finder.resolution == Resolution(0.0, Origin.FOUND, 1.0)
    for tick in range(1, 101):
        at_s = 40.0 + 0.25 * tick
        finder.update(server.counter(at_s), at_s)
        counted = window.update(server.counter(at_s), at_s, finder.resolution)
        finder.worked(0.125)
        assert not available(counted.rate) or 200.0 < counted.rate < 600.0
    assert finder.resolution.seconds == pytest.approx(1.0, rel=0.3)


def test_a_standstill_is_told_at_once_where_the_counter_is_exact_and_after_a_while_where_it_is_not() -> None:
    for resolution, until_s in ((EXACT, 1.0), (POSTGRESQL, 3.0)):
        window = CountWindow()
        counted = [window.update(100.0 * tick, float(tick), resolution) for tick in range(20)][-1]
        assert counted.rate == pytest.approx(100.0)
        zeros = [window.update(1900.0, 19.0 + tick, resolution).rate for tick in (1.0, 2.0, 3.0)]
        assert next(n for n, rate in enumerate(zeros, 1) if rate == 0.0) == until_s


def test_first_readings_restarts_and_widened_windows() -> None:
    window = CountWindow()
    assert window.update(100.0, 0.0).rate is FIRST_READING
    assert window.update(150.0, 2.0) == Counted(25.0, 50.0, 2.0)
    assert window.update(350.0, 12.0) == Counted(20.0, 200.0, 10.0)
    assert window.update(3.0, 13.0).rate is WENT_BACKWARDS
    assert window.update(13.0, 14.0) == Counted(10.0, 10.0, 1.0)
    assert "no time has passed" in str(window.update(20.0, 14.0).rate)
    assert window.update(23.0, 15.0) == Counted(10.0, 10.0, 1.0), "what grew belongs to the next"


def test_percentiles_wait_for_requests_but_not_for_ever() -> None:
    assert [least_requests(p) for p in ("p50", "p95", "p99")] == pytest.approx([10.0, 100.0, 500.0])
    window = CountWindow()
    window.update(0.0, 0.0)
    few = window.update(37.0, 1.0, least_events=100.0).rate
    assert isinstance(few, Awaited)
    assert few.reason == "waiting for requests: 37 of 100"
    assert window.update(110.0, 3.0, least_events=100.0) == Counted(110.0 / 3.0, 110.0, 3.0)
    late = window.update(120.0, 3.0 + LONGEST_S, least_events=100.0).rate
    assert isinstance(late, Unavailable)
    assert late.reason == "too few requests: 10 of 100 within 30 s"
    assert not isinstance(window.update(121.0, 34.0, least_events=100.0).rate, Awaited), "it was so before"


@given(st.lists(st.tuples(st.floats(0.05, 3.0), st.integers(0, 500)), min_size=3, max_size=80), st.booleans())
def test_windows_follow_each_other_without_a_gap(steps: list[tuple[float, int]], exact: bool) -> None:
    window, total, at_s = CountWindow(), 0.0, 0.0
    window.update(total, at_s, EXACT if exact else POSTGRESQL)
    ends_s: list[float] = []
    spans: list[tuple[float, float]] = []
    totals = {0.0: 0.0}
    for gap_s, events in steps:
        at_s, total = at_s + gap_s, total + events
        totals[at_s] = total
        counted = window.update(total, at_s, EXACT if exact else POSTGRESQL)
        if available(counted.window_s) and available(counted.events):
            spans.append((counted.window_s, counted.events))
            ends_s.append(at_s)
    for (span_s, _), before_s, after_s in zip(spans[1:], ends_s, ends_s[1:], strict=False):
        assert span_s == pytest.approx(after_s - before_s)
    if spans:
        began_s = min(totals, key=lambda t: abs(t - (ends_s[0] - spans[0][0])))
        assert sum(events for _, events in spans) == totals[ends_s[-1]] - totals[began_s]


def test_the_resolution_of_what_is_delivered_is_the_usual_time_between_deliveries() -> None:
    pushes = Deliveries()
    assert pushes.resolution.origin is Origin.ASSUMED
    for at_s in (0.0, 10.0, 20.0, 55.0, 65.0):
        pushes.delivered(at_s)
    assert str(pushes.resolution) == "10 s (found)"
    assert pushes.resolution.awaited().reason == "the source reports every 10 s"


@pytest.mark.parametrize(
    ("resolution", "text"),
    [
        (EXACT, "exact (stated)"),
        (POSTGRESQL, "1 s (stated)"),
        (Resolution(15.0, Origin.CONFIGURED), "15 s (configured)"),
        (Resolution(0.0, Origin.FOUND, 0.25), "0.25 s or finer (found)"),
        (ResolutionFinder().resolution, "not known yet (1 s is assumed)"),
    ],
)
def test_it_is_shown_with_its_origin(resolution: Resolution, text: str) -> None:
    assert str(resolution) == text
