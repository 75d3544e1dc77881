"""Cache and bandwidth: protected step by step where the counters say so, and given back as soon as they may be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.detector.cause import Surroundings, counted
from perphd.admission.inference import ladder
from perphd.admission.inference.inferer import untouched
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import KEEP, Allocation, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import Action, Cause, Evidence
from perphd.domain.policy import Band, HostView, ResPerfModel, WorkloadView
from perphd.domain.reading import NOT_MEASURED, Reading
from perphd.domain.sample import Sample
from perphd.domain.signals import performance
from perphd.domain.topology import L3Domain
from perphd.domain.workload import Kind, Objective, WorkloadSpec
from tests.unit.admission_world import KNOBS, World, topology

WAYS = 11
LEVELS = tuple(range(10, 101, 10))
RDT_KNOBS = KNOBS | {"llc_masks", "mba_pct"}


def host(ways: int = WAYS, min_bits: int = 1, levels: tuple[int, ...] = LEVELS) -> HostView:
    domains = (L3Domain(0, CpuSet.of([0, 1]), 11 << 20), L3Domain(7, CpuSet.of([2, 3]), 11 << 20))
    return HostView(
        replace(topology(4), l3_domains=domains), llc_ways=ways, min_cbm_bits=min_bits, mba_levels_pct=levels
    )


BATCH = (WorkloadView(WorkloadSpec("pi", Kind.BATCH, "/pi"), None, enforceable=RDT_KNOBS),)


def test_several_units_are_given_back_at_once_and_never_more_than_is_held() -> None:
    held = replace(untouched(4), llc_ways=3, mbw_pct=50)
    assert ladder.weaker(held, host()) == (replace(held, mbw_pct=60), replace(held, llc_ways=2))
    both, bandwidth, ways = ladder.weaker(held, host(), 2)
    assert (both.llc_ways, both.mbw_pct) == (1, 70)
    assert (bandwidth, ways) == (replace(held, mbw_pct=70), replace(held, llc_ways=1))
    everything = ladder.weaker(held, host(), 8)[0]
    assert everything == untouched(4)
    assert ladder.weaker(untouched(4), host(), 8) == ()


def test_the_strongest_protection_leaves_batch_the_least_that_can_be_set() -> None:
    """Which is what shields: batch cannot be kept to less."""
    held = replace(untouched(4), llc_ways=3, mbw_pct=50)
    most = ladder.strongest(held, host(min_bits=2), BATCH)
    assert (most.llc_ways, most.mbw_pct) == (WAYS - 2, min(LEVELS))
    assert most.cpu == held.cpu
    assert ladder.shields(most, host(min_bits=2), BATCH)
    for less in (held, replace(most, llc_ways=WAYS - 3), replace(most, mbw_pct=100)):
        assert not ladder.shields(less, host(min_bits=2), BATCH)
    fixed = (replace(BATCH[0], enforceable=frozenset({"cpus"})),)
    assert ladder.strongest(held, host(), fixed) == held, "what cannot be set is not waited for"
    assert ladder.shields(held, host(), fixed)


@dataclass
class CacheWorld(World):
    """The antagonist takes cache, or bandwidth, and no CPU that is missed: 8 cores for a demand of 2."""

    cores: int = 8
    lra_demand: float = 2.0
    batch_knobs: frozenset[str] = RDT_KNOBS
    enough_ways: int = 6
    enough_mbw_pct: int = 100

    def host(self) -> HostView:
        return HostView(
            replace(topology(8), l3_domains=(L3Domain(0, CpuSet.of(range(8)), 11 << 20),)),
            llc_ways=WAYS,
            mba_levels_pct=LEVELS,
        )

    def squeeze(self) -> tuple[float, float]:
        """By what share misses are more, and dearer, than undisturbed."""
        if not self.batch_running:
            return 0.0, 0.0
        missing = max(0, self.enough_ways - self.protection.llc_ways) / 6.0
        over = max(0, self.protection.mbw_pct - self.enough_mbw_pct) / 100.0
        return missing, over

    def _truth(self) -> tuple[float, float, float]:
        work, delay, batch_cores = super()._truth()
        missing, over = self.squeeze()
        slow = 1.0 + 0.8 * missing + 0.8 * over
        return work / slow, delay * slow, batch_cores

    def counted(self, sample: Sample) -> Sample:
        missing, over = self.squeeze()
        return replace(sample, cpi=1.0 + 0.8 * missing + 0.8 * over, llc_mpki=4.0 + 23.0 * missing)


def settled(**changes: object) -> CacheWorld:
    world = CacheWorld(objective=Objective(tolerance_pct=10.0, delay_tolerance_pct=15.0), **changes)  # type: ignore[arg-type]
    world.step(20)
    world.antagonist(True)
    world.step(25)
    return world


def test_misses_are_answered_with_ways() -> None:
    world = settled()
    assert world.protection.llc_ways >= world.enough_ways - 1  # one less may just be on trial
    assert world.true_work() >= 0.87 * world.work_alone
    masks = world.targets[-1].settings["pi"].llc_masks
    assert masks == ((0, ladder.batch_mask(WAYS - world.protection.llc_ways, WAYS)),)
    assert world.targets[-1].settings["db"].llc_masks is KEEP


def test_dear_misses_are_answered_with_a_throttle_on_batch() -> None:
    world = settled(enough_ways=0, enough_mbw_pct=40)
    world.step(5)  # a step back that was on trial is over
    assert world.protection.mbw_pct <= 50
    assert world.true_work() >= 0.9 * world.work_alone
    assert world.targets[-1].settings["pi"].mba_pct == ((0, world.protection.mbw_pct),)


def test_just_enough_ways_are_kept_and_all_come_back_at_the_end() -> None:
    world = settled()
    world.step(120)
    assert world.protection.llc_ways <= world.enough_ways + 1
    world.antagonist(False)
    world.step(40)
    assert world.protection == untouched(8)
    assert world.targets[-1].settings["pi"] == Settings()


def test_a_host_without_the_actuators_is_left_alone_by_the_ladder() -> None:
    nothing = untouched(4)
    assert ladder.stronger(nothing, Cause.LLC, host(ways=0, levels=()), BATCH) == ()
    without = (replace(BATCH[0], enforceable=KNOBS),)
    assert ladder.stronger(nothing, Cause.LLC, host(), without) == ()
    assert ladder.stronger(nothing, Cause.CPU, host(), BATCH) == ()


class Hopeless(CacheWorld):
    """More misses, and no way to end them."""

    def squeeze(self) -> tuple[float, float]:
        return (1.0 if self.batch_running else 0.0), 0.0


def test_a_step_that_does_not_help_is_undone_and_the_other_dimension_tried() -> None:
    world = Hopeless(objective=Objective(tolerance_pct=10.0, delay_tolerance_pct=15.0))
    world.step(20)
    world.antagonist(True)
    world.step(90)
    assert any(d.chosen.llc_ways > 0 for d in world.history)
    assert any(d.chosen.mbw_pct < 100 for d in world.history)
    # One attempt may take from several dimensions at once; what is tried after it alone goes when it does not help.
    undone = [d for d in world.history if d.action is Action.ROLLBACK]
    assert any(
        d.chosen.cpu == d.current.cpu and d.chosen.mbw_pct > d.current.mbw_pct and "did not help" in d.reason
        for d in undone
    )
    assert sum(d.action is not Action.HOLD for d in world.history[-40:]) <= 4


@given(
    ways=st.integers(2, 20),
    min_bits=st.integers(1, 3),
    protected=st.integers(0, 19),
    level=st.sampled_from(LEVELS),
    cause=st.sampled_from([Cause.LLC, Cause.MBW]),
)
def test_steps_stay_on_the_lattice(
    ways: int, min_bits: int, protected: int, level: int, cause: Cause
) -> None:
    here = host(ways, min_bits)
    current = replace(untouched(4), llc_ways=min(protected, max(0, ways - min_bits)), mbw_pct=level)
    for step in ladder.stronger(current, cause, here, BATCH):
        assert ways - step.llc_ways >= min_bits or step.llc_ways == current.llc_ways
        assert step.mbw_pct in LEVELS
        assert step.llc_ways > current.llc_ways or step.mbw_pct < current.mbw_pct
        assert ladder.batch_value(step, 2.0, here) < ladder.batch_value(current, 2.0, here)
    for step in ladder.weaker(current, here):
        assert step.llc_ways <= current.llc_ways
        assert step.mbw_pct >= current.mbw_pct
        assert step != current


@pytest.mark.parametrize(("left", "total", "mask"), [(1, 11, 0x400), (11, 11, 0x7FF), (3, 20, 0xE0000)])
def test_batch_has_the_highest_ways(left: int, total: int, mask: int) -> None:
    assert ladder.batch_mask(left, total) == mask


MILD = Allocation(untouched(4).cpu, llc_ways=3, mbw_pct=80)
STRICT = Allocation(untouched(4).cpu, llc_ways=5)


def a_lra(name: str, allowed: str | None = None, seen: tuple[int, ...] = ()) -> WorkloadView:
    cpus = None if allowed is None else CpuSet.parse(allowed)
    return WorkloadView(WorkloadSpec(name, Kind.LRA, f"/{name}"), None, allowed=cpus, seen_domains=seen)


def divided(*lras: WorkloadView, decided: dict[str, CpuSet] | None = None) -> Settings:
    """What batch gets beside a mild LRA ``db`` and a strict one ``web``; domain 0 has CPUs 0-1, domain 7 has 2-3."""
    cpus = decided or {}
    result = {"pi": Settings()}
    result |= {
        v.spec.name: Settings(cpus=cpus[v.spec.name]) if v.spec.name in cpus else Settings() for v in lras
    }
    ladder.divide(host(), lras, BATCH, {"db": MILD, "web": STRICT}, result)
    return result["pi"]


def test_where_nothing_is_known_the_strictest_protection_binds_batch_on_every_domain() -> None:
    found = divided(a_lra("db"), a_lra("web"))
    assert found.llc_masks == ((0, 0x7E0), (7, 0x7E0))
    assert found.mba_pct == ((0, 80), (7, 80))


def test_each_domain_has_the_strictest_protection_of_the_lras_that_run_there() -> None:
    found = divided(a_lra("db", "0-1"), a_lra("web", "2-3"))
    assert found.llc_masks == ((0, 0x7F8), (7, 0x7E0))
    assert found.mba_pct == ((0, 80),)
    both = divided(a_lra("db", "0-1"), a_lra("web", "0-3"))
    assert both.llc_masks == ((0, 0x7E0), (7, 0x7E0))


def test_cpus_that_are_decided_now_count_before_those_that_the_cgroup_had() -> None:
    decided = {"db": CpuSet.parse("2-3"), "web": CpuSet.parse("2")}
    found = divided(a_lra("db", "0-1"), a_lra("web", "0-3", seen=(0,)), decided=decided)
    assert found.llc_masks == ((7, 0x7E0),)
    assert found.mba_pct == ((7, 80),)


def test_a_domain_that_an_lra_may_use_and_does_not_is_left_alone() -> None:
    found = divided(a_lra("db", "0-3", seen=(0,)), a_lra("web", "0-3", seen=(0,)))
    assert found.llc_masks == ((0, 0x7E0),)
    assert found.mba_pct == ((0, 80),)


class Uncounted(CacheWorld):
    """A host without a PMU: nothing but the application says that its cache is gone."""

    def counted(self, sample: Sample) -> Sample:
        return sample


def test_without_counters_cache_is_tried_when_cpu_does_not_help() -> None:
    world = Uncounted(objective=Objective(tolerance_pct=10.0, delay_tolerance_pct=15.0), lra_demand=1.0)
    world.step(20)
    world.antagonist(True)
    world.step(60)
    assert world.protection.llc_ways >= world.enough_ways - 1
    assert world.true_work() >= 0.87 * world.work_alone


def test_further_rungs_are_offered_behind_the_first() -> None:
    rungs = [
        step.llc_ways for step in ladder.stronger(untouched(4), Cause.LLC, host(), BATCH) if step.llc_ways
    ]
    assert rungs == [6, 9, 10]


def test_another_lras_protection_is_climbed_from() -> None:
    """What is in force already, whoever asked for it, is no step."""
    world = CacheWorld(enough_ways=9)
    other = WorkloadView(
        WorkloadSpec("other", Kind.LRA, "/other"),
        None,
        protection=replace(untouched(8), llc_ways=6),
        enforced=True,
    )
    world.more_batch = (other,)
    world.step(20)
    world.antagonist(True)
    world.step(8)
    tried = {d.chosen.llc_ways for d in world.history if d.workload == "db"} - {0}
    assert tried
    assert min(tried) > 6


def test_batch_that_is_not_there_yet_does_not_keep_the_rest_from_giving_way() -> None:
    world = CacheWorld(objective=Objective(tolerance_pct=10.0, delay_tolerance_pct=15.0))
    world.more_batch = (WorkloadView(WorkloadSpec("nightly", Kind.BATCH, "/nightly"), None, enforced=True),)
    world.step(20)
    world.antagonist(True)
    world.step(20)
    assert any(d.chosen.llc_ways > 0 for d in world.history)


def test_without_resctrl_fewer_cores_for_batch_are_the_answer_to_cache_trouble() -> None:
    world = CacheWorld(batch_knobs=KNOBS, objective=Objective(tolerance_pct=10.0, delay_tolerance_pct=15.0))
    world.step(20)
    world.antagonist(True)
    world.step(20)
    assert any(d.chosen.cpu != untouched(8).cpu for d in world.history)


# -- without last-level misses: ARM and AMD often count none ----------------------------------------------------


class FewCounters(CacheWorld):
    """CPI is counted, misses are not; ``stalls``: stalls on memory are."""

    stalls = False

    def counted(self, sample: Sample) -> Sample:
        more = sum(self.squeeze())
        seen = replace(super().counted(sample), llc_mpki=NOT_MEASURED)
        # An instruction takes 1 cycle, of which it waits 0.2 for memory; all that is added is waiting.
        ratio = (0.2 + 0.8 * more) / (1.0 + 0.8 * more) if self.stalls else NOT_MEASURED
        return replace(seen, memory_stall_ratio=ratio)


@pytest.mark.parametrize("stalls", [False, True])
def test_cpi_alone_points_at_what_is_shared(stalls: bool) -> None:
    world = FewCounters(objective=Objective(tolerance_pct=10.0, delay_tolerance_pct=15.0))
    world.stalls = stalls
    world.step(20)
    world.antagonist(True)
    world.step(25)
    assert world.protection.llc_ways >= world.enough_ways - 1
    assert world.true_work() >= 0.87 * world.work_alone
    told = [item.text for d in world.history for item in d.verdict.evidence if item.signal == "cpi"]
    assert any(("stalls on memory" if stalls else "without its misses") in text for text in told), told


def _counted(around: Surroundings, cpi: float, stall: Reading) -> tuple[Cause, float]:
    class Model:
        def reference(self, name: str, load: Reading) -> Band | None:
            usual = {"cpi": 1.0, "memory_stall_ratio": 0.2}
            return Band(usual[name], 0.05, 100.0) if name in usual else None

    model = cast(ResPerfModel, Model())
    sample = Sample("db", 10.0, 1.0, mips=1000.0, cpi=cpi, memory_stall_ratio=stall)
    evidence: list[Evidence] = []
    found = counted(sample, performance(sample), model, around, PolicySettings(), evidence)
    assert bool(evidence) == (found[0] is not Cause.NONE)
    return found


CALM = Surroundings(siblings_busy=False, batch_waits=False, traffic_bytes_per_s=1e6)
FULL = replace(CALM, traffic_bytes_per_s=1e12)


@pytest.mark.parametrize(
    ("around", "stall", "found"),
    [
        (CALM, NOT_MEASURED, Cause.LLC),
        (FULL, NOT_MEASURED, Cause.MBW),
        (replace(CALM, siblings_busy=True), NOT_MEASURED, Cause.SMT),
        (replace(FULL, siblings_busy=True), NOT_MEASURED, Cause.MBW),
        (replace(CALM, traffic_bytes_per_s=NOT_MEASURED), NOT_MEASURED, Cause.LLC),
        (CALM, 0.47, Cause.LLC),  # 0.7 of 1.5 cycles: all that is added
        (FULL, 0.47, Cause.MBW),
        (replace(CALM, siblings_busy=True), 0.47, Cause.LLC),
        (replace(CALM, siblings_busy=True), 0.14, Cause.SMT),
        (CALM, 0.14, Cause.NONE),
    ],
)
def test_causes_without_misses(around: Surroundings, stall: Reading, found: Cause) -> None:
    cause, slower = _counted(around, 1.5, stall)
    assert cause is found
    assert slower == pytest.approx(0.0 if found is Cause.NONE else 0.5)
    assert _counted(around, 1.01, stall) == (Cause.NONE, 0.0)
