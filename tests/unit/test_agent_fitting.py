"""The shell of the memory fit: epochs from samples, limits for the executor, and who may be searched at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perphd.admission.inference.inferer import untouched
from perphd.agent.fitting import RECLAIMED_SAMPLES, RELIEF_S, SKIPPED_SAMPLES, Fitting
from perphd.domain.allocation import KEEP, UNTOUCHED, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import Action, Cause, Decision, Health, Verdict
from perphd.domain.errors import ConfigError
from perphd.domain.policy import HostView, Snapshot, TargetState, WorkloadView
from perphd.domain.reading import Unavailable
from perphd.domain.sample import Quality, Sample
from perphd.domain.topology import Core, L3Domain, NumaNode, Topology
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import discover
from perphd.host.fs import RealFs
from perphd.sizing.memory_fit import URGENT_SAMPLES, FitPhase, FitView

MIB = 1 << 20
KNOBS = frozenset({"memory_high_bytes"})
SPEC = WorkloadSpec("job", Kind.BATCH, "/job")
TOPOLOGY = Topology(
    (Core(0, 0, CpuSet.of([0])),),
    (L3Domain(0, CpuSet.of([0]), MIB),),
    (NumaNode(0, CpuSet.of([0]), 1 << 34),),
    CpuSet.of([0]),
    memory_bytes=1 << 34,
)
NOTHING = TargetState({})


class Job:
    """A workload with a cliff: below ``need`` it is ten times slower, waits for memory and reads pages again."""

    def __init__(
        self, root: Path, need: float = 400.0, idle: float = 600.0, spec: WorkloadSpec = SPEC
    ) -> None:
        fs = RealFs(root)
        self.fitting = Fitting(fs, discover(fs))
        self.need, self.idle, self.spec = need * MIB, idle * MIB, spec
        self.slowed, self.now_s, self.knobs = 1.0, 0.0, KNOBS
        self.limits: list[int | None] = []
        self.silent = self.stuck = False
        self.enforced = self.obeyed = True
        self.target = NOTHING

    def view(self) -> WorkloadView:
        """As it is under the limit in force."""
        limit = self.limit
        all_of_it = self.need + self.idle
        used = all_of_it if limit is None or self.stuck else min(float(limit), all_of_it)
        starved = used < self.need
        speed = 100.0 / self.slowed / (10.0 if starved else 1.0)
        sample = Sample(
            self.spec.name,
            self.now_s,
            1.0,
            memory_current_bytes=used,
            memory_working_set_bytes=min(used, self.need),
            memory_full_pct=60.0 if starved else 0.0,
            refaults_per_s=4000.0 if starved else 0.0,
            cpu_usage_cores=Unavailable("not read") if self.silent and starved else speed,
        )
        return WorkloadView(self.spec, sample, enforceable=self.knobs, enforced=self.enforced)

    def in_force(self, name: str) -> Settings:
        """What the kernel has."""
        return self.fitting.over(name, UNTOUCHED) if self.obeyed else UNTOUCHED

    @property
    def limit(self) -> int | None:
        """What the executor is to set."""
        wanted = self.fitting.over(self.spec.name, UNTOUCHED).memory_high_bytes
        return wanted if isinstance(wanted, int) else None

    def look(self, times: int = 1) -> FitView:
        """So many rounds."""
        for _ in range(times):
            self.now_s += 1.0
            snapshot = Snapshot(int(self.now_s), self.now_s, 1.0, HostView(TOPOLOGY), (self.view(),))
            self.fitting.look(snapshot, self.target, self.in_force)
            self.limits.append(self.limit)
        return self.fitting.views()[0]

    def search(self, patience: int = 4000) -> FitView:
        """Until it has converged."""
        self.fitting.start(self.view(), samples=20)
        return self.until_converged(patience)

    def until_converged(self, patience: int = 4000) -> FitView:
        """The search's end."""
        found = self.look()
        for _ in range(patience):
            if found.phase == FitPhase.CONVERGED.value:
                break
            found = self.look()
        assert found.phase == FitPhase.CONVERGED.value
        return found


def test_a_search_finds_the_knee_and_lets_go(tmp_path: Path) -> None:
    job = Job(tmp_path)
    found = job.search()
    assert found.recommended_bytes is not None
    assert job.need <= found.recommended_bytes <= 1.15 * job.need
    assert found.crashes == 1
    assert found.witness == "cpu_usage_cores"
    assert job.limit is None  # nothing stays in force by itself


def test_an_epoch_begins_when_the_kernel_has_reclaimed(tmp_path: Path) -> None:
    """Reclaim takes ten rounds here, in which the workload stalls: that is no crash zone."""
    job = Job(tmp_path, need=400.0, idle=600.0)
    steady = Job.view
    held = [1000.0 * MIB]

    def slowly(self: Job) -> WorkloadView:
        view = steady(self)
        assert view.sample is not None
        current = view.sample.memory_current_bytes
        assert not isinstance(current, Unavailable)
        held[0] = max(current, held[0] - 5 * MIB) if current < held[0] else current
        if held[0] <= current:
            return view
        stalled = replace(
            view.sample, memory_current_bytes=held[0], memory_working_set_bytes=held[0], memory_full_pct=80.0,
            cpu_usage_cores=10.0,
        )  # fmt: skip
        return replace(view, sample=stalled)

    job.view = slowly.__get__(job)  # type: ignore[method-assign]
    found = job.search()
    assert found.crashes == 1
    assert found.recommended_bytes is not None
    assert job.need <= found.recommended_bytes <= 1.15 * job.need


def test_the_best_witness_of_most_samples_counts_not_that_of_the_first(tmp_path: Path) -> None:
    """Swapping keeps the CPU as busy as work does: by that alone the search would go on below the need."""
    job = Job(tmp_path)
    steady, looks = Job.view, [0]

    def late(self: Job) -> WorkloadView:
        view = steady(self)
        assert view.sample is not None
        looks[0] += 1
        work = Unavailable("not yet") if looks[0] < 5 else view.sample.cpu_usage_cores
        return replace(view, sample=replace(view.sample, cpu_usage_cores=1.0, work_rate_per_s=work))

    job.view = late.__get__(job)  # type: ignore[method-assign]
    found = job.search()
    assert found.witness == "work_rate_per_s"
    assert found.recommended_bytes is not None
    assert job.need <= found.recommended_bytes <= 1.15 * job.need


def test_stalls_end_a_search_whose_only_witness_is_cpu_time(tmp_path: Path) -> None:
    job = Job(tmp_path)
    steady = Job.view

    def swapping(self: Job) -> WorkloadView:
        view = steady(self)
        assert view.sample is not None
        return replace(view, sample=replace(view.sample, cpu_usage_cores=1.0))

    job.view = swapping.__get__(job)  # type: ignore[method-assign]
    found = job.search()
    assert found.witness == "cpu_usage_cores"
    assert found.crashes == 1
    assert found.recommended_bytes is not None
    assert job.need <= found.recommended_bytes <= 1.15 * job.need


def test_a_use_that_falls_without_end_is_not_waited_for_without_end(tmp_path: Path) -> None:
    job = Job(tmp_path, idle=0.0)
    job.fitting.start(job.view(), samples=20)
    job.look(25)
    steady = Job.view
    held = [1e12]

    def falling(self: Job) -> WorkloadView:
        view = steady(self)
        assert view.sample is not None
        held[0] *= 0.98
        return replace(view, sample=replace(view.sample, memory_current_bytes=held[0]))

    job.view = falling.__get__(job)  # type: ignore[method-assign]
    job.look(SKIPPED_SAMPLES + RECLAIMED_SAMPLES + 30)
    assert job.fitting.views()[0].epochs >= 2


def test_the_crash_zone_is_left_after_a_few_samples(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.search()
    below = [limit for limit in job.limits if limit is not None and limit < job.need]
    assert 0 < len(below) <= SKIPPED_SAMPLES + URGENT_SAMPLES + 1


def test_a_witness_that_falls_silent_when_memory_is_short_counts_as_slow(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.silent = True
    found = job.search()
    assert found.recommended_bytes is not None
    assert found.recommended_bytes >= job.need
    assert found.crashes == 1


def test_a_neighbour_on_the_cpu_moves_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.fitting.start(job.view(), samples=20)
    job.look(60)
    job.slowed = 5.0
    before = job.look(30).limit_bytes
    assert job.look(300).limit_bytes == before
    job.slowed = 1.0
    found = job.until_converged()
    assert found.recommended_bytes is not None
    assert job.need <= found.recommended_bytes <= 1.15 * job.need


def test_use_that_cannot_be_reclaimed_ends_the_search_there(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.stuck = True
    found = job.search()
    assert found.crashes == 0
    assert found.recommended_bytes == pytest.approx(1000 * MIB * 1.05)
    assert "cannot be reclaimed" in found.reason


def test_what_is_applied_stays_until_it_is_stopped(tmp_path: Path) -> None:
    job = Job(tmp_path)
    found = job.search()
    assert job.fitting.apply("job") == job.limit == int(found.recommended_bytes or 0)
    job.look(50)
    assert job.limit is not None
    assert job.fitting.names == frozenset({"job"})
    job.fitting.stop("job")
    assert job.fitting.over("job", UNTOUCHED) == UNTOUCHED


ELASTIC = replace(SPEC, kind=Kind.LRA, shape="elastic")
FOUND = replace(SPEC, match="unit:job.service")


@pytest.mark.parametrize(
    ("spec", "later", "why"),
    [
        (SPEC, replace(SPEC, cgroup="/other"), "another workload has this name now"),
        (FOUND, replace(FOUND, match="unit:other.service"), "another workload has this name now"),
        (ELASTIC, replace(ELASTIC, shape="no"), "its owner does not allow a memory limit any more"),
        (SPEC, SPEC, ""),
        (FOUND, replace(FOUND, cgroup="/elsewhere"), ""),
        (ELASTIC, replace(ELASTIC, shape="core"), ""),
    ],
)
def test_a_limit_does_not_pass_to_what_it_was_not_found_for(
    tmp_path: Path, spec: WorkloadSpec, later: WorkloadSpec, why: str
) -> None:
    """As when a workload is removed, and another application is added under its name."""
    job = Job(tmp_path, spec=spec)
    job.search()
    job.fitting.apply("job")
    limit = job.limit
    assert limit is not None
    job.spec = later
    snapshot = Snapshot(1, job.now_s + 1.0, 1.0, HostView(TOPOLOGY), (job.view(),))
    notes = job.fitting.look(snapshot, NOTHING, job.in_force)
    assert notes == ((("job", f"memory fit: ended, {why}"),) if why else ())
    assert job.limit == (None if why else limit)
    assert len(job.fitting.views()) == (0 if why else 1)


def test_the_shaper_sizes_again_what_a_search_has_let_go(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.fitting.start(job.view(), samples=20)
    job.look(30)
    assert job.fitting.sized == {"job"}
    job.fitting.stop("job")
    job.search()
    assert job.fitting.sized == frozenset()
    job.fitting.apply("job")
    assert job.fitting.sized == {"job"}


def test_a_lower_ceiling_of_the_policy_stands(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.search()
    job.fitting.apply("job")
    assert job.fitting.over("job", Settings(memory_high_bytes=MIB)).memory_high_bytes == MIB
    assert job.fitting.over("other", UNTOUCHED).memory_high_bytes is KEEP


def test_without_memory_high_an_estimate_is_all(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.knobs = frozenset()
    job.fitting.start(job.view(), samples=20)
    found = job.look(200)
    assert found.limit_bytes is None
    assert found.recommended_bytes is None
    assert not isinstance(found.estimate_bytes, Unavailable)
    assert "no memory.high, so no limit can be tried: it used 1004.0 MiB at most" in found.reason
    assert found.phase == FitPhase.CONVERGED.value
    assert found.epochs == 1
    with pytest.raises(ConfigError):
        job.fitting.apply("job")


def test_a_limit_that_is_not_in_force_teaches_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.fitting.start(job.view(), samples=20)
    before = job.look(60).limit_bytes
    job.obeyed = False
    found = job.look(200)
    assert (found.limit_bytes, found.samples) == (before, 0)
    assert "not in force" in found.reason


def test_a_pause_begins_the_search_again(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.fitting.start(job.view(), samples=20)
    assert job.look(60).limit_bytes is not None
    job.enforced = False
    found = job.look(100)
    assert (found.phase, found.limit_bytes) == (FitPhase.PILOT.value, None)
    job.enforced = True
    assert job.need <= (job.until_converged().recommended_bytes or 0) <= 1.15 * job.need


def test_who_may_not_be_searched(tmp_path: Path) -> None:
    job = Job(tmp_path)
    view = job.view()
    assert view.sample is not None
    gone = replace(view.sample, quality=(Quality.GONE,))
    for refused, word in (
        (replace(view, enforced=False), "mode enforce"),
        (replace(view, sample=None), "control group exists"),
        (replace(view, sample=gone), "control group exists"),
        (replace(view, spec=WorkloadSpec("db", Kind.LRA, "/db")), "shape"),
    ):
        with pytest.raises(ConfigError) as caught:
            job.fitting.start(refused)
        assert word in caught.value.allowed
    job.fitting.start(replace(view, spec=WorkloadSpec("db", Kind.LRA, "/db", shape="core")))
    job.fitting.start(view)
    with pytest.raises(ConfigError):
        job.fitting.start(view)
    for act in (job.fitting.apply, job.fitting.stop):
        with pytest.raises(ConfigError):
            act("nobody")


def test_an_lra_that_is_degraded_under_a_limit_is_without_one_at_once(tmp_path: Path) -> None:
    """Far less than the crash zone harms an LRA: its objective says so."""
    lra = WorkloadSpec("db", Kind.LRA, "/db", shape="core")
    job = Job(tmp_path, spec=lra)
    job.fitting.start(job.view(), samples=20, step=0.2)
    job.look(80)
    bad = job.limit
    assert bad is not None
    assert bad < 950 * MIB
    job.target = _degraded(lra.name)
    found = job.look()
    assert job.limit is None
    assert found.first_bad_bytes == pytest.approx(bad, abs=1)
    job.look(100)
    assert job.limit is None
    job.target = NOTHING
    assert job.look(int(RELIEF_S) - 2).limit_bytes is None
    job.limits.clear()
    found = job.until_converged()
    assert all(limit is None or limit > bad for limit in job.limits)
    assert found.recommended_bytes is not None
    assert found.recommended_bytes > bad
    assert job.fitting.apply(lra.name) == job.limit  # what somebody applies is in force


def _degraded(name: str) -> TargetState:
    unknown = Unavailable("no target")
    verdict = Verdict(Health.DEGRADED, Cause.NONE, 0.0, ())
    allocation = untouched(4)
    decision = Decision(0.0, name, verdict, Action.HOLD, unknown, unknown, allocation, allocation, (), "", "")
    return TargetState({}, (decision,))
