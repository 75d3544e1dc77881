from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.allocation import IDLE, Allocation, CpuGrant
from perphd.domain.policy import ModelContext
from perphd.domain.reading import Unavailable
from perphd.domain.sample import Quality, Sample
from perphd.predictor.answer import Answer
from perphd.predictor.model import OUTLIER, LraModel, Observation
from perphd.predictor.persist import MAX_CELLS
from perphd.predictor.physics import CpuGrants, expect
from perphd.predictor.reference import Reference
from perphd.predictor.residual import Residual

WEIGHTS = st.sampled_from([IDLE, 1, 6, 25, 100, 400, 10000])
NO_LOAD = Unavailable("no load signal")


def allocation(total: int, batch: int, weight: object = 100, exclusive: bool = False) -> Allocation:
    return Allocation(CpuGrant(total, batch, weight, exclusive))  # type: ignore[arg-type]


@st.composite
def grants(draw: st.DrawFn) -> Allocation:
    total = draw(st.integers(1, 64))
    batch = draw(st.integers(1, total))
    exclusive = draw(st.booleans()) and batch < total
    return allocation(total, batch, draw(WEIGHTS), exclusive)


@given(grants(), st.floats(0, 100), st.floats(0, 100), st.floats(0, 64))
def test_prior_is_sane_everywhere(a: Allocation, lra: float, batch: float, others: float) -> None:
    found = expect(CpuGrants.of([a]), ModelContext(lra, batch, a.cpu.total_cores, others))
    assert 0 < found.work[0] <= 1
    assert 1 <= found.delay[0] < math.inf
    assert 0 <= found.batch_cores[0] <= min(batch, a.cpu.batch_cores) + 1e-9


@given(st.integers(2, 32), st.floats(0.1, 32), st.floats(0, 32))
def test_less_weight_for_batch_never_hurts_the_lra(total: int, lra: float, batch: float) -> None:
    weights = [400, 100, 50, 25, 12, 6, IDLE]
    found = expect(
        CpuGrants.of([allocation(total, total, w) for w in weights]), ModelContext(lra, batch, total)
    )
    assert np.all(np.diff(found.work) >= -1e-9)
    assert np.all(np.diff(found.delay) <= 1e-9)


@given(st.integers(2, 32), st.floats(0.1, 32), st.floats(0, 32), WEIGHTS)
def test_fewer_cores_for_batch_never_cost_the_lra_work(
    total: int, lra: float, batch: float, weight: object
) -> None:
    steps = [allocation(total, cores, weight) for cores in range(total, 0, -1)]
    found = expect(CpuGrants.of(steps), ModelContext(lra, batch, total))
    assert np.all(np.diff(found.work) >= -1e-9)


def test_idle_host_is_undisturbed() -> None:
    found = expect(CpuGrants.of([allocation(4, 4)]), ModelContext(2.0, 0.0, 4.0))
    assert found.work[0] == 1.0
    assert found.delay[0] == 1.0


def test_reference_follows_a_new_regime_but_not_an_outlier() -> None:
    reference = Reference()
    for _ in range(30):
        reference.update("work", 1000.0, NO_LOAD)
    reference.update("work", 10.0, NO_LOAD)
    band = reference.get("work", NO_LOAD)
    assert band is not None
    assert 950 < band.value < 1010
    for _ in range(12):
        reference.update("work", 2000.0, NO_LOAD)
    band = reference.get("work", NO_LOAD)
    assert band is not None
    assert 1800 < band.value < 2100


def test_reference_is_kept_by_load() -> None:
    reference = Reference()
    for _ in range(10):
        reference.update("work", 100.0, 100.0)
        reference.update("work", 400.0, 400.0)
    low, high = reference.get("work", 100.0), reference.get("work", 400.0)
    assert low is not None
    assert high is not None
    assert abs(low.value - 100) < 1
    assert abs(high.value - 400) < 1
    assert reference.get("delay", 100.0) is None


def test_correction_is_learned_where_it_was_seen_and_doubted_elsewhere() -> None:
    residual = Residual(np.array([0.3]), prior_sd=0.2, noise_sd=0.05)
    here, there = np.array([0.0]), np.array([2.0])
    for t in range(20):
        residual.update(("here",), here, -0.3, float(t))
    mean, sd, support = residual.predict(np.stack([here, there]), 20.0)
    assert abs(mean[0] + 0.3) < 0.02
    assert sd[0] < 0.05
    assert support[0] > 10
    assert abs(mean[1]) < 0.01
    assert abs(sd[1] - 0.2) < 0.01
    assert support[1] < 0.1


def test_correction_follows_drift_within_a_few_samples() -> None:
    residual = Residual(np.array([0.3]), prior_sd=0.2, noise_sd=0.03)
    x = np.array([0.0])
    for t in range(60):
        residual.update(("cell",), x, 0.0, float(t))
    for t in range(60, 72):
        residual.update(("cell",), x, -0.4, float(t))
    mean, _, _ = residual.predict(x[None, :], 72.0)
    assert mean[0] < -0.3


def test_cells_are_bounded_and_the_weakest_goes() -> None:
    residual = Residual(np.array([1.0]), prior_sd=0.2, noise_sd=0.05)
    for t in range(10):
        residual.update(("strong",), np.array([0.0]), -0.2, float(t))
    for n in range(3 * MAX_CELLS):
        residual.update((n,), np.array([10.0 + 5 * n]), 0.1, 10.0 + n)
    mean, _, _ = residual.predict(np.array([[0.0]]), 200.0)
    assert mean[0] < -0.15


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(-5, 5)), max_size=60))
def test_correction_never_breaks(samples: list[tuple[int, float]]) -> None:
    residual = Residual(np.array([0.5]), prior_sd=0.2, noise_sd=0.05)
    for t, (cell, value) in enumerate(samples):
        residual.update((cell,), np.array([float(cell)]), value, float(t))
    mean, sd, _ = residual.predict(np.linspace(-1, 7, 9)[:, None], 100.0)
    assert np.all(np.isfinite(mean))
    assert np.all(sd > 0)


def observation(at_s: float, work: float, undisturbed: bool, **more: object) -> Observation:
    readings = {"cpu_usage_cores": 1.0, "run_delay_cores": 0.1, "work_rate_per_s": work} | more
    quality = readings.pop("quality", ())
    sample = Sample("db", at_s, 1.0, quality=quality, **readings)  # type: ignore[arg-type]
    batch = 0.0 if undisturbed else 2.0
    return Observation(sample, allocation(2, 2), ModelContext(1.0, batch, 2.0), undisturbed)


def test_learns_the_ratio_of_an_allocation() -> None:
    model = LraModel()
    for t in range(20):
        model.observe(observation(float(t), 1000.0, True))
    for t in range(20, 40):
        model.observe(observation(float(t), 400.0, False, run_delay_cores=2.0))
    (band,) = model.predict_work([allocation(2, 2)], ModelContext(1.0, 2.0, 2.0))
    assert abs(band.value - 0.4) < 0.05
    assert band.support > 5
    (delay,) = model.predict_delay([allocation(2, 2)], ModelContext(1.0, 2.0, 2.0))
    assert abs(delay.value - (2.1 / 400) / (0.2 / 1000)) / delay.value < 0.2


def test_a_fall_of_load_is_not_booked_to_the_allocation() -> None:
    model = LraModel()
    for t in range(20):
        model.observe(observation(float(t), 1000.0, True))

    for t in range(20, 30):
        model.observe(observation(float(t), 300.0, False, cpu_usage_cores=0.3, run_delay_cores=0.0))

    assert model.predict_work([allocation(2, 2)], ModelContext(1.0, 2.0, 2.0))[0].value > 0.9


def test_unfit_samples_are_counted_and_left_out() -> None:
    model = LraModel()
    for flag in (Quality.FIRST, Quality.SETTLING, Quality.GONE, Quality.SLI_MISSING):
        model.observe(observation(1.0, 1000.0, True, quality=(flag,)))
    model.observe(observation(2.0, 0.0, True))
    assert model.reference("work:sli", NO_LOAD) is None
    assert sum(model.skipped.values()) == 5


def test_throttled_intervals_are_left_out_and_counted_unless_that_is_its_usual_state() -> None:
    model = LraModel()
    for t in range(10):
        model.observe(observation(float(t), 1000.0, True, cpu_throttled_pct=0.0))
    for t in range(10, 14):
        model.observe(observation(float(t), 300.0, True, cpu_throttled_pct=60.0))
    assert model.skipped == {"throttled": 4}
    band = model.reference("work:sli", NO_LOAD)
    assert band is not None
    assert band.value == pytest.approx(1000.0, rel=0.01)
    always = LraModel()
    for t in range(10):
        always.observe(observation(float(t), 300.0, True, cpu_throttled_pct=60.0))
    assert always.samples == 10


def test_outliers_are_counted() -> None:
    model = LraModel()
    for t in range(20):
        model.observe(observation(float(t), 1000.0, True))
    for t in range(20, 60):
        model.observe(observation(float(t), 400.0 if t != 50 else 40.0, False))
    assert model.skipped == {OUTLIER: 1}


def test_reference_is_inferred_from_strongly_protected_samples() -> None:
    model = LraModel()
    protected = allocation(8, 1, IDLE)
    for t in range(12):
        sample = Sample("db", float(t), 1.0, cpu_usage_cores=1.0, run_delay_cores=0.1, work_rate_per_s=900.0)
        model.observe(Observation(sample, protected, ModelContext(1.0, 8.0, 8.0), undisturbed=False))
    band = model.reference("work:sli", NO_LOAD)
    assert band is not None
    assert 850 < band.value < 1000


def test_no_reference_is_inferred_while_batch_may_have_the_cache() -> None:
    """Strong protection of CPU says nothing of what cache and bandwidth cost: a squeezed one passes for undisturbed."""
    model = LraModel()
    protected = allocation(8, 1, IDLE)
    for t in range(12):
        sample = Sample("db", float(t), 1.0, cpu_usage_cores=1.0, run_delay_cores=0.1, work_rate_per_s=900.0)
        context = ModelContext(1.0, 8.0, 8.0)
        model.observe(Observation(sample, protected, context, undisturbed=False, shielded=False))
    assert model.reference("work:sli", NO_LOAD) is None
    assert model.skipped == {"no reference yet": 12}


def stood_in(model: LraModel, at_s: float, rate_per_s: float, cache_knobs: int | None) -> None:
    """Ten samples under strong protection of its CPUs."""
    for t in range(10):
        sample = Sample(
            "db", at_s + t, 1.0, cpu_usage_cores=1.0, run_delay_cores=0.1, work_rate_per_s=rate_per_s
        )
        context = ModelContext(1.0, 8.0, 8.0)
        held = allocation(8, 1, IDLE)
        model.observe(Observation(sample, held, context, undisturbed=False, cache_knobs=cache_knobs))


@pytest.mark.parametrize("kept", [False, True])
def test_what_stood_in_while_batch_had_the_cache_is_forgotten_once_it_can_be_held(kept: bool) -> None:
    model = LraModel()
    stood_in(model, 0.0, 500.0, cache_knobs=0)
    if kept:
        model = LraModel.from_state(model.to_state())
    stood_in(model, 10.0, 500.0, cache_knobs=None)  # no batch to ask it of
    assert (band := model.reference("work:sli", NO_LOAD)) is not None
    assert band.value == pytest.approx(500.0, rel=0.15)
    stood_in(model, 20.0, 900.0, cache_knobs=2)
    assert (band := model.reference("work:sli", NO_LOAD)) is not None
    assert band.value == pytest.approx(900.0, rel=0.15)
    known = model.reference("work:sli", NO_LOAD)
    stood_in(model, 30.0, 500.0, cache_knobs=1)  # somebody insists on other masks: what is known stays
    assert model.reference("work:sli", NO_LOAD) == known
    stood_in(model, 40.0, 900.0, cache_knobs=2)
    assert (band := model.reference("work:sli", NO_LOAD)) is not None
    assert band.value == pytest.approx(900.0, rel=0.15)


def test_a_reference_of_undisturbed_samples_outlives_resctrl_that_comes_late() -> None:
    model = LraModel()
    stood_in(model, 0.0, 900.0, cache_knobs=0)
    for t in range(10, 30):
        model.observe(observation(float(t), 1000.0, True))
    before = model.reference("work:sli", NO_LOAD)
    stood_in(model, 30.0, 900.0, cache_knobs=2)
    assert model.reference("work:sli", NO_LOAD) == before


def test_what_was_measured_outweighs_what_is_only_expected_of_its_neighbours() -> None:
    grants = [Allocation(CpuGrant(8, 5, weight)) for weight in (IDLE, 6, 100)]
    columns = CpuGrants.of(grants)

    def pooled(values: list[float], sds: list[float], heavier_is_more: bool = False) -> list[float]:
        answer = Answer(np.array(values), np.array(sds), np.ones(3))
        return [band.value for band in answer.monotone(grants, columns, heavier_is_more).bands()]

    work = pooled([0.89, 1.0, 1.0], [0.01, 0.2, 0.2])
    assert work[0] == pytest.approx(0.89, abs=0.005)
    assert work[0] >= work[1] >= work[2]
    batch = pooled([0.5, 0.3, 0.6], [0.2, 0.01, 0.2], heavier_is_more=True)
    assert batch[0] <= batch[1] <= batch[2]
    assert batch[1] == pytest.approx(0.3, abs=0.005)
    assert pooled([0.9, 0.8, 0.7], [0.1, 0.1, 0.1]) == [0.9, 0.8, 0.7]  # what contradicts nothing stays


@given(
    st.lists(st.tuples(st.floats(0.01, 2), st.floats(0.001, 0.5)), min_size=24, max_size=24), st.booleans()
)
def test_less_weight_is_never_worse_whatever_was_learned(
    said: list[tuple[float, float]], heavier_is_more: bool
) -> None:
    asked = [
        Allocation(CpuGrant(8, cores, weight), llc_ways=ways)
        for ways in (0, 3)
        for cores in (2, 5, 8)
        for weight in (IDLE, 6, 25, 100)
    ]
    answer = Answer(np.array([v for v, _ in said]), np.array([s for _, s in said]), np.ones(24))
    value = answer.monotone(asked, CpuGrants.of(asked), heavier_is_more).value.reshape(6, 4)
    steps = np.diff(value, axis=1) if heavier_is_more else -np.diff(value, axis=1)
    assert steps.min() >= 0.0
