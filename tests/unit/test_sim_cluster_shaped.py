"""The shaper in the loop of a simulated cluster: laws that hold for every workload, and the published ordering."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.forecast.gaussian_process import GaussianProcess
from perphd.forecast.series import Forecaster, LastValue, Smoothing
from perphd.sim.cluster.shaped import Limit, ShapedApplication, ShapedCluster, ShapedRun
from perphd.sizing.shaper import Resource, ShaperMode, ShaperSettings

HOST_GIB = 16.0


def _applications(seed: int, count: int = 40) -> list[ShapedApplication]:
    """Applications that reserve much more than two hosts have, and use a part of it that walks."""
    rng = np.random.default_rng(seed)
    found = []
    for n in range(count):
        steps = rng.normal(0.0, 0.05, 120) * (rng.random(120) < 0.3)
        use = np.clip(rng.uniform(0.1, 0.5) + np.cumsum(steps), 0.02, 1.0)
        core, elastic = int(rng.integers(1, 4)), int(rng.integers(0, 5))
        found.append(
            ShapedApplication(
                f"a{n}",
                30.0 * n,
                core,
                elastic,
                float(rng.uniform(1200, 5400)),
                float(rng.uniform(1, 4)),
                use,
            )
        )
    return found


def _run(
    seed: int,
    mode: ShaperMode,
    forecaster: Forecaster | None = None,
    limit: Limit = Limit.HARD,
    k1: float = 0.05,
) -> ShapedRun:
    chosen = ShaperSettings(k1=k1, k2={Resource.MEMORY: 3.0})
    return ShapedCluster(_applications(seed), 2, HOST_GIB, mode, forecaster, chosen, limit).run()


@pytest.mark.parametrize("seed", range(3))
def test_a_perfect_forecast_and_the_pessimistic_plan_crash_nobody(seed: int) -> None:
    reserved, pessimistic = _run(seed, ShaperMode.OFF), _run(seed, ShaperMode.PESSIMISTIC)
    optimistic = _run(seed, ShaperMode.OPTIMISTIC)
    assert reserved.component_crashes == pessimistic.component_crashes == 0
    assert optimistic.component_crashes > 0
    assert pessimistic.slack_ratio < reserved.slack_ratio
    assert np.mean(pessimistic.turnaround_s) < np.mean(optimistic.turnaround_s)
    assert np.mean(pessimistic.turnaround_s) < np.mean(reserved.turnaround_s)


@pytest.mark.parametrize("seed", range(3))
def test_a_buffer_of_the_whole_reservation_changes_nothing(seed: int) -> None:
    assert _run(seed, ShaperMode.PESSIMISTIC, Smoothing(), k1=1.0) == _run(seed, ShaperMode.OFF)


@pytest.mark.parametrize("seed", range(3))
def test_observing_changes_nothing(seed: int) -> None:
    assert _run(seed, ShaperMode.OBSERVE, Smoothing()) == _run(seed, ShaperMode.OFF)


@pytest.mark.parametrize("seed", range(3))
def test_soft_limits_crash_fewer_than_hard_ones(seed: int) -> None:
    hard, soft = (_run(seed, ShaperMode.PESSIMISTIC, LastValue(), limit) for limit in Limit)
    assert soft.component_crashes < hard.component_crashes


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([ShaperMode.OPTIMISTIC, ShaperMode.PESSIMISTIC]),
    st.sampled_from([None, LastValue(history=5)]),
    st.sampled_from(Limit),
)
def test_every_application_ends_and_all_memory_is_free_again(
    seed: int, mode: ShaperMode, forecaster: Forecaster | None, limit: Limit
) -> None:
    applications = _applications(seed, 12)
    cluster = ShapedCluster(applications, 2, HOST_GIB, mode, forecaster, limit=limit)
    found = cluster.run()
    assert len(found.turnaround_s) == len(applications)
    assert cluster.free_gib == pytest.approx([HOST_GIB] * 2)
    assert 0.0 <= found.slack_ratio < 1.0
    if limit is Limit.HARD:
        assert found.allocated_ratio <= 1.0 + 1e-9
    assert min(found.turnaround_s) >= 0.99 * min(each.run_s for each in applications)


def test_series_are_forecast_together_as_each_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = GaussianProcess(10, 10, refit_every=10)
    together = _run(0, ShaperMode.PESSIMISTIC, model)
    monkeypatch.setattr(
        "perphd.sim.cluster.shaped.predictions",
        lambda model, fitted, values: [
            model.predict(each, own) for each, own in zip(fitted, values, strict=True)
        ],
    )
    assert _run(0, ShaperMode.PESSIMISTIC, model) == together


def test_an_application_whose_core_never_fits_is_refused() -> None:
    wide = ShapedApplication("wide", 0.0, 9, 0, 600.0, 4.0, np.array([0.5]))
    with pytest.raises(ValueError, match="9 core components, but only 8 fit"):
        ShapedCluster([wide], 2, HOST_GIB, ShaperMode.OFF, None)
