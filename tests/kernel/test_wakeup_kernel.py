"""The probe of wake-up latency on this kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools.lab import wakeup
from tools.lab.wakeup import Case, Hogs, Latency

pytestmark = pytest.mark.requires_root
CASES = (Case("gold", Hogs.COPPER, own_cpu=True), Case("silver", Hogs.BY_HAND), Case("alone", Hogs.NONE))


def test_the_probe_measures_every_case_and_leaves_no_group() -> None:
    try:
        with wakeup.bench(1) as made:
            (found,) = wakeup.measured(made, CASES, 0.3, 1)
    except wakeup.WakeupError as exc:
        pytest.skip(str(exc))
    assert set(found) == {"gold", "silver", "alone"}
    assert all(0.0 < each.p50_us <= each.p99_us <= each.most_us for each in found.values())
    assert not list(Path("/sys/fs/cgroup").glob(f"**/perphd-wakeup-*-{os.getpid()}"))


def test_ratios_are_taken_within_a_repetition() -> None:
    def late(p99_us: float) -> Latency:
        return Latency(1.0, p99_us, p99_us, 0.0)

    rounds = [
        {"silver alone": late(10.0), "silver beside copper": late(11.0)},
        {"silver alone": late(1000.0), "silver beside copper": late(900.0)},
        {"silver alone": late(100.0), "silver beside copper": late(200.0)},
        {"silver alone": late(100.0)},
    ]
    assert wakeup.ratios(rounds, "silver beside copper", "silver alone") == [1.1, 0.9, 2.0]
    assert wakeup.quartiles([1.1, 0.9, 2.0]) == pytest.approx((1.0, 1.1, 1.55))
    text = "\n".join(wakeup.report(rounds))
    assert "| silver beside copper / alone | 1.10 [1.00 to 1.55] | 2 of 3 |" in text
    assert "gold" not in text
