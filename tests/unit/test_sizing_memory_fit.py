"""Memory fit: the published estimate, the witnesses, and the search on a simulated knee."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.reading import Reading, Unavailable
from perphd.sizing.memory_fit import (
    LEAST_SAMPLES,
    FitEpoch,
    FitPhase,
    MemoryFit,
    OutsideWeight,
    after_epoch,
    estimate_bytes,
    estimate_of_container,
    evidence,
)

PUBLISHED = {2.0: 2, 4.0: 5, 6.0: 2, 8.0: 1}
NOT_THERE = Unavailable("not measured")


def test_the_published_example() -> None:
    assert estimate_bytes(PUBLISHED, 0.9, 0.2, 5, OutsideWeight.DROP) == pytest.approx(2.910, abs=5e-4)
    assert estimate_bytes(PUBLISHED, 0.9, 0.2, 5) == pytest.approx(3.710, abs=5e-4)
    assert estimate_bytes(PUBLISHED, 100.0, 0.0, 5) == pytest.approx(4.400)  # all outside: the plain mean


@given(st.dictionaries(st.floats(1, 1e12), st.integers(1, 1000), min_size=1, max_size=20))
def test_an_estimate_is_at_most_the_mean_and_keeping_is_at_least_dropping(
    footprint: dict[float, int],
) -> None:
    mean = sum(x * n for x, n in footprint.items()) / sum(footprint.values())
    kept, dropped = estimate_of_container(footprint), estimate_of_container(footprint, OutsideWeight.DROP)
    assert dropped <= kept <= mean * (1 + 1e-9)
    assert kept >= 0.68 * mean


def _epoch(
    limit: float | None, need: float, slowed: float = 1.0, jvm: bool = False, spiky: bool = False
) -> FitEpoch:
    """What a workload with a cliff at ``need`` shows under a limit: flat above it, at least four times slower below."""
    wanted = [need * share for share in ((0.2, 0.6, 1.0, 5.0) if spiky else (1.0,))]
    used = [min(want, limit) if limit else want for want in wanted]
    weights = (30, 40, 28, 2) if spiky else (100,)
    starved = limit is not None and limit < need
    footprint: dict[float, int] = {}
    for value, weight in zip(used, weights, strict=True):
        footprint[value] = footprint.get(value, 0) + weight
    performance = 100.0 / (4.0 if starved else 1.03 if limit else 1.0) / slowed
    pressure: Reading = NOT_THERE if jvm else 0.6 if starved else 0.001
    refaults: Reading = NOT_THERE if jvm else 5000.0 if starved else 1.0
    return FitEpoch(
        100,
        footprint,
        max(used),
        performance,
        pressure,
        refaults,
        (0.85 if starved else 0.1) if jvm else NOT_THERE,
    )


def _search(need: float, jvm: bool = False, spiky: bool = False) -> tuple[MemoryFit, list[float]]:
    fit, limits = MemoryFit(), []
    for _ in range(80):
        fit = after_epoch(fit, _epoch(fit.limit_bytes, need, jvm=jvm, spiky=spiky))
        if fit.phase is FitPhase.CONVERGED:
            break
        assert fit.limit_bytes is not None
        limits.append(fit.limit_bytes)
    return fit, limits


@pytest.mark.parametrize("jvm", [False, True])
@pytest.mark.parametrize("spiky", [False, True])
@pytest.mark.parametrize("need", [0.7e9, 2e9, 5e9])
def test_the_search_ends_at_the_knee_with_one_epoch_below_it(need: float, spiky: bool, jvm: bool) -> None:
    fit, limits = _search(need, jvm, spiky)
    assert fit.phase is FitPhase.CONVERGED
    assert fit.recommended_bytes is not None
    assert need <= fit.recommended_bytes <= 1.15 * need
    assert sum(limit < need for limit in limits) == fit.crashes == 1
    assert fit.limit_bytes == fit.recommended_bytes  # the epoch after the bad one is good again


def _searching(need: float = 2e9) -> MemoryFit:
    fit = after_epoch(MemoryFit(), _epoch(None, need, spiky=True))
    assert (fit.phase, fit.limit_bytes) == (FitPhase.SEARCH, 5 * need)
    return fit


def test_a_neighbour_that_slows_moves_nothing() -> None:
    fit = _searching()
    held = after_epoch(fit, _epoch(fit.limit_bytes, 2e9, slowed=6.0, spiky=True))
    assert held == replace(fit, reason=held.reason)
    assert "slow: yes, memory short: no" in held.reason


def test_a_full_limit_and_pressure_without_a_slow_down_are_no_crash() -> None:
    fit = _searching()
    assert fit.limit_bytes is not None
    pressed = replace(_epoch(fit.limit_bytes, 2e9, spiky=True), full_pressure_ratio=0.5)
    found = evidence(fit, pressed)
    assert (found.slow, found.memory) == (False, True)
    lower = after_epoch(fit, pressed)
    assert lower.phase is FitPhase.SEARCH
    assert lower.limit_bytes == pytest.approx(0.95 * fit.limit_bytes)


def test_pressure_that_does_not_explain_the_slow_down_is_no_evidence() -> None:
    fit = _searching()
    slowed = replace(_epoch(fit.limit_bytes, 2e9, slowed=6.0, spiky=True), full_pressure_ratio=0.05)
    assert evidence(fit, slowed).memory is False
    assert evidence(fit, replace(slowed, full_pressure_ratio=0.4)).memory is True


def test_refaults_decide_where_the_kernel_tells_no_pressure() -> None:
    fit = _searching()
    blind = replace(_epoch(fit.limit_bytes, 2e9, slowed=6.0, spiky=True), full_pressure_ratio=NOT_THERE)
    assert evidence(fit, blind).memory is False
    assert evidence(fit, replace(blind, refaults_per_s=5000.0)).memory is True


@pytest.mark.parametrize(
    "epoch",
    [
        replace(_epoch(1e10, 2e9, spiky=True), performance=NOT_THERE),
        replace(_epoch(1e10, 2e9, spiky=True), working_set_bytes=NOT_THERE),
        replace(_epoch(1e10, 2e9, spiky=True), full_pressure_ratio=NOT_THERE, refaults_per_s=NOT_THERE),
        replace(_epoch(1e10, 2e9, spiky=True), samples=LEAST_SAMPLES - 1),
    ],
)
def test_without_a_witness_an_epoch_decides_nothing(epoch: FitEpoch) -> None:
    fit = _searching()
    assert after_epoch(fit, epoch).limit_bytes == fit.limit_bytes


def test_a_pilot_needs_a_witness_of_performance() -> None:
    fit = after_epoch(MemoryFit(), replace(_epoch(None, 2e9), performance=NOT_THERE))
    assert (fit.phase, fit.limit_bytes, fit.recommended_bytes) == (FitPhase.PILOT, None, None)


def test_a_wide_gap_is_halved() -> None:
    coarse = replace(_searching(), limit_bytes=1e9, last_good_bytes=2.6e9)
    bad = after_epoch(coarse, _epoch(1e9, 2e9))
    assert (bad.phase, bad.limit_bytes, bad.first_bad_bytes) == (FitPhase.BISECT, 2.6e9, 1e9)
    good = after_epoch(bad, _epoch(2.6e9, 2e9, spiky=True))
    assert good.limit_bytes == pytest.approx(1.8e9)


def test_a_converged_search_stays() -> None:
    fit, _ = _search(2e9)
    assert after_epoch(fit, _epoch(fit.limit_bytes, 9e9)) is fit
