"""The pure core of trials: design, running, guard, statistics, analysis."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from perphd.domain.reading import Unavailable
from perphd.domain.wire import from_json, to_json
from perphd.domain.workload import Mode
from perphd.trial.analysis import analyse, pairs_of
from perphd.trial.design import MIN_PAIRS, DesignRefused, Metric, Plan, Request, Signal, schedule
from perphd.trial.guard import LraReading
from perphd.trial.record import MAX_NOTES, Block, BlockMean, End, TrialRecord
from perphd.trial.running import Readings, Running
from perphd.trial.statistics import holm, of_pairs, of_two, t_probability, t_quantile

METRICS = (
    Metric(Signal.DELAY, "db", "latency_p95_ms"),
    Metric(Signal.WORK, "db", "sli"),
    Metric(Signal.BATCH, "", "cpu"),
)
BEGAN_S = 1_000_000.0


def plan(pairs: int = 20, block_s: float = 100.0, washout_s: float = 20.0, seed: int = 5) -> Plan:
    return Plan(
        "t", BEGAN_S, block_s, washout_s, seed, schedule(pairs, seed), METRICS, (), 25.0, "perph", "0", "root"
    )


def reading(delay: float = 10.0, work: float = 100.0, batch: float = 4.0, seconds: float = 10.0) -> Readings:
    return Readings(seconds, seconds, {"db": LraReading(delay, work, delay * work)}, batch)


def run_through(running: Running, reading_of, until_block: int = 10_000) -> None:
    """Ten-second samples until the trial ends; ``reading_of(mode, number)`` makes them."""
    now_s = BEGAN_S
    while running.mode is not None and running.number < until_block:
        mode, number = running.mode, running.number
        now_s += 10.0
        running.take(now_s - 0.01, reading_of(mode, number))
        running.look(now_s)


def record_of(p: Plan, values) -> TrialRecord:
    """A record in which ``values(number, mode)`` gives the three means."""
    blocks = []
    for number in range(p.blocks + 1):
        means = values(number, p.mode(number))
        kept = tuple(BlockMean(m.name, v, 80.0) for m, v in zip(p.metrics, means, strict=True))
        blocks.append(Block(number, p.mode(number), kept))
    return TrialRecord(p, tuple(blocks))


# -- design -------------------------------------------------------------------------------------------------


@given(st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_every_pair_has_one_block_of_each_mode_and_the_seed_decides(pairs: int, seed: int) -> None:
    modes = schedule(pairs, seed)
    assert len(modes) == 2 * pairs
    assert all(set(modes[i : i + 2]) == set(Mode) for i in range(0, len(modes), 2))
    assert modes == schedule(pairs, seed)


def test_the_coin_is_fair() -> None:
    first = [schedule(1, seed)[0] for seed in range(2000)]
    share = first.count(Mode.ENFORCE) / len(first)
    assert abs(share - 0.5) < 4 * 0.5 / math.sqrt(len(first))


def test_too_short_a_time_is_refused_with_what_is_needed() -> None:
    with pytest.raises(DesignRefused, match="6 are needed") as refused:
        Request(1.0, block_s=600.0)
    needed = float(refused.value.allowed.split()[2])
    assert Request(needed + 0.01, block_s=600.0).pairs == MIN_PAIRS


def test_the_default_washout_is_a_quarter_of_short_blocks_and_two_minutes_of_long_ones() -> None:
    assert Request(24.0, block_s=200.0).washout == 50.0
    assert Request(24.0, block_s=3600.0).washout == 120.0


# -- running ------------------------------------------------------------------------------------------------


def test_readings_of_the_washout_are_not_used() -> None:
    running = Running(TrialRecord(plan()), BEGAN_S)
    now_s = BEGAN_S
    for _ in range(10):
        now_s += 10.0
        inside = now_s - BEGAN_S <= 20.0 or now_s - 10.0 < BEGAN_S + 20.0
        running.take(now_s, reading(delay=1e6 if inside else 10.0))
        running.look(now_s)
    block = running.record.blocks[0]
    assert {mean.metric: mean.mean for mean in block.means} == {
        "db.delay": 10.0, "db.work": 100.0, "batch.work": 4.0,
    }  # fmt: skip
    assert all(mean.covered_s == 80.0 for mean in block.means)


def test_a_reading_that_reaches_back_into_the_washout_is_not_used() -> None:
    running = Running(TrialRecord(plan()), BEGAN_S)
    for second in range(10, 101, 10):
        late = replace(reading(), reach_s=35.0)
        running.take(BEGAN_S + second, late)
    running.look(BEGAN_S + 100.0)
    assert [mean.covered_s for mean in running.record.blocks[0].means] == [50.0] * 3


def test_a_metric_without_enough_readings_is_not_counted() -> None:
    running = Running(TrialRecord(plan()), BEGAN_S)
    for second in range(10, 101, 10):
        missing = Unavailable("x")
        some = reading() if second > 70 else replace(reading(), batch=missing)
        running.take(BEGAN_S + second, some)
    running.look(BEGAN_S + 100.0)
    assert [mean.metric for mean in running.record.blocks[0].means] == ["db.delay", "db.work"]


def test_a_block_without_readings_is_void() -> None:
    running = Running(TrialRecord(plan()), BEGAN_S)
    running.look(BEGAN_S + 100.0)
    assert running.record.blocks[0].void == "too few readings"


@given(st.lists(st.floats(-500.0, 3000.0), min_size=1, max_size=40))
def test_time_never_goes_back_whatever_the_wall_clock_does(steps: list[float]) -> None:
    running = Running(TrialRecord(plan(pairs=6)), BEGAN_S)
    now_s, before = BEGAN_S, 0
    for step in steps:
        now_s += step
        running.take(now_s, reading())
        running.look(now_s)
        assert running.number >= before
        before = running.number
        numbers = [block.number for block in running.record.blocks]
        assert numbers == list(range(len(numbers)))
    assert len(running.record.blocks) <= running.plan.blocks + 1


def test_notes_are_bounded_and_an_interruption_is_told_once() -> None:
    running = Running(TrialRecord(plan()), BEGAN_S)
    assert running.interrupt(BEGAN_S, "paused")
    assert not running.interrupt(BEGAN_S, "paused")
    for _ in range(2 * MAX_NOTES):
        running.note(BEGAN_S, "again")
    assert len(running.record.notes) == MAX_NOTES


@pytest.mark.parametrize("why", ["the configuration was read again", ""])
def test_a_block_in_which_the_trial_was_stopped_is_counted_as_not_used(why: str) -> None:
    running = Running(TrialRecord(plan()), BEGAN_S)
    run_through(running, lambda mode, number: reading(), until_block=3)
    if why:
        running.interrupt(BEGAN_S + 301.0, why)
    running.end(BEGAN_S + 310.0, End.STOPPED, "enough", "root")
    analysis = analyse(running.record)
    assert sum(count for _, count in analysis.used) == 2
    assert sum(count for _, count in analysis.void) == 1
    assert running.record.blocks[-1].void == (why or "the trial ended in it")


def test_nothing_is_taken_after_the_end() -> None:
    running = Running(TrialRecord(plan()), BEGAN_S)
    running.end(BEGAN_S + 5.0, End.STOPPED, "enough", "root")
    before = running.record
    running.take(BEGAN_S + 10.0, reading())
    assert not running.look(BEGAN_S + 1e6)
    assert not running.interrupt(BEGAN_S, "late")
    running.end(BEGAN_S + 9.0, End.HARM, "late")
    assert running.record == before
    assert running.mode is None


def test_a_record_survives_the_disk() -> None:
    running = Running(TrialRecord(plan()), BEGAN_S)
    run_through(running, lambda mode, number: reading())
    assert from_json(to_json(running.record), TrialRecord) == running.record


# -- guard --------------------------------------------------------------------------------------------------


def noisy(rng: random.Random, sigma: float = 0.05):
    return lambda mode, number: reading(10.0 * math.exp(rng.gauss(0.0, sigma)))


@pytest.mark.parametrize("factor", [2.0, 4.0, 20.0])
@pytest.mark.parametrize("seed", range(6))
def test_a_higher_delay_ends_the_trial_within_two_enforced_blocks(factor: float, seed: int) -> None:
    rng = random.Random(seed)
    running = Running(TrialRecord(plan(seed=seed)), BEGAN_S)
    run_through(
        running,
        lambda mode, number: reading(
            10.0 * math.exp(rng.gauss(0.0, 0.05)) * (factor if mode is Mode.ENFORCE else 1.0)
        ),
    )
    record = running.record
    assert record.ending is not None
    assert record.ending.how is End.HARM
    assert "delay" in record.ending.text
    assert sum(block.mode is Mode.ENFORCE for block in record.blocks) <= 2


def test_a_stall_is_harm_although_there_is_no_delay_to_measure() -> None:
    running = Running(TrialRecord(plan()), BEGAN_S)
    stalled = Readings(10.0, 10.0, {"db": LraReading(Unavailable("x"), 0.0, 900.0)}, 4.0)
    run_through(running, lambda mode, number: stalled if mode is Mode.ENFORCE else reading())
    assert running.record.ending is not None
    assert running.record.ending.how is End.HARM
    assert "answered nothing" in running.record.ending.text


def test_no_load_is_no_harm() -> None:
    running = Running(TrialRecord(plan()), BEGAN_S)
    quiet = Readings(10.0, 10.0, {"db": LraReading(Unavailable("x"), 0.0, 0.0)}, 4.0)
    run_through(running, lambda mode, number: quiet if mode is Mode.ENFORCE else reading())
    assert running.record.ending is not None
    assert running.record.ending.how is End.COMPLETE


def test_less_load_is_no_harm() -> None:
    running = Running(TrialRecord(plan()), BEGAN_S)
    run_through(
        running, lambda mode, number: reading(work=20.0 if mode is Mode.ENFORCE else 100.0, delay=10.0)
    )
    assert running.record.ending is not None
    assert running.record.ending.how is End.COMPLETE


def test_less_work_that_waits_is_harm() -> None:
    running = Running(TrialRecord(plan()), BEGAN_S)

    def closed(mode: Mode, number: int) -> Readings:  # the same requests in flight, each slower
        slow = 2.5 if mode is Mode.ENFORCE else 1.0
        lra = LraReading(Unavailable("x"), 100.0 / slow, 1000.0)
        return Readings(10.0, 10.0, {"db": lra}, 4.0)

    run_through(running, closed)
    assert running.record.ending is not None
    assert running.record.ending.how is End.HARM
    assert "work" in running.record.ending.text


@pytest.mark.parametrize("seed", range(5))
def test_noise_alone_ends_nothing(seed: int) -> None:
    running = Running(TrialRecord(plan(pairs=70, seed=seed)), BEGAN_S)
    run_through(running, noisy(random.Random(seed), sigma=0.3))
    assert running.record.ending is not None
    assert running.record.ending.how is End.COMPLETE


def test_void_blocks_are_no_reference() -> None:
    running = Running(TrialRecord(plan()), BEGAN_S)
    running.interrupt(BEGAN_S, "paused")
    run_through(running, lambda mode, number: reading(1.0 if number == 0 else 10.0), until_block=6)
    assert running.record.ending is None


# -- statistics ---------------------------------------------------------------------------------------------


@given(st.floats(1.2, 400.0), st.floats(0.001, 0.999))
def test_student_is_scipys(freedom: float, probability: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(
        stats.t.ppf(probability, freedom), rel=1e-6, abs=1e-7
    )
    assert t_probability(1.3, freedom) == pytest.approx(stats.t.cdf(1.3, freedom), abs=1e-9)


def test_welch_is_scipys() -> None:
    rng = random.Random(1)
    one, two = [rng.gauss(0, 1) for _ in range(12)], [rng.gauss(0.5, 3) for _ in range(30)]
    found = of_two(one, two)
    assert found is not None
    assert found.p == pytest.approx(stats.ttest_ind(one, two, equal_var=False).pvalue, rel=1e-6)


def test_successive_differences_do_not_count_a_drift_as_noise() -> None:
    rng = random.Random(3)
    drifting = [math.sin(i / 12.0) + rng.gauss(0, 0.1) for i in range(70)]
    found = of_pairs(drifting)
    assert found is not None
    assert found.error == pytest.approx(0.1 / math.sqrt(70), rel=0.35)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=10))
def test_holm_rejects_no_more_than_single_tests_and_no_fewer_than_bonferroni(ps: list[float]) -> None:
    for p, rejected in zip(ps, holm(ps, 0.05), strict=True):
        assert not rejected or p <= 0.05
        assert rejected or p > 0.05 / len(ps)


@given(st.integers(0, 1))
def test_too_few_say_nothing(count: int) -> None:
    assert of_pairs([1.0] * (count + 1)) is None
    assert of_two([1.0] * count, [1.0] * 9) is None


# -- analysis -----------------------------------------------------------------------------------------------


def test_a_known_effect_is_found_exactly_without_noise() -> None:
    p = plan()
    record = record_of(p, lambda n, mode: (5.0, 110.0, 3.0) if mode is Mode.ENFORCE else (10.0, 100.0, 4.0))
    delay, work, batch = analyse(record).effects
    for effect, pct in ((delay, -50.0), (work, 10.0), (batch, -25.0)):
        assert effect.change is not None
        assert effect.change.pct == pytest.approx(pct)
        assert effect.claimed
        assert effect.pairs == 20
    assert delay.is_better
    assert work.is_better
    assert not batch.is_better


def test_a_day_of_load_is_no_effect() -> None:
    rng = random.Random(2)
    p = plan(pairs=70)

    def by_day(number: int, mode: Mode) -> tuple[float, float, float]:
        level = math.exp(math.sin(2 * math.pi * number / 140))
        return tuple(level * v * math.exp(rng.gauss(0, 0.02)) for v in (10.0, 100.0, 4.0))  # type: ignore[return-value]

    analysis = analyse(record_of(p, by_day))
    assert not any(effect.claimed for effect in analysis.effects)
    for effect in analysis.effects:
        assert effect.change is not None
        assert effect.change.high_pct - effect.change.low_pct < 10.0


def test_carry_over_is_found() -> None:
    rng = random.Random(4)
    p = plan(pairs=60)
    state = 0.0

    def lagging(number: int, mode: Mode) -> tuple[float, float, float]:
        nonlocal state
        wanted = float(mode is Mode.ENFORCE)
        seen, state = 0.7 * wanted + 0.3 * state, wanted
        return (10.0 * math.exp(-seen + rng.gauss(0, 0.05)), 100.0, 4.0 + rng.gauss(0, 0.01))

    delay = analyse(record_of(p, lagging)).effects[0]
    assert delay.carried_over
    assert delay.carry_over is not None
    assert math.log1p(delay.carry_over.pct / 100.0) == pytest.approx(-0.3, abs=0.1)


def test_too_few_pairs_and_no_batch_are_said_not_guessed() -> None:
    p = plan()
    record = record_of(p, lambda n, mode: (10.0, 100.0, 0.0))
    batch = analyse(record).effects[2]
    assert batch.change is None
    assert "0 in all observed" in batch.missing
    short = replace(record, blocks=record.blocks[: 2 * MIN_PAIRS - 1])
    for effect in analyse(short).effects:
        assert effect.change is None
        assert "are needed" in effect.missing


def test_void_blocks_and_their_partners_are_left_out() -> None:
    p = plan()
    record = record_of(p, lambda n, mode: (10.0, 100.0, 4.0))
    blocks = [replace(block, void="paused") if block.number in (3, 8) else block for block in record.blocks]
    record = replace(record, blocks=tuple(blocks))
    assert len(pairs_of(record, "db.delay")) == 18
    used = dict(analyse(record).used)
    void = dict(analyse(record).void)
    assert sum(used.values()) == 38
    assert sum(void.values()) == 2
