"""What is told of the detector's false alarms: by its own records, and by the test at the start."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from perphd.admission import calibration
from perphd.admission.calibration import expected_false_alarms
from perphd.admission.controller.lra_state import LraState
from perphd.admission.detector.cusum import Baseline
from perphd.admission.detector.judge import DetectorState
from perphd.admission.perph import PerphMemory
from perphd.admission.settings import PolicySettings
from perphd.domain.reading import Unavailable
from tools.bench.detector.significance import weighed

SETTINGS = PolicySettings()


def watched(samples: int, seed: int = 3) -> Baseline:
    source, state = random.Random(seed), Baseline()
    for _ in range(samples):
        state = weighed(state, 0.05 * source.gauss(0.0, 1.0), 0.05, SETTINGS).work
    return state


@pytest.mark.parametrize("per_day", [0.1, 1.0, 24.0])
def test_the_test_at_the_start_keeps_to_the_configured_rate_and_finds_a_drop(per_day: float) -> None:
    settings = replace(SETTINGS, false_alarms_per_day=per_day)
    test = calibration.self_test(settings, 1.0)
    assert test.accepted_per_day == per_day
    assert isinstance(test.expected_per_day, float)
    least = per_day / 20.0 if per_day >= 1.0 else 0.0
    assert least < test.expected_per_day < calibration.TOO_OFTEN * per_day
    assert isinstance(test.found_after_samples, float)
    assert test.found_after_samples < 30
    assert calibration.failure(test) == ""


def test_a_detector_that_alarms_too_often_or_never_is_told() -> None:
    test = calibration.self_test(SETTINGS, 1.0)
    often = calibration.failure(replace(test, expected_per_day=4.0))
    assert "4.0 false alarms a day" in often
    assert "1 are accepted" in often
    never = calibration.failure(replace(test, found_after_samples=Unavailable("not within 200 samples")))
    assert "not found within 200 samples: tuning.policy.cusum_k" in never


def test_an_lras_own_noise_tells_once_enough_of_it_was_seen() -> None:
    few = DetectorState(work=watched(60))
    assert isinstance(expected_false_alarms(few, SETTINGS, 1.0), Unavailable)
    many = DetectorState(work=watched(20000), margins=(0.05, 0.4))
    rate = expected_false_alarms(many, SETTINGS, 1.0)
    assert isinstance(rate, float)
    assert 0.0 < rate < 10.0
    memory = PerphMemory({"db": replace(LraState.new(0.0), detector=many)})
    assert calibration.expected(memory, "db", SETTINGS, 1.0) == rate
    assert isinstance(calibration.expected(memory, "web", SETTINGS, 1.0), Unavailable)
    assert isinstance(calibration.expected(None, "db", SETTINGS, 1.0), Unavailable)


def test_a_higher_accepted_rate_promises_more_false_alarms() -> None:
    state = DetectorState(work=watched(20000), margins=(0.05, 0.4))
    rates = [
        expected_false_alarms(state, replace(SETTINGS, false_alarms_per_day=rate), 1.0)
        for rate in (0.3, 1.0, 5.0)
    ]
    found = [rate for rate in rates if isinstance(rate, float)]
    assert len(found) == 3
    assert found == sorted(found)
    assert found[-1] > 3.0 * found[0]


def test_a_signal_that_hardly_ever_rises_promises_few_false_alarms() -> None:
    source, state = random.Random(1), Baseline()
    for _ in range(4000):
        state = weighed(state, 0.01 * source.gauss(0.0, 1.0), 0.08, SETTINGS).work
    rate = expected_false_alarms(DetectorState(work=state, margins=(0.08, 0.4)), SETTINGS, 1.0)
    assert isinstance(rate, float)
    assert rate <= SETTINGS.false_alarms_per_day
