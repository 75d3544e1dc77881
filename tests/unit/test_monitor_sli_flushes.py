"""Rates between flushes: within their own uncertainty, nothing lost or told twice, never awaited for long."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.reading import Awaited, available
from perphd.monitor.rates import FIRST_READING, WENT_BACKWARDS
from perphd.monitor.sli.flushes import COARSEST, FINEST, LONGEST, FlushLook, FlushWindow
from perphd.monitor.sli.resolution import Origin, Resolution
from tests.unit.monitor_reports import LASTS_S, Server

POSTGRESQL = Resolution(1.0, Origin.STATED)


@dataclass(frozen=True)
class Told:
    """One reading: the events of its window, and how uncertain it says they are."""

    began_s: float
    ended_s: float
    at_s: float
    events: float
    sigma: float


def watched(counter: Callable[[float], float], pace_s: float, until_s: float, seed: int = 1) -> list[Told]:
    """All readings at this pace, with looks in between as often as the window asks for; answers take a while."""
    rnd = random.Random(seed)
    window, told = FlushWindow(POSTGRESQL), list[Told]()
    at_s, due_s = 1.5 + rnd.random(), 2.0
    while at_s < until_s:
        read_s = at_s + rnd.uniform(0.0, 0.002)
        window.look(FlushLook(at_s, read_s + rnd.uniform(0.0, 0.002), counter(read_s)))
        if at_s >= due_s:
            due_s += pace_s
            began_s = window.ended_s
            counted = window.take()
            if available(counted.rate) and available(counted.events) and available(counted.window_s):
                assert window.ended_s == pytest.approx(began_s + counted.window_s)
                events = counted.rate * counted.window_s
                sigma = events / math.sqrt(counted.events) if counted.events else 1.0
                told.append(Told(began_s, window.ended_s, at_s, events, sigma))
        pause_s = window.pause_s
        assert FINEST <= pause_s <= COARSEST
        at_s = min(at_s + pause_s * rnd.uniform(1.0, 1.1), max(at_s + 0.005, due_s))
    return told


@pytest.mark.parametrize("pace_s", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("backends", [1, 2, 4, 8, 40])
@pytest.mark.parametrize(("rate", "closed"), [(30.0, False), (400.0, False), (400.0, True), (4000.0, True)])
def test_readings_are_within_four_of_their_own_sigma(
    rate: float, closed: bool, backends: int, together: bool, pace_s: float
) -> None:
    server = Server(rate, backends, 1.0, closed, together=together)
    told = watched(server.counter, pace_s, LASTS_S)
    assert len(told) > 60.0 / max(2.0, pace_s)
    for one in told:
        done = server.answered(one.ended_s) - server.answered(one.began_s)
        assert abs(one.events - done) <= 4.0 * one.sigma, (one, done)


@given(
    rate=st.floats(5.0, 3000.0),
    backends=st.integers(1, 12),
    together=st.booleans(),
    pace_s=st.floats(0.1, 3.0),
    seed=st.integers(0, 1000),
)
def test_windows_follow_each_other_and_come_soon(
    rate: float, backends: int, together: bool, pace_s: float, seed: int
) -> None:
    server = Server(rate, backends, 1.0, seed=seed, together=together)
    told = watched(server.counter, pace_s, 25.0, seed)
    assert told
    for before, after in pairwise(told):
        assert after.began_s == before.ended_s
        assert after.at_s - before.at_s <= LONGEST + 2.0 * pace_s, "never blind for longer"
    last = told[-1]
    total = sum(one.events for one in told)
    assert total <= server.counter(last.at_s + 0.01) - server.counter(told[0].began_s - 0.01) + 1e-6
    assert total >= server.counter(last.ended_s - 0.26) - server.counter(told[0].began_s + 1.3) - 1e-6


def test_a_flush_that_fails_and_is_made_up_for_is_no_dip() -> None:
    """PostgreSQL skips a backend whose counts are locked: they come with its next flush."""

    def counter(at_s: float) -> float:
        flushes = math.floor(at_s / 1.01)
        return 400.0 * (flushes - 1 if flushes == 20 else flushes)

    told = watched(counter, 1.0, 40.0)
    assert all(300.0 < one.events / (one.ended_s - one.began_s) < 500.0 for one in told)
    assert max(one.ended_s - one.began_s for one in told) > 1.9


def test_a_server_that_stops_is_read_as_idle_and_one_that_doubles_as_twice_as_fast() -> None:
    def stops(at_s: float) -> float:
        return 400.0 * min(20, math.floor(at_s / 1.01))

    def doubles(at_s: float) -> float:
        flushes = math.floor(at_s / 1.01)
        return 400.0 * (flushes + max(0, flushes - 20))

    idle = [one.events for one in watched(stops, 1.0, 40.0) if one.began_s > 21.5]
    assert len(idle) > 5
    assert max(idle) == 0.0
    fast = [
        one.events / (one.ended_s - one.began_s) for one in watched(doubles, 1.0, 40.0) if one.began_s > 21.5
    ]
    assert min(fast) > 650.0


def test_a_counter_that_goes_backwards_begins_anew() -> None:
    window = FlushWindow(POSTGRESQL)
    assert window.take().rate is FIRST_READING
    totals = [(0.25 * n, 400.0 * (n // 4)) for n in range(20)] + [
        (5.0 + 0.25 * n, 400.0 * (n // 4)) for n in range(20)
    ]
    rates = []
    for at_s, total in totals:
        window.look(FlushLook(at_s, at_s + 0.001, total))
        rates.append(window.take().rate)
    assert rates[0] is FIRST_READING
    assert rates[20] is WENT_BACKWARDS
    assert isinstance(rates[21], Awaited)
    assert any(available(rate) for rate in rates[22:])
    assert all(rate <= 800.0 for rate in rates if available(rate))


def test_a_source_that_was_not_looked_at_tells_how_little_it_knows() -> None:
    """A look every 5 s: what is between cannot be told apart."""
    window = FlushWindow(POSTGRESQL)
    found = []
    for n in range(12):
        window.look(FlushLook(5.0 * n, 5.0 * n + 0.001, 400.0 * 5 * n))
        found.append(window.take())
    counts = [one for one in found if available(one.rate) and available(one.events)]
    assert len(counts) > 5
    for one in counts[1:]:
        assert available(one.events)
        assert one.rate == pytest.approx(400.0, rel=0.3)
        assert one.events < 100.0
