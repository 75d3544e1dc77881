"""The floor of batch in a closed world: the CPUs are shared by weight, and others fill them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.features.floor import IDLE_WEIGHT, NO_FLOOR, Floor, Kept, hold, inferred
from perphd.domain.allocation import IDLE, KEEP, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import Outcome
from perphd.domain.policy import HostView, Snapshot, WorkloadView
from perphd.domain.progress import IDLE_CORES, OVER_S
from perphd.domain.sample import Sample
from perphd.domain.workload import Kind, WorkloadSpec
from tests.unit.admission_world import topology

DEMOTED = Settings(cpu_weight=IDLE)


@dataclass
class Host:
    """One batch job on ``cpus`` CPUs beside others that weigh ``others`` and want all of them."""

    cpus: int = 2
    others: float = 400.0
    wants: float = 8.0
    wanted: Settings = DEMOTED
    floor: float = 0.5
    max_starvation_s: float | None = None
    enforced: bool = True
    memory: Floor = NO_FLOOR
    used: list[float] = field(default_factory=list)
    written: list[Settings] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.in_force = self.wanted
        self.now_s = 0.0

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self._second()

    def _second(self) -> None:
        self.now_s += 1.0
        weight = self.in_force.cpu_weight
        own = 100.0 if weight is KEEP else IDLE_WEIGHT if weight is IDLE else float(weight)
        on = self.cpus if self.in_force.cpus is KEEP else len(self.in_force.cpus)
        share = own / (own + self.others) if self.others else 1.0
        used = min(self.wants, on * share)
        used = 0.0 if weight is IDLE and self.others else used
        self.used.append(used)
        sample = Sample(
            "pi",
            self.now_s,
            1.0,
            cpu_usage_cores=used,
            cpu_some_pct=90.0 if used < self.wants else 0.0,
            threads=8.0,
        )
        spec = WorkloadSpec(
            "pi", Kind.BATCH, "/pi", min_cores=self.floor or None, max_starvation_s=self.max_starvation_s
        )
        view = WorkloadView(
            spec, sample, enforceable=frozenset({"cpus", "cpu_weight"}), enforced=self.enforced
        )
        busy = float(self.cpus) if self.others else used
        at = HostView(topology(self.cpus), busy_cores=busy)
        snapshot = Snapshot(int(self.now_s), self.now_s, 1.0, at, (view,))
        step = hold(self.memory, snapshot, {"pi": self.wanted})
        self.memory = step.floor
        self.outcomes += step.outcomes
        self.in_force = step.settings["pi"] if self.enforced else self.wanted
        if not self.written or self.written[-1] != self.in_force:
            self.written.append(self.in_force)

    def least(self, from_s: int) -> float:
        """The least average over ten seconds."""
        used = self.used[from_s:]
        return min(sum(used[k : k + 10]) / 10.0 for k in range(len(used) - 9))


@given(
    others=st.floats(10.0, 5000.0),
    cpus=st.integers(1, 16),
    share=st.floats(0.02, 0.7),
    wanted=st.sampled_from([DEMOTED, Settings(), Settings(cpu_weight=6), Settings(cpu_weight=100)]),
)
def test_the_floor_holds_over_every_ten_seconds(
    others: float, cpus: int, share: float, wanted: Settings
) -> None:
    host = Host(cpus=cpus, others=others, wanted=wanted, floor=share * cpus, wants=float(cpus))
    host.run(120)
    assert host.least(30) >= 0.9 * host.floor
    assert len(host.written) <= 12, "it settles"


def test_without_a_floor_nothing_is_lifted() -> None:
    host = Host(floor=0.0)
    host.run(60)
    assert host.written == [DEMOTED]
    assert host.used[-1] == 0.0


def test_while_only_observed_nothing_is_inferred() -> None:
    host = Host(enforced=False)
    host.run(60)
    assert host.memory.kept["pi"].lift is None
    assert host.outcomes == []


def test_a_job_that_wants_no_more_is_not_lifted() -> None:
    host = Host(wants=0.0)
    host.run(60)
    assert host.written == [DEMOTED]


def test_what_is_kept_to_one_full_cpu_may_use_all_when_no_weight_does() -> None:
    confined = Settings(cpus=CpuSet.of([1]), cpu_weight=IDLE)
    host = Host(wanted=confined, others=200_000.0, floor=0.5)
    host.run(60)
    assert host.in_force.cpus is KEEP


@pytest.mark.parametrize("limit_s", [5.0, 10.0, 60.0])
@pytest.mark.parametrize("others", [100.0, 3000.0])
def test_starvation_is_bounded(limit_s: float, others: float) -> None:
    host = Host(floor=0.0, max_starvation_s=limit_s, others=others)
    host.run(200)
    without, longest = 0.0, 0.0
    for used in host.used:
        without = without + 1.0 if used < IDLE_CORES else 0.0
        longest = max(longest, without)
    assert longest <= limit_s
    assert sum(host.used[100:]) / 100.0 < 0.5, "a bound is no share"


def test_a_lift_is_lowered_when_others_leave_and_back_when_they_return() -> None:
    host = Host(others=3000.0)
    host.run(60)
    high = host.in_force.cpu_weight
    assert isinstance(high, int)
    host.others = 30.0
    host.run(120)
    low = host.in_force.cpu_weight
    assert low is IDLE or (isinstance(low, int) and low < high / 4)
    host.others = 3000.0
    host.run(60)
    assert host.least(150) >= 0.0
    assert sum(host.used[-10:]) / 10.0 >= 0.9 * 0.5
    assert host.least(200) >= 0.9 * 0.5


def test_a_lift_ends_with_the_wish_for_more_and_is_told() -> None:
    host = Host()
    host.run(40)
    host.wants = 0.1
    host.run(40)
    assert host.used[-1] == pytest.approx(0.1), "it is not starved again for wanting little"
    assert len(host.outcomes) == 1
    host.others = 0.0
    host.run(20)
    assert host.in_force == DEMOTED
    assert [outcome.kept for outcome in host.outcomes] == [True, False]
    assert "min_cores = 0.5: it got" in host.outcomes[0].text


def test_a_job_that_is_gone_keeps_nothing() -> None:
    host = Host()
    host.run(40)
    spec = WorkloadSpec("pi", Kind.BATCH, "/pi", min_cores=0.5)
    view = WorkloadView(spec, None, enforceable=frozenset({"cpu_weight"}), enforced=True)
    step = hold(host.memory, Snapshot(99, 99.0, 1.0, HostView(topology(2)), (view,)), {"pi": DEMOTED})
    assert step.floor.kept == {"pi": Kept()}
    assert step.settings == {"pi": DEMOTED}


@given(
    weight=st.floats(1.0, 1e4),
    others=st.floats(1.0, 1e4),
    room=st.integers(1, 64),
    share=st.floats(0.01, 0.9),
)
def test_the_inferred_weight_gives_the_share(weight: float, others: float, room: int, share: float) -> None:
    got = room * weight / (weight + others)
    if got <= 0.02 * room or room - got <= 0.02 * room:
        return
    asked = inferred(weight, got, share * room, float(room))
    assert room * asked / (asked + others) == pytest.approx(share * room, rel=1e-6)


def test_the_average_is_over_ten_seconds() -> None:
    host = Host(floor=0.0, max_starvation_s=1000.0, others=0.0, wants=1.0)
    host.run(5)
    host.others = 100.0
    host.run(5)
    assert OVER_S == 10.0
    assert host.memory.kept["pi"].progress.cores(10.0) == pytest.approx(0.5)
    check: Callable[[float], float] = host.memory.kept["pi"].progress.starved_s
    assert check(10.0) == pytest.approx(5.0)
    assert replace(host.memory.kept["pi"]) == host.memory.kept["pi"]
