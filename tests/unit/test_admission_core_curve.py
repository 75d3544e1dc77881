"""What cores of its own give an LRA: the model is asked, and what is measured fixes the level."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.core_curve import (
    BARRED,
    FAILED_BEFORE,
    MEASURED,
    UNREFERENCED,
    CoreCurve,
    asked_counts,
    core_curve,
    own_cores,
    unknown_curve,
)
from perphd.admission.detector import Target
from perphd.admission.inferer import untouched
from perphd.admission.thresholds import FAIR, PILED_UP, SURE
from perphd.domain.allocation import Allocation
from perphd.domain.policy import Band, ModelContext
from perphd.domain.reading import NOT_MEASURED
from perphd.predictor.model import LraModel

TOTAL = 12
BY_DELAY = Target(NOT_MEASURED, 10.0)


def shape(cores: int) -> Allocation:
    return own_cores(TOTAL, cores, untouched(TOTAL))


def ask(
    demand: float,
    measured: tuple[int, float, float] | None = None,
    target: Target = BY_DELAY,
    share: float = 1.0,
) -> CoreCurve:
    context = ModelContext(demand, float(TOTAL), float(TOTAL), 0.0, 2.0, share)
    return core_curve(LraModel(), context, target, 1.0, TOTAL - 1, shape, measured)


MEASUREMENTS = st.none() | st.tuples(st.integers(1, TOTAL - 1), st.floats(0.02, 3.0), st.floats(0.001, 0.5))


@given(st.floats(0.01, 20.0), MEASUREMENTS, st.floats(0.05, 1.0))
def test_more_cores_are_never_expected_to_do_worse(
    demand: float, measured: tuple[int, float, float] | None, share: float
) -> None:
    found = ask(demand, measured, share=share)
    assert all(a <= b + 1e-12 for a, b in zip(found.scores, found.scores[1:], strict=False))
    assert all(a <= b for a, b in zip(found.chances, found.chances[1:], strict=False))
    assert all(0.0 <= chance <= 1.0 for chance in found.chances)
    if measured is not None and measured[1] >= PILED_UP:
        cores, level, _ = measured
        assert found.score(cores) == pytest.approx(level)


@given(st.floats(0.05, 8.0))
def test_who_wants_more_needs_more_cores(demand: float) -> None:
    assert ask(demand).fewest(SURE) <= ask(1.5 * demand).fewest(SURE)


def test_what_waits_elsewhere_needs_fewer_cores() -> None:
    """Of a delay that is mostly not CPU time, busy cores make little more."""
    measured = (4, 1.1, 0.01)
    assert ask(1.7, measured, share=0.1).score(2) > ask(1.7, measured).score(2)


def test_the_answers_shown_are_the_models_own() -> None:
    model = LraModel()
    context = ModelContext(2.0, float(TOTAL), float(TOTAL), 0.0, 2.0)
    band = Band(5.0, 0.1, 50.0)
    known = Target(NOT_MEASURED, 10.0, None, band)
    found = core_curve(model, context, known, 1.0, TOTAL - 1, shape)
    said = model.predict_delay([shape(n) for n in range(1, TOTAL)], context)
    assert found.basis == ""
    for n, answer in enumerate(said, 1):
        shown = found.assessed(n)
        assert shown is not None
        assert shown.prediction.score == pytest.approx(2.0 / answer.value)
        assert shown.asked is None
    measured = core_curve(model, context, known, 1.0, TOTAL - 1, shape, (3, 1.3, 0.02))
    item, own = measured.assessed(2), found.assessed(2)
    assert item is not None
    assert own is not None
    assert (item.basis, item.asked) == (MEASURED, own.prediction)
    assert item.prediction.score == pytest.approx(measured.score(2))
    assert ask(2.0).basis == UNREFERENCED


def test_a_measured_level_outweighs_what_was_believed_of_it() -> None:
    good, bad = ask(3.0, (3, 1.2, 0.02)), ask(3.0, (3, 0.8, 0.02))
    assert good.chance(3) > 0.99
    assert bad.chance(3) < 0.01
    assert good.belief(3) == bad.belief(3) == ask(3.0).chance(3)
    assert math.isclose(good.score(5) / good.score(3), bad.score(5) / bad.score(3))


def test_what_was_too_few_has_no_chance_and_later_half_of_one() -> None:
    found = ask(1.5, (5, 1.3, 0.02))
    failed = found.found_too_few(3)
    assert found.chance(3) > FAIR
    assert failed.chance(3) == failed.chance(1) == BARRED
    assert failed.chance(4) == found.chance(4)
    assert failed.fewest(0.01) == 4
    again = CoreCurve(found.asked, found.scores, found.chances, found.beliefs, doubted=3)
    assert again.chance(3) == pytest.approx(FAILED_BEFORE * found.chance(3))


def test_of_whom_nothing_is_known_it_keeps_what_it_has() -> None:
    found = unknown_curve(4, TOTAL - 1, TOTAL, untouched(TOTAL))
    assert found.fewest(SURE) == 4
    assert found.score(3) < 1.0 <= found.score(4)


def test_a_queue_says_only_that_the_present_cores_are_too_few() -> None:
    found, plain = ask(3.0, (3, 0.02, 0.01)), ask(3.0)
    assert found.chance(3) == BARRED
    assert found.score(3) < 1.0
    assert [found.score(n) for n in range(4, TOTAL)] == [plain.score(n) for n in range(4, TOTAL)]


@given(st.integers(1, 512), st.data())
def test_few_counts_stand_for_all_and_the_near_ones_are_among_them(most: int, data: st.DataObject) -> None:
    here = data.draw(st.integers(1, most))
    counts = asked_counts(most, here)
    assert list(counts) == sorted(set(counts))
    assert (counts[0], counts[-1]) == (1, most)
    assert {n for n in range(here - 3, here + 4) if 1 <= n <= most} <= set(counts)
    assert len(counts) <= 27


def test_a_rescue_that_no_number_is_likely_to_end_goes_by_steps() -> None:
    hopeless = ask(1.0, (2, 0.6, 0.01))
    assert hopeless.fewest(SURE, 3) == TOTAL - 1
    assert hopeless.step_up(SURE, 3) == 3
    hopeful = ask(3.0, (2, 0.6, 0.01))
    assert hopeful.step_up(FAIR, 3) == hopeful.fewest(FAIR, 3)
