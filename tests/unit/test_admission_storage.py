"""Slow storage is told from busy disks, and nothing is given for it."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.detector.cause import UNKNOWN_SURROUNDINGS, Ledger
from perphd.admission.detector.origin import found_cause, nothing_to_give
from perphd.admission.detector.storage import LEAST_OTHERS_BYTES_PER_S, LEAST_PAGES_PER_S, storage
from perphd.admission.inference.inferer import untouched
from perphd.admission.settings import PolicySettings
from perphd.domain.decision import Action, Cause, Evidence, Health
from perphd.domain.host_account import CpuAccount, HostAccount
from perphd.domain.policy import HostView, ResPerfModel
from perphd.domain.reading import NOT_MEASURED, Reading
from perphd.domain.sample import Sample
from perphd.domain.signals import performance
from tests.unit.admission_world import World

MB = 1e6
READER = Sample(
    "db", 10.0, 1.0, io_some_pct=60.0, refaults_per_s=500.0, read_bytes_per_s=4 * MB, write_bytes_per_s=0.0
)
CACHED = replace(READER, refaults_per_s=0.0, read_bytes_per_s=0.0)


def host(disk: Reading) -> HostAccount:
    return HostAccount(10.0, 1.0, CpuAccount(4.0, 0.5, 0.1, 0.0, 0.0, 0.0, 3.4), disk_bytes_per_s=disk)


@pytest.mark.parametrize(
    ("sample", "disk", "expected"),
    [
        (READER, 4.1 * MB, Cause.STORAGE),
        (READER, 100 * MB, Cause.IO),  # somebody else keeps the disks busy
        (CACHED, 0.0, Cause.IO),  # its data are cached
        (
            replace(CACHED, refaults_per_s=500.0),
            0.0,
            Cause.STORAGE,
        ),  # a file server: no block I/O of this host
        (replace(CACHED, write_bytes_per_s=2 * MB), 2.2 * MB, Cause.STORAGE),  # a log that is synced
        (replace(READER, refaults_per_s=NOT_MEASURED, read_bytes_per_s=NOT_MEASURED), 0.0, Cause.IO),
        (READER, NOT_MEASURED, Cause.IO),
    ],
)
def test_whose_storage_is_slow(sample: Sample, disk: Reading, expected: Cause):
    evidence: list[Evidence] = []
    assert storage(Cause.IO, sample, host(disk), evidence) is expected
    assert bool(evidence) is (expected is Cause.STORAGE)


def test_without_an_account_nothing_is_concluded():
    assert storage(Cause.IO, READER, None, []) is Cause.IO


@given(st.sampled_from([cause for cause in Cause if cause is not Cause.IO]))
def test_only_waiting_for_io_may_become_storage(found: Cause):
    assert storage(found, READER, host(4 * MB), []) is found


rates = st.floats(0, 1e10)


@given(rates, rates, rates, rates)
def test_who_moves_less_than_batch_accuses_no_storage(
    refaults: float, read: float, write: float, others: float
):
    sample = replace(READER, refaults_per_s=refaults, read_bytes_per_s=read, write_bytes_per_s=write)
    found = storage(Cause.IO, sample, host(read + write + others), [])
    if others > 1.001 * (read + write) and others > 1.001 * LEAST_OTHERS_BYTES_PER_S:
        assert found is Cause.IO
    if max(refaults, (read + write) / 4096.0) < LEAST_PAGES_PER_S:
        assert found is Cause.IO


def test_nothing_is_given_for_it():
    assert "taking resources from batch would not help" in nothing_to_give(Cause.STORAGE)


@pytest.mark.parametrize(
    ("sample", "disk", "expected"),
    [(READER, 4.1 * MB, Cause.STORAGE), (READER, 80 * MB, Cause.IO), (CACHED, 0.0, Cause.IO)],
)
def test_the_detector_asks(sample: Sample, disk: float, expected: Cause):
    """An I/O-bound LRA with extra disk stalls and hardly any waiting for CPUs."""
    around = replace(UNKNOWN_SURROUNDINGS, account=host(disk))
    extra = Ledger(queue=0.05, running=0.0, memory=0.0, disk=1.5)
    evidence: list[Evidence] = []
    model = cast("ResPerfModel", None)  # the ledger is given: no usual value is asked for
    perf, settings = performance(sample), PolicySettings()
    found = found_cause(extra, Cause.NONE, Cause.UNKNOWN, sample, perf, model, around, settings, evidence)
    assert found is expected


class SlowDisk(World):
    """Batch runs all the time without doing harm; from some moment on the LRA's storage is slow."""

    slow = False
    cached = False
    others_bytes_per_s = 0.0
    before = untouched(4)

    def host(self) -> HostView:
        return replace(super().host(), account=host(self.own_bytes + self.others_bytes_per_s))

    @property
    def own_bytes(self) -> float:
        return 0.0 if self.cached else 4 * MB

    def _truth(self) -> tuple[float, float, float]:
        part = 0.5 if self.slow and not self.cached else 1.0
        return self.work_alone * part, self.delay_alone_ms / part**2, 0.3

    def counted(self, sample: Sample) -> Sample:
        stalled = 80.0 if self.slow and not self.cached else 1.0
        return replace(
            sample,
            run_delay_cores=0.01 * (1.0 + self.random.random()),
            cpu_some_pct=1.0,
            io_some_pct=stalled + self.random.random(),
            refaults_per_s=self.own_bytes / 4096.0,
            read_bytes_per_s=self.own_bytes,
            write_bytes_per_s=0.0,
        )


def ran(cached: bool, others_bytes_per_s: float = 0.0) -> SlowDisk:
    world = SlowDisk(cores=4)
    world.cached = cached
    world.step(60)
    world.antagonist(running=True)
    world.step(20)
    world.before = world.protection
    world.slow, world.others_bytes_per_s = True, others_bytes_per_s
    world.step(60)
    return world


def test_an_lra_on_slow_storage_gets_nothing_and_nobody_is_accused():
    world = ran(cached=False)
    degraded = [decision for decision in world.history[80:] if decision.verdict.health is Health.DEGRADED]
    assert len(degraded) > 30
    assert {decision.verdict.cause for decision in degraded[5:]} == {Cause.STORAGE}
    assert {decision.verdict.culprit for decision in degraded} == {None}
    assert {decision.action for decision in degraded[5:]} == {Action.HOLD}
    assert world.protection == world.before


def test_an_lra_whose_data_are_cached_raises_no_alarm():
    world = ran(cached=True)
    assert {decision.verdict.health for decision in world.history[80:]} <= {
        Health.HEALTHY,
        Health.OVERPROVISIONED,
    }


def test_disks_that_others_keep_busy_are_no_slow_storage():
    world = ran(cached=False, others_bytes_per_s=200 * MB)
    causes = [d.verdict.cause for d in world.history[80:] if d.verdict.health is Health.DEGRADED]
    assert Cause.STORAGE not in causes
    assert causes.count(Cause.IO) > len(causes) / 2
