"""Availability and fit against published values, back-off on a contended device, and event mode."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.domain.reading import NOT_MEASURED
from perphd.qos.availability import (
    AvailableInterval,
    DemandStage,
    ResourceFit,
    availability,
    distance,
    fit,
    over_ratio,
)
from perphd.qos.bands import QosBand
from perphd.qos.contention import (
    LEAST_SHARE,
    MAX_HELD_ROUNDS,
    MAX_ROUNDS,
    PAUSES,
    ROUND_S,
    THETA,
    TIGHTER,
    Contender,
    DeviceContention,
    DeviceSample,
    RestrictionRung,
    observed,
)
from perphd.qos.event_mode import CopperEvent, ended_now, event_of, event_record, scaled, share_at
from perphd.qos.ledger import Amounts

RUNNING = (
    (DemandStage(0, 40, 100), DemandStage(40, 100, 50)),
    (DemandStage(0, 60, 120), DemandStage(60, 80, 20)),
)
A = (DemandStage(0, 50, 80), DemandStage(50, 100, 240))
B = (DemandStage(0, 50, 240), DemandStage(50, 100, 20))


# --- availability --------------------------------------------------------------------------------------------


def test_breakpoints_of_all_running_jobs_are_merged() -> None:
    assert availability(300, RUNNING) == (
        AvailableInterval(0, 40, 80),
        AvailableInterval(40, 60, 130),
        AvailableInterval(60, 80, 230),
        AvailableInterval(80, 100, 250),
        AvailableInterval(100, math.inf, 300),
    )
    assert availability(300, ()) == (AvailableInterval(0, math.inf, 300),)


def test_neighbours_of_equal_availability_are_one_interval() -> None:
    relay = ((DemandStage(0, 10, 5),), (DemandStage(10, 20, 5),))
    assert availability(8, relay) == (AvailableInterval(0, 20, 3), AvailableInterval(20, math.inf, 8))


def test_the_published_candidates_fit_as_published() -> None:
    line = availability(300, RUNNING)
    first, second = fit(A, line), fit(B, line)
    assert (first.unused, first.over, first.overall) == pytest.approx((600, 650, 635))
    assert (second.unused, second.over, second.overall) == pytest.approx((4950, 7500, 6735))


def test_intervals_that_straddle_a_stage_boundary_count() -> None:
    line = availability(300, RUNNING)
    contained = [
        interval
        for interval in line
        if interval.end_s <= 50 or 50 <= interval.start_s < interval.end_s <= 100
    ]
    literal = fit(A, contained)
    assert (literal.unused, literal.over) == pytest.approx((100, 100))  # the printed sums lose 40 to 60 s


def test_availability_beyond_the_capacity_is_negative_and_counts_in_full() -> None:
    line = availability(100, ((DemandStage(0, 10, 130),),))
    assert line[0].available == -30
    assert fit((DemandStage(0, 10, 20),), line) == ResourceFit(0.0, 500.0)


def test_the_norm_weighs_devices_by_capacity_and_length() -> None:
    fits = {"disk": ResourceFit(0.0, 3000.0), "net": ResourceFit(1000.0, 400.0)}
    capacities = {"disk": 300.0, "net": 100.0}
    assert distance(fits, capacities, 10) == pytest.approx(math.hypot(0.7, 0.58))
    assert over_ratio(fits, capacities, 10) == pytest.approx(1.0 + 0.4)
    assert (distance(fits, capacities, 0), over_ratio(fits, capacities, 0)) == (0.0, 0.0)


STAGES = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 50), st.integers(0, 400)).map(
        lambda each: DemandStage(each[0], each[0] + each[1], each[2])
    ),
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STAGES, max_size=4), STAGES)
def test_the_fit_equals_a_sum_over_every_second(
    running: list[list[DemandStage]], candidate: list[DemandStage]
) -> None:
    line = availability(300, running)
    assert all(a.end_s == b.start_s for a, b in pairwise(line))
    unused = over = 0.0
    for k, stage in enumerate(candidate):
        for t in range(int(stage.start_s), int(stage.end_s)):
            free = 300 - sum(s.peak for job in running for s in job if s.start_s <= t < s.end_s)
            weight = 1 - k / len(candidate)
            unused += max(0.0, free - stage.peak) * weight
            over += max(0.0, stage.peak - free) * weight
    found = fit(candidate, line)
    assert (found.unused, found.over) == pytest.approx((unused, over))


# --- contention back-off -------------------------------------------------------------------------------------

CAPACITY = 300e6
KAPPA = 0.7


class _Disk:
    """A device that loses bandwidth to over-allocation: capacity / (1 + kappa (x - 1)) for x = demand / capacity > 1.

    Restrictions have force from ``works_from`` on: a hint that nobody follows has none.
    """

    def __init__(
        self, contenders: list[Contender], works_from: RestrictionRung = RestrictionRung.DEVICE_CEILING
    ) -> None:
        self.contenders = contenders
        self._rungs = list(RestrictionRung)[list(RestrictionRung).index(works_from) :]
        self.state = DeviceContention(peak_bytes_s=CAPACITY)
        self.at_s = 0.0
        self.reasons: list[str] = []

    def demands(self) -> dict[str, float]:
        demands = {each.name: each.demand_bytes_s for each in self.contenders}
        for each in self.state.restrictions:
            if each.rung in self._rungs:
                demands[each.name] = min(demands[each.name], each.limit_bytes_s)
        return demands

    def effective(self) -> float:
        wanted = sum(self.demands().values())
        over = wanted / CAPACITY
        return wanted if over <= 1 else CAPACITY / (1 + KAPPA * (over - 1))

    def victim_ratio(self, name: str) -> float:
        """The part of its demand that ``name`` gets."""
        return self.effective() / sum(self.demands().values())

    def second(self) -> None:
        moved = self.effective()
        busy = min(1.0, sum(self.demands().values()) / CAPACITY)
        step = observed(self.state, DeviceSample(self.at_s, busy, moved), self.contenders)
        self.state = step.state
        self.reasons += [step.reason] if step.reason else []
        self.at_s += 1.0


LRA = Contender("db", QosBand.SILVER, 120e6)
HOG = Contender("hog", QosBand.COPPER, 600e6)
SMALL = Contender("small", QosBand.COPPER, 20e6)


def test_the_culprit_is_restricted_and_the_victim_restored_within_three_rounds() -> None:
    disk = _Disk([LRA, HOG, SMALL])
    assert disk.victim_ratio("db") < 0.3
    disk.second()
    assert not disk.state.restrictions  # one sample is not enough
    disk.second()
    assert [(each.name, each.rung) for each in disk.state.restrictions] == [
        ("hog", RestrictionRung.DEVICE_CEILING)
    ]
    assert disk.state.restrictions[0].limit_bytes_s == pytest.approx(CAPACITY - 140e6)
    for _ in range(int(MAX_ROUNDS * ROUND_S)):
        disk.second()
        if not disk.state.restrictions:
            break
        assert disk.victim_ratio("db") >= 0.9
    assert disk.reasons[-1] == "the device recovered in round 1"


def test_each_round_takes_the_next_rung() -> None:
    disk = _Disk(
        [LRA, Contender("hog", QosBand.COPPER, 600e6, takes_hints=True)], RestrictionRung.CPU_CEILING
    )
    rungs: list[RestrictionRung] = []
    for _ in range(16):
        disk.second()
        rungs += [each.rung for each in disk.state.restrictions if not rungs or each.rung is not rungs[-1]]
    assert rungs == [RestrictionRung.HINT, RestrictionRung.DEVICE_CEILING, RestrictionRung.CPU_CEILING]
    assert disk.victim_ratio("db") >= 0.9


def test_rounds_in_vain_end_and_the_pause_doubles() -> None:
    """Small random work: the device is busy and slow whatever is restricted."""
    state, starts = DeviceContention(peak_bytes_s=CAPACITY), []
    for second in range(400):
        before = state.round
        state = observed(state, DeviceSample(second, 1.0, 20e6), [LRA, SMALL]).state
        if state.round == 1 and before == 0:
            starts.append(second)
    one_attempt = MAX_ROUNDS * ROUND_S
    assert starts[1] - starts[0] == one_attempt + PAUSES.first_s
    assert starts[2] - starts[1] == one_attempt + 2 * PAUSES.first_s


def test_contention_that_returns_is_held_back_longer() -> None:
    disk = _Disk([LRA, HOG])
    lengths, length = [], 0
    for _ in range(400):
        disk.second()
        if disk.state.restrictions:
            length += 1
        elif length:
            lengths.append(length)
            length = 0
    longest = int(MAX_HELD_ROUNDS * ROUND_S)
    assert lengths == [5, 10, 20, 40] + [longest] * 5


def test_gold_silver_and_system_are_never_restricted() -> None:
    others = [Contender(band, band, 900e6) for band in (QosBand.GOLD, QosBand.SILVER, QosBand.SYSTEM)]
    disk = _Disk(others)
    for _ in range(30):
        disk.second()
        assert disk.state.restrictions == ()
    assert set(disk.reasons) == {"no copper uses the device"}
    mixed = _Disk([*others, SMALL])
    for _ in range(30):
        mixed.second()
        assert {each.name for each in mixed.state.restrictions} <= {"small"}
        assert all(each.limit_ratio >= LEAST_SHARE * TIGHTER**2 for each in mixed.state.restrictions)


@pytest.mark.parametrize(
    ("busy", "moved"), [(1.0, THETA * CAPACITY), (0.9, 20e6), (NOT_MEASURED, 20e6), (1.0, NOT_MEASURED)]
)
def test_no_contention_without_both_signs(busy: float, moved: float) -> None:
    state = DeviceContention(peak_bytes_s=CAPACITY)
    for second in range(10):
        state = observed(state, DeviceSample(second, busy, moved), [LRA, HOG]).state
    assert state.restrictions == ()


def test_a_round_ends_in_time_without_readings() -> None:
    disk = _Disk([LRA, HOG])
    disk.second()
    disk.second()
    assert disk.state.restrictions
    state = disk.state
    for second in range(100):
        state = observed(
            state, DeviceSample(disk.at_s + second, NOT_MEASURED, NOT_MEASURED), disk.contenders
        ).state
    assert state.restrictions == ()


def test_the_peak_is_learned_in_uncontended_operation_alone() -> None:
    state = DeviceContention()
    for moved in (100e6, 250e6, 200e6):
        state = observed(state, DeviceSample(0, 0.5, moved), []).state
    assert state.peak_bytes_s == 250e6
    state = observed(state, DeviceSample(1, 1.0, 50e6), []).state
    assert state.peak_bytes_s == 250e6  # contended: says nothing of the device's best
    state = observed(state, DeviceSample(2, 1.0, 200e6), []).state
    assert state.peak_bytes_s == pytest.approx(249.5e6)


# --- event mode ----------------------------------------------------------------------------------------------

EVENT = CopperEvent(1000.0, 3600.0, 0.1, 300.0, "sale")


def test_copper_is_cut_at_once_and_comes_back_in_a_ramp() -> None:
    assert [share_at(EVENT, t) for t in (999, 1000, 4599, 4600, 4750, 4900)] == pytest.approx(
        [1.0, 0.1, 0.1, 0.1, 0.55, 1.0]
    )
    assert share_at(None, 1000.0) == 1.0
    assert scaled(Amounts(8.0, 1000), EVENT, 2000.0) == Amounts(0.8, 100)


def test_an_event_outlives_a_restart_and_ends_by_itself() -> None:
    stored = json.dumps(event_record(EVENT))
    assert event_of(json.loads(stored), 2000.0) == EVENT
    assert event_of(json.loads(stored), EVENT.over_s) is None


def test_an_event_that_is_ended_by_hand_ramps_from_then() -> None:
    early = ended_now(EVENT, 1600.0)
    assert early is not None
    assert (early.ends_s, early.over_s) == (1600.0, 1900.0)
    assert share_at(early, 1750.0) == pytest.approx(0.55)
    assert ended_now(EVENT, 900.0) is None
    assert ended_now(EVENT, 4700.0) == EVENT


@pytest.mark.parametrize(
    "values",
    [(0.0, 0.0, 0.5), (0.0, 10.0, 1.5), (0.0, 10.0, -0.1), (0.0, 10.0, 0.5, -1.0), (math.nan, 1.0, 0.5)],
)
def test_an_impossible_event_is_refused(values: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueError, match=r"event needs|copper_share"):
        CopperEvent(*values)
