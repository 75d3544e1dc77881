"""Whose doing a shortage of CPU is, what a contended host teaches, and who is named with which evidence."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.detector.antagonist import Moment, accuse, cpi2, uses
from perphd.admission.detector.judge import target_of
from perphd.admission.detector.origin import is_contended, nothing_to_give, origin, taken, waiting_explains
from perphd.admission.settings import PolicySettings
from perphd.domain.decision import Cause, Evidence
from perphd.domain.host_account import CpuAccount, GroupUse, HostAccount
from perphd.domain.policy import Band, HostView, Snapshot
from perphd.domain.reading import NOT_MEASURED
from perphd.domain.sample import Sample
from perphd.domain.signals import performance
from perphd.domain.workload import Objective
from perphd.predictor.reference import Reference
from tests.unit.admission_world import topology
from tests.unit.test_admission_cause import Known


def host(
    lras: float = 1.0, batch: float = 0.0, undeclared: float = 0.0, steal: float = 0.0, capacity: float = 4.0
) -> HostAccount:
    idle = capacity - lras - batch - undeclared - steal
    cpu = CpuAccount(capacity, lras, batch, undeclared, 0.0, steal, idle)
    return HostAccount(10.0, 1.0, cpu, (GroupUse("/hog", undeclared),) if undeclared else ())


APP = Sample(
    "app", 10.0, 1.0, cpu_usage_cores=1.0, run_delay_cores=0.5, cpu_some_pct=40.0, work_rate_per_s=100.0,
    load_per_s=100.0, latency_p50_ms=12.0, latency_p95_ms=60.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("account", "found", "expected"),
    [
        (host(undeclared=3.0), Cause.CPU, Cause.NEIGHBOUR),
        (host(undeclared=2.0, batch=1.0), Cause.CPU, Cause.NEIGHBOUR),
        (host(undeclared=1.0, batch=2.0), Cause.CPU, Cause.CPU),
        (host(undeclared=3.0), Cause.UNKNOWN, Cause.NEIGHBOUR),
        (host(undeclared=1.0), Cause.UNKNOWN, Cause.UNKNOWN),
        (host(undeclared=3.0), Cause.LLC, Cause.NEIGHBOUR),
        (host(undeclared=3.0), Cause.THROTTLED, Cause.THROTTLED),
        (host(undeclared=3.0), Cause.IO, Cause.IO),
        (host(steal=1.0, batch=0.5, undeclared=0.5), Cause.CPU, Cause.HYPERVISOR),
        (host(steal=0.1, batch=2.5), Cause.CPU, Cause.CPU),
        (host(lras=0.9, capacity=1.0), Cause.CPU, Cause.SELF),
        (host(lras=0.9, batch=0.1, capacity=1.0), Cause.CPU, Cause.CPU),
        (host(lras=3.9), Cause.CPU, Cause.CPU),  # other LRAs use what this one lacks
        (None, Cause.CPU, Cause.CPU),
    ],
)
def test_who_takes_the_cpus_is_the_cause(account: HostAccount | None, found: Cause, expected: Cause) -> None:
    evidence: list[Evidence] = []
    assert origin(found, APP, account, evidence) is expected
    assert bool(evidence) is (expected is not found)


def test_batch_that_has_something_is_not_left_alone_because_others_take_more() -> None:
    assert nothing_to_give(Cause.NEIGHBOUR, host(undeclared=2.9, batch=0.1))
    assert not nothing_to_give(Cause.NEIGHBOUR, host(undeclared=2.0, batch=1.0))
    assert not nothing_to_give(Cause.CPU, host(undeclared=2.9))
    assert nothing_to_give(Cause.REMOTE)


def explained(sample: Sample, account: HostAccount) -> float:
    shares = taken(account)
    assert shares is not None
    model = Known({"delay:latency_p95_ms": 10.0})
    return waiting_explains(sample, performance(sample), model, shares, 0.05)  # type: ignore[arg-type]


def test_a_burst_shares_its_waiting_and_is_not_called_remote() -> None:
    """Thirty requests at once, 0.6 ms of CPU time each, beside hogs: waits of 8 ms add up to 95 ms for all of them."""
    burst = replace(
        APP, cpu_usage_cores=0.043, run_delay_cores=0.205, work_rate_per_s=71.0, load_per_s=71.0,
        latency_p50_ms=95.0, latency_p95_ms=116.0,
    )  # fmt: skip
    full = host(undeclared=2.9)
    assert explained(replace(burst, context_switches_per_s=150.0), full) < 0.5
    assert explained(replace(burst, context_switches_per_s=25.0), full) == math.inf
    assert explained(burst, full) < 0.5  # the kernel does not tell how often it was scheduled


def test_waiting_in_the_run_queue_explains_a_tail_and_a_sleep_is_not_explained_by_it() -> None:
    full = host(undeclared=3.0)
    assert explained(APP, full) > 1.0
    slept = Sample(
        "app", 10.0, 1.0, cpu_usage_cores=0.2, run_delay_cores=0.2, work_rate_per_s=40.0, load_per_s=40.0,
        latency_p50_ms=205.0, latency_p95_ms=220.0,
    )  # fmt: skip
    assert explained(slept, full) < 0.5
    backlog = Sample(
        "app", 10.0, 1.0, cpu_usage_cores=0.5, run_delay_cores=0.5, work_rate_per_s=20.0, load_per_s=40.0,
        latency_p50_ms=205.0, latency_p95_ms=220.0,
    )  # fmt: skip
    assert explained(backlog, full) == math.inf


def test_stolen_time_explains_what_no_run_queue_shows() -> None:
    stolen = Sample(
        "app", 10.0, 1.0, cpu_usage_cores=1.0, run_delay_cores=0.0, work_rate_per_s=100.0, latency_p95_ms=30.0
    )
    assert explained(stolen, host(undeclared=3.0)) < 0.5
    assert explained(stolen, host(undeclared=1.0, steal=2.0)) > 1.0


def moments(use: list[float], short: list[float]) -> list[Moment]:
    found = []
    for at, (cores, gap) in enumerate(zip(use, short, strict=True)):
        account = HostAccount(
            float(at),
            1.0,
            CpuAccount(4, 1, 0, 3, 0, 0, 0),
            (GroupUse("/hog", cores), GroupUse("/small", 0.2)),
        )
        snapshot = Snapshot(at, float(at), 1.0, HostView(topology(4), account=account), ())
        found.append(Moment(gap, uses(snapshot)))
    return found


def test_a_constant_hog_is_named_with_cpi2s_correlation() -> None:
    named, evidence = accuse(moments([2.0] * 30, [math.log(2.0)] * 30), Cause.NEIGHBOUR)
    assert named == "/hog"
    assert "0.50 by CPI2's formula" in evidence[0].text
    assert evidence[0].observed == pytest.approx(2.0)
    assert accuse(moments([2.0] * 30, [math.log(2.0)] * 30), Cause.CPU) == (None, ())


def test_a_group_that_moves_with_the_shortfall_is_named_for_batchs_causes_as_well() -> None:
    use = [3.0 if at % 10 < 5 else 0.1 for at in range(40)]
    named, evidence = accuse(moments(use, [0.5 if u > 1.0 else -0.2 for u in use]), Cause.CPU)
    assert named == "/hog"
    assert "1.00 by Pearson's" in evidence[0].text


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.01, 100.0)), min_size=1, max_size=60))
def test_cpi2s_correlation_lies_between_minus_one_and_one(record: list[tuple[float, float]]) -> None:
    value = cpi2([use for use, _ in record], [slow for _, slow in record])
    assert -1.0 - 1e-9 <= value <= 1.0 + 1e-9


DELAY = "delay:latency_p95_ms"


def test_a_contended_host_teaches_a_provisional_reference_that_a_quiet_time_replaces() -> None:
    reference = Reference()
    for value in (50.0, 40.0, 55.0, 60.0, 45.0, 50.0):
        reference.update(DELAY, value, NOT_MEASURED, contended=True)
    provisional = reference.get(DELAY, NOT_MEASURED)
    assert provisional is not None
    assert provisional.provisional
    assert Reference.from_state(reference.to_state()).get(DELAY, NOT_MEASURED) == provisional
    for _ in range(4):
        reference.update(DELAY, 10.0, NOT_MEASURED)
    kept = reference.get(DELAY, NOT_MEASURED)
    assert kept is not None
    assert kept.provisional  # four quiet samples are too few
    reference.update(DELAY, 10.0, NOT_MEASURED)
    quiet = reference.get(DELAY, NOT_MEASURED)
    assert quiet is not None
    assert not quiet.provisional
    assert quiet.value == pytest.approx(10.0)
    assert quiet.sd < provisional.sd
    for _ in range(100):
        reference.update(DELAY, 90.0, NOT_MEASURED, contended=True)
    assert reference.get(DELAY, NOT_MEASURED) == quiet


def test_a_provisional_reference_does_not_follow_trouble() -> None:
    reference = Reference()
    for value in [20.0] * 10 + [400.0] * 60:
        reference.update(DELAY, value, NOT_MEASURED, contended=True)
    band = reference.get(DELAY, NOT_MEASURED)
    assert band is not None
    assert band.value < 30.0


@pytest.mark.parametrize("sd", [0.05, 0.3, 0.5])
@pytest.mark.parametrize("samples", [20, 200, 3000])
def test_scatter_alone_does_not_move_a_provisional_reference(sd: float, samples: int) -> None:
    """Were good samples to count more than bad ones, it would become the best ones that were ever seen."""
    levels = []
    for seed in range(20):
        reference, random = Reference(), Random(seed)
        for _ in range(samples):
            reference.update("work:sli", math.exp(random.gauss(5.0, sd)), NOT_MEASURED, contended=True)
        band = reference.get("work:sli", NOT_MEASURED)
        assert band is not None
        levels.append(math.log(band.value) - 5.0)
    assert fmean(levels) == pytest.approx(0.0, abs=0.02 + 0.25 * sd)
    assert max(map(abs, levels)) < 0.05 + sd


@pytest.mark.parametrize(("signal", "better"), [("work:sli", 3.0), (DELAY, 1 / 3.0)])
def test_a_provisional_reference_follows_clear_improvements_at_once_and_trouble_slowly(
    signal: str, better: float
) -> None:
    for factor, expected in ((better, better), (better**0.4, better**0.4), (1 / better, 1.0)):
        reference, random = Reference(), Random(1)
        for number in range(330):
            level = 100.0 * (1.0 if number < 300 else factor)
            value = level * math.exp(random.gauss(0.0, 0.1))
            reference.update(signal, value, NOT_MEASURED, contended=True)
        band = reference.get(signal, NOT_MEASURED)
        assert band is not None
        assert band.value == pytest.approx(100.0 * expected, rel=0.15)


def test_the_target_from_a_provisional_reference_nears_its_mean_as_samples_come() -> None:
    few, many = Band(100.0, 0.4, 4.0, provisional=True), Band(100.0, 0.4, 64.0, provisional=True)
    assert few.level(-1.0) == few.at(-1.0) < many.level(-1.0) < 100.0 < many.level(1.0) < few.level(1.0)
    assert many.level(-1.0) == many.at(-0.25)
    assert Band(100.0, 0.4, 64.0).level(-1.0) == 100.0


def test_the_target_from_a_provisional_reference_is_the_near_end_of_its_band() -> None:
    reference = Reference()
    for _ in range(10):
        reference.update(DELAY, 10.0, NOT_MEASURED, contended=True)
        reference.update("work:sli", 100.0, NOT_MEASURED, contended=True)

    class Model:
        is_closed = False

        def reference(self, signal: str, load: object) -> object:
            return reference.get(signal, NOT_MEASURED)

    target = target_of(Objective(), Model(), performance(APP), PolicySettings())  # type: ignore[arg-type]
    plain = Objective()
    assert target.work < 100.0 * (1.0 - plain.tolerance_pct / 100.0)  # type: ignore[operator]
    assert target.delay > 10.0 * (1.0 + plain.delay_tolerance_pct / 100.0)  # type: ignore[operator]
    assert target.has_provisional_value
    assert not replace(target, is_stated=(True, True)).has_provisional_value
    assert replace(target, is_stated=(True, False)).has_provisional_value


def test_a_host_is_contended_only_if_it_is_full_and_others_fill_it() -> None:
    assert is_contended(host(undeclared=3.0))
    assert is_contended(host(steal=2.0, batch=1.0))
    assert not is_contended(host(undeclared=2.0))
    assert not is_contended(host(batch=3.0))
    assert not is_contended(None)
