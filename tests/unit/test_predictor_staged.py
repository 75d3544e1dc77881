"""The staged correction: one level that follows, signs that hold whatever was learned, and what is kept of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.domain.allocation import IDLE, Allocation, CpuGrant, Weight
from perphd.domain.policy import ModelContext
from perphd.domain.sample import Sample
from perphd.predictor import LraModel, Observation, features
from perphd.predictor.ogbrt import InvalidModel
from perphd.predictor.persist import ModelFile, Provenance, from_text, ranges_of, to_text
from perphd.predictor.staged import Staged
from perphd.predictor.stages import LEAST, NAMES, stages

CORES = 8
CONTEXT = ModelContext(3.0, 8.0, float(CORES))
WEIGHTS: tuple[Weight, ...] = (IDLE, 6, 12, 25, 50, 100, 400)
SCALES = np.full(features.PLACE, 0.4)


def seen(
    t: float, allocation: Allocation, work: float, context: ModelContext = CONTEXT, **more: Any
) -> Observation:
    quiet = context.batch_demand_cores == 0
    readings: dict[str, Any] = {
        "cpu_usage_cores": context.lra_demand_cores, "work_rate_per_s": work, "load_per_s": 900.0,
    }  # fmt: skip
    return Observation(Sample("db", t, 1.0, **(readings | more)), allocation, context, quiet)


def rested() -> LraModel:
    """One that knows what is undisturbed: 1000 a second."""
    model = LraModel("staged")
    for t in range(12):
        quiet = replace(CONTEXT, batch_demand_cores=0.0)
        model.observe(seen(float(t), Allocation(CpuGrant(CORES, CORES)), 1000.0, quiet, latency_p95_ms=10.0))
    return model


def rising(kind: str, at: Allocation) -> list[Allocation]:
    """Allocations that give the LRA more and more of one thing."""
    if kind == "ways":
        return [replace(at, llc_ways=ways) for ways in range(20)]
    if kind == "bandwidth":
        return [replace(at, mbw_pct=pct) for pct in range(100, 0, -10)]
    if kind == "weight":
        return [replace(at, cpu=replace(at.cpu, exclusive=False, batch_weight=w)) for w in reversed(WEIGHTS)]
    return [replace(at, cpu=CpuGrant(CORES, CORES - own, 100, True)) for own in range(1, CORES)]


ALLOCATIONS = st.builds(
    lambda cores, weight, exclusive, ways, pct: Allocation(
        CpuGrant(CORES, min(cores, CORES - exclusive), weight, exclusive), llc_ways=ways, mbw_pct=pct
    ),
    st.integers(1, CORES),
    st.sampled_from(WEIGHTS),
    st.booleans(),
    st.integers(0, 11),
    st.sampled_from(range(10, 101, 10)),
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(ALLOCATIONS, st.floats(50.0, 2000.0), st.floats(5.0, 200.0)), max_size=30),
    ALLOCATIONS,
    st.floats(0.2, 7.5),
    st.sampled_from([1.0, 2.0]),
)
def test_no_step_goes_against_its_sign_whatever_was_seen(
    samples: list[tuple[Allocation, float, float]], at: Allocation, demand: float, threads: float
) -> None:
    model = rested()
    context = replace(CONTEXT, lra_demand_cores=demand, threads_per_core=threads)
    for t, (allocation, work, delay) in enumerate(samples):
        model.observe(
            seen(20.0 + t, allocation, work, context, latency_p95_ms=delay, io_some_pct=30.0, cpi=1.0)
        )
    for kind in ("ways", "bandwidth", "weight", "own cores"):
        asked = rising(kind, at)
        work_ratios = np.array([band.value for band in model.predict_work(asked, context)])
        delay_ratios = np.array([band.value for band in model.predict_delay(asked, context)])
        assert np.all(np.diff(work_ratios) >= -1e-9), kind
        assert np.all(np.diff(delay_ratios) <= 1e-9 * delay_ratios[:-1]), kind


def test_after_a_change_everything_moves_at_once_also_where_it_was_not_since() -> None:
    model = rested()
    here, there = Allocation(CpuGrant(CORES, 4, 25)), Allocation(CpuGrant(CORES, 6, IDLE), llc_ways=2)
    rng = np.random.default_rng(1)
    t = 20.0
    for _ in range(30):
        for allocation in (here, there):
            model.observe(seen(t, allocation, 900.0 * math.exp(0.02 * rng.standard_normal())))
            t += 1.0
    before = model.predict_work([here, there], CONTEXT)
    for _ in range(6):
        model.observe(seen(t, here, 600.0 * math.exp(0.02 * rng.standard_normal())))
        t += 1.0
    after = model.predict_work([here, there], CONTEXT)
    assert model.alarms == 1
    for was, now in zip(before, after, strict=True):
        assert math.log(was.value / now.value) == pytest.approx(math.log(900 / 600), abs=0.1)


def test_a_single_wild_sample_is_believed_in_part() -> None:
    model = rested()
    here = Allocation(CpuGrant(CORES, 4, 25))
    for t in range(40):
        model.observe(seen(20.0 + t, here, 900.0))
    model.observe(seen(60.0, here, 300.0))
    (band,) = model.predict_work([here], CONTEXT)
    assert band.value > 0.8
    assert model.alarms == 0
    assert model.skipped["outlier, learned in part"] >= 1


def test_what_was_written_goes_on_exactly_as_before() -> None:
    model, rng = rested(), np.random.default_rng(2)
    places = [
        Allocation(CpuGrant(CORES, cores, weight), llc_ways=cores) for cores in (3, 6) for weight in (6, 50)
    ]
    for t in range(80):
        model.observe(
            seen(20.0 + t, places[t // 5 % 4], 800.0 + 30 * rng.standard_normal(), latency_p95_ms=12.0)
        )
    state = model.to_state()
    file = ModelFile(Provenance("db", "/db", "push", "node1", CORES, "1.0", 1e6), ranges_of(state), state)
    again = LraModel.from_state(from_text(to_text(file)).state, 99.0, learner="staged")
    for one in (model, again):
        one.observe(seen(100.0, places[1], 700.0, latency_p95_ms=13.0))
    assert again.predict_work(places, CONTEXT) == model.predict_work(places, CONTEXT)
    assert again.predict_delay(places, CONTEXT) == model.predict_delay(places, CONTEXT)
    assert again.to_state() == model.to_state()


@pytest.mark.parametrize("learner", ["ogbrt", "residual"])
def test_stages_learn_what_a_model_of_another_learner_knew(learner: Any) -> None:
    old = LraModel(learner)
    old._reference = rested()._reference
    here = Allocation(CpuGrant(CORES, 6, 50))
    for t in range(60):
        old.observe(seen(20.0 + t, here, 600.0))
    new = LraModel.from_state(old.to_state(), 80.0, learner="staged")
    (told,), (known,) = new.predict_work([here], CONTEXT), old.predict_work([here], CONTEXT)
    assert told.value == pytest.approx(known.value, rel=0.05)


def test_a_file_that_does_not_fit_itself_is_refused() -> None:
    model = rested()
    model.observe(seen(20.0, Allocation(CpuGrant(CORES, 4)), 700.0))
    state = model.to_state()
    assert state.work.staged is not None
    for change, says in (
        ({"mean": (0.0,)}, "1 means"),
        ({"priors": ()}, "entries do not fit 1 remembered rows"),
        ({"features": ("a",) * len(features.NAMES)}, "columns a, a"),
    ):
        broken = replace(state, work=replace(state.work, staged=replace(state.work.staged, **change)))
        with pytest.raises(InvalidModel, match=says):
            LraModel.from_state(broken, learner="staged")


def test_stages_of_another_version_are_learned_anew_from_what_it_remembers() -> None:
    model = rested()
    here = Allocation(CpuGrant(CORES, 6, 50))
    for t in range(30):
        model.observe(seen(20.0 + t, here, 600.0))
    state = model.to_state()
    assert state.work.staged is not None
    other = replace(state.work.staged, stages=("level", "another"), mean=(0.0, 0.0), spread=(1.0, 0.0, 1.0))
    again = LraModel.from_state(
        replace(state, work=replace(state.work, staged=other)), 60.0, learner="staged"
    )
    (band,) = again.predict_work([here], CONTEXT)
    assert band.value == pytest.approx(0.6, rel=0.05)


def test_what_is_ablated_learns_no_more_than_its_name_says() -> None:
    places = [Allocation(CpuGrant(CORES, cores, 50)) for cores in (8, 4, 2)]
    said = {}
    for learner in ("prior", "level"):
        model = LraModel(learner)
        model._reference = rested()._reference
        before = [band.value for band in model.predict_work(places, CONTEXT)]
        for t in range(40):
            model.observe(seen(20.0 + t, places[0], 400.0))
        said[learner] = np.log([band.value for band in model.predict_work(places, CONTEXT)]) - np.log(before)
    assert np.all(said["prior"] == 0.0)
    assert np.ptp(said["level"]) < 1e-9
    assert said["level"][0] < -0.2


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-3.0, 3.0), min_size=len(NAMES), max_size=len(NAMES)), st.integers(0, 2**32 - 1))
def test_coefficients_keep_their_bounds(wanted: list[float], seed: int) -> None:
    made, rng = Staged(SCALES, 0.2, 0.06, 1), np.random.default_rng(seed)
    x = rng.uniform(features.LOW, features.HIGH, (40, len(features.COLUMNS)))
    prior = -rng.random(40)
    made.learn_rows(x, prior, stages(x, prior) @ np.array(wanted), 0.01)
    assert np.all(made._kept_signs() >= LEAST)


def test_trees_begin_from_what_stages_remember() -> None:
    model = rested()
    here = Allocation(CpuGrant(CORES, 6, 50))
    for t in range(60):
        model.observe(seen(20.0 + t, here, 600.0))
    again = LraModel.from_state(model.to_state(), 80.0, learner="ogbrt")
    channel = again.work_correction.to_state(80.0).boosted
    assert channel is not None
    assert len(channel.labels) > 5
