from __future__ import annotations

from dataclasses import replace

import pytest

from perphd.admission.arbiter.arbitration import LEAST_BATCH_BYTES, arbitrate, batch_cpus, strictest
from perphd.admission.baselines import NonePolicy, StaticPolicy
from perphd.admission.detector.judge import DetectorState, Target, judge
from perphd.admission.inference.inferer import Knobs, chance, core_steps, is_step, lattice, untouched
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import IDLE, KEEP, Allocation, CpuGrant, CpuInstrument
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import Action, Health, Prediction
from perphd.domain.policy import Band, HostView, Snapshot, WorkloadView
from perphd.domain.reading import Unavailable
from perphd.domain.sample import Sample
from perphd.domain.signals import performance
from perphd.domain.workload import Kind, Objective, Touch, WorkloadSpec
from tests.unit.admission_partition_world import NoModel
from tests.unit.admission_world import KNOBS, World, topology


def actions(world: World) -> list[Action]:
    return [d.action for d in world.history if d.action is not Action.HOLD]


@pytest.mark.parametrize(("cores", "demand"), [(2, 1.7), (2, 0.8), (8, 5.0), (16, 6.0), (64, 40.0)])
def test_rescues_within_four_samples(cores: int, demand: float) -> None:
    world = World(cores=cores, lra_demand=demand)
    world.step(20)
    assert actions(world) == []
    world.antagonist(True)
    disturbed = world.true_work()
    world.step(4)
    assert world.true_work() >= max(0.9 * world.work_alone, disturbed)
    assert world.history[-1].chosen.cpu.instrument is not CpuInstrument.NONE


@pytest.mark.parametrize("seed", range(5))
def test_no_action_without_antagonist_whatever_the_load(seed: int) -> None:
    world = World(seed=seed, noise=0.05)
    for load in (1.0, 0.6, 0.2, 0.9, 0.1, 1.0):
        world.load = load
        world.step(60)
    assert actions(world) == []


def test_a_fall_of_load_beside_batch_is_not_degradation() -> None:
    world = World(cores=8, lra_demand=4.0, settings=PolicySettings(release_after_s=5))
    world.step(20)
    world.antagonist(True)
    world.step(30)
    before = len(actions(world))
    world.load = 0.3
    world.step(60)
    grown = [a for a in actions(world)[before:] if a in (Action.GROW, Action.EXPLORE)]
    assert grown == []


def test_gives_everything_back_when_batch_is_gone() -> None:
    world = World()
    world.step(20)
    world.antagonist(True)
    world.step(20)
    assert world.protection != untouched(2)
    world.antagonist(False)
    world.step(30)
    assert world.protection == untouched(2)
    assert actions(world)[-1] is Action.RELEASE
    assert all(s.is_untouched() for s in world.targets[-1].settings.values())


def test_a_wrong_guess_is_seen_and_corrected() -> None:
    def loss(a: Allocation) -> float:
        return 0.5 if a.cpu.instrument in (CpuInstrument.DEMOTED, CpuInstrument.CONFINED) else 1.0

    world = World(cores=8, lra_demand=3.0, loss=loss)
    world.step(20)
    world.antagonist(True)
    world.step(40)
    assert world.true_work() >= 0.9 * world.work_alone
    assert world.history[-1].chosen.cpu.instrument is CpuInstrument.EXCLUSIVE


def test_shrinks_to_just_enough_and_takes_back_what_was_too_much() -> None:
    world = World(cores=16, lra_demand=6.0, objective=Objective(tolerance_pct=10.0))
    world.step(20)
    world.antagonist(True)
    world.step(300)
    assert world.true_work() >= 0.9 * world.work_alone * 0.97
    shrunk = [d for d in world.history if d.action is Action.SHRINK]
    for decision in shrunk:
        assert decision.reason
    # What batch is left with is no less than what the first rescue left it.
    first = next(d for d in world.history if d.action is Action.GROW)
    assert world.history[-1].chosen.cpu.batch_cores >= first.chosen.cpu.batch_cores - 1


def test_unreachable_target_settles_on_best_effort_without_oscillating() -> None:
    world = World(loss=lambda _: 0.5)
    world.step(20)
    world.antagonist(True)
    world.step(120)
    changes = actions(world)
    assert len(changes) <= 25
    late = [d for d in world.history[-40:] if d.action is not Action.HOLD]
    assert len(late) <= 8
    assert world.history[-1].verdict.health in (Health.DEGRADED, Health.SUSPECT)


def test_observing_decides_but_never_asks_for_settings() -> None:
    world = World(enforced=False)
    world.step(20)
    world.antagonist(True)
    world.step(10)
    assert world.history[-1].action is Action.GROW
    assert all(s.is_untouched() for target in world.targets for s in target.settings.values())


def test_batch_was_there_first_so_the_reference_is_probed() -> None:
    world = World(cores=8, lra_demand=3.0, settings=PolicySettings(probe_after_s=5))
    world.antagonist(True)
    world.step(60)
    probes = [d for d in world.history if d.action is Action.EXPLORE]
    assert probes
    assert "undisturbed" in probes[0].reason
    assert world.history[-1].verdict.health in (Health.HEALTHY, Health.OVERPROVISIONED)
    assert world.true_work() >= 0.85 * world.work_alone


def test_batch_that_cannot_be_set_does_not_keep_the_rest_from_giving_way() -> None:
    unit = WorkloadSpec("unit", Kind.BATCH, "/system.slice/unit.service")
    world = World(more_batch=(WorkloadView(unit, None, enforced=True),))
    world.step(20)
    world.antagonist(True)
    world.step(4)
    assert world.true_work() >= 0.9 * world.work_alone


@pytest.mark.parametrize("batch_first", [True, False])
def test_nothing_is_said_to_protect_where_nothing_of_batch_can_be_set(batch_first: bool) -> None:
    world = World(batch_knobs=frozenset(), settings=PolicySettings(probe_after_s=5))
    world.antagonist(batch_first)
    world.step(20)
    world.antagonist(True)
    world.step(20)
    assert world.protection == untouched(2)
    assert actions(world) == []
    assert ("neither" in world.history[-1].reason) == batch_first


def test_decisions_replay_identically() -> None:
    def run() -> list[object]:
        world = World(cores=4, lra_demand=2.5, seed=7)
        world.step(20)
        world.antagonist(True)
        world.step(60)
        return [(d.action, d.chosen, d.reason, d.candidates) for d in world.history]

    assert run() == run()


def test_missing_cgroup_is_waited_for_and_protects_nothing() -> None:
    world = World()
    views = (
        WorkloadView(world.lra, None, world.registry.model("db"), enforceable=KNOBS, enforced=True),
        WorkloadView(world.batch, None, enforceable=KNOBS, enforced=True),
    )
    target = world.policy.decide(Snapshot(0, 1.0, 1.0, HostView(topology(2)), views))
    assert "waiting for cgroup /db" in target.decisions[0].reason
    assert target.decisions[0].verdict.health is Health.UNKNOWN
    assert all(s.is_untouched() for s in target.settings.values())


def test_memory_stalls_protect_the_working_set_and_step_batch_down() -> None:
    world = World(cores=2, lra_demand=1.0)
    world.step(20)
    settings = PolicySettings()
    gib = 1 << 30
    lra = WorkloadView(world.lra, None, enforced=True)
    sample = Sample("pi", 1.0, 1.0, memory_current_bytes=10.0 * gib, memory_working_set_bytes=2.0 * gib)
    batch = WorkloadView(world.batch, sample, enforced=True)
    protection = replace(untouched(2), memory_bytes=4 * gib)
    found = arbitrate(HostView(topology(2)), [lra], [batch], {"db": protection}, settings)
    assert found["db"].memory_low_bytes == 4 * gib
    high = found["pi"].memory_high_bytes
    # 16 GiB - 4 protected - 5 % reserve would be above its use: that is not lowered at all ...
    assert isinstance(high, int)
    assert high >= 10 * gib
    greedy = replace(untouched(2), memory_bytes=14 * gib)
    high = arbitrate(HostView(topology(2)), [lra], [batch], {"db": greedy}, settings)["pi"].memory_high_bytes
    # ... and otherwise it goes down by one step at a time, never below the working set.
    assert isinstance(high, int)
    assert high == pytest.approx(9 * gib, rel=0.001)
    small = replace(sample, memory_current_bytes=1.0, memory_working_set_bytes=1.0)
    high = arbitrate(
        HostView(topology(2)),
        [lra],
        [replace(batch, sample=small)],
        {"db": replace(greedy, memory_bytes=16 * gib)},
        settings,
    )["pi"].memory_high_bytes
    assert isinstance(high, int)
    assert LEAST_BATCH_BYTES <= high <= 16 * gib // 64


def test_strictest_protection_binds_batch() -> None:
    assert strictest([]) is None
    found = strictest([CpuGrant(8, 6, 25), CpuGrant(8, 4, 100, True), CpuGrant(8, 8, IDLE)])
    assert found == CpuGrant(8, 4, IDLE, True)


def test_exclusive_sets_are_disjoint_and_complete() -> None:
    world = World()
    lra = WorkloadView(world.lra, None, enforced=True)
    batch = WorkloadView(world.batch, None, enforced=True)
    protection = Allocation(CpuGrant(8, 3, 100, True))
    found = arbitrate(HostView(topology(8)), [lra], [batch], {"db": protection}, PolicySettings())
    ours, theirs = found["db"].cpus, found["pi"].cpus
    assert isinstance(ours, CpuSet)
    assert isinstance(theirs, CpuSet)
    assert str(theirs) == "5-7"
    assert str(ours) == "0-4"
    assert found["pi"].cpu_weight is KEEP


def test_batch_lives_on_the_last_cores() -> None:
    assert str(batch_cpus(topology(8), 2)) == "6-7"
    assert not batch_cpus(topology(8), 0)


@pytest.mark.parametrize("total", [1, 2, 3, 16, 17, 128])
def test_lattice_stays_within_the_host(total: int) -> None:
    found = lattice(untouched(total), 1, Knobs(True, True, True))
    assert untouched(total) in found
    assert len(found) == len(set(found)) <= 16 * 10 + 20
    for a in found:
        assert 1 <= a.cpu.batch_cores <= total
        assert not (a.cpu.exclusive and a.cpu.batch_cores == total)
    steps = core_steps(total, 1)
    assert steps[0] == total
    assert steps[-1] == 1


def test_lattice_offers_only_what_can_be_turned() -> None:
    only_weight = lattice(untouched(8), 1, Knobs(False, True, False))
    assert {a.cpu.batch_cores for a in only_weight} == {8}
    nothing = lattice(untouched(8), 1, Knobs(False, False, False))
    assert nothing == (untouched(8),)
    floor = lattice(untouched(8), 4, Knobs(True, True, True))
    assert min(a.cpu.batch_cores for a in floor) == 4


def test_steps_are_neighbours() -> None:
    a = CpuGrant(8, 4, IDLE)
    assert is_step(a, CpuGrant(8, 5, IDLE), range(1, 9))
    assert is_step(a, CpuGrant(8, 4, 6), range(1, 9))
    assert not is_step(a, CpuGrant(8, 6, IDLE), range(1, 9))
    assert is_step(a, CpuGrant(8, 6, IDLE), (1, 2, 4, 6, 8))
    assert not is_step(a, CpuGrant(8, 5, 6), range(1, 9))
    assert is_step(a, CpuGrant(8, 6, IDLE), range(1, 9), stride=2)
    assert not is_step(a, CpuGrant(8, 7, IDLE), range(1, 9), stride=2)
    # On large hosts counts lie far apart: the next one is a step, and no stride makes more of it than its cores.
    sparse, there = (1, 2, 4, 8, 20, 50, 128), CpuGrant(128, 20, IDLE)
    assert is_step(CpuGrant(128, 8, IDLE), there, sparse, stride=2)
    assert not is_step(CpuGrant(128, 4, IDLE), there, sparse, stride=8)


def test_one_bad_sample_is_no_reason_to_explore() -> None:
    """What has kept the target for long keeps being trusted when a single sample falls out."""
    world = World(cores=2, lra_demand=1.7, noise=0.03, loss=lambda a: 1.0)
    world.step(20)
    world.antagonist(True)
    world.step(60)
    began = len(world.history)
    alone = world.work_alone
    world.work_alone = 0.6 * alone
    world.step(1)
    world.work_alone = alone
    world.step(5)
    assert not [d for d in world.history[began:] if d.action is Action.EXPLORE]


def test_chance_of_meeting_the_target() -> None:
    sure = Prediction(1.5, 1.4, 1.6, 10)
    even = Prediction(1.0, 0.9, 1.1, 10)
    assert chance(sure, 1.0, 1.0) > 0.99
    assert chance(even, 1.0, 1.0) == pytest.approx(0.5)
    assert chance(Prediction(0.7, 0.6, 0.8, 1), 1.0, 1.0) < 0.05


def test_baselines_do_what_their_names_say() -> None:
    world = World()
    views = (
        WorkloadView(world.lra, None, enforced=True),
        WorkloadView(WorkloadSpec("pi", Kind.BATCH, "/pi"), None, enforced=True),
    )
    snapshot = Snapshot(0, 0.0, 1.0, HostView(topology(4)), views)
    assert all(s.is_untouched() for s in NonePolicy().decide(snapshot).settings.values())
    static = StaticPolicy(0.5).decide(snapshot).settings
    assert str(static["db"].cpus) == "0-1"
    assert str(static["pi"].cpus) == "2-3"
    single = Snapshot(0, 0.0, 1.0, HostView(topology(1)), views)
    assert StaticPolicy().decide(single).settings == {}


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_what_scatters_around_its_target_is_left_in_peace(seed: int) -> None:
    """Samples that swing by a quarter are no reason to move while their mean keeps the target."""
    steady = World(seed=seed, noise=0.25, loss=lambda a: 0.93 if a.cpu.batch_weight is IDLE else 0.6)
    steady.step(20)
    steady.antagonist(True)
    steady.step(100)
    moves = [d for d in steady.history[30:] if d.action is not Action.HOLD]
    assert len(moves) <= 6


def test_a_large_tolerance_is_used_and_not_only_spoken_of() -> None:
    """From the first answer, the strictest, batch is given back what the target does not need."""
    shares = {IDLE: 1.0, 6: 1.0, 12: 0.97, 25: 0.92, 50: 0.87, 100: 0.62}
    world = World(
        objective=Objective(tolerance_pct=30.0, delay_tolerance_pct=900.0),
        lra_demand=1.8,
        loss=lambda a: shares[a.cpu.batch_weight],
    )
    world.step(20)
    world.antagonist(True)
    world.step(60)
    weight = world.protection.cpu.batch_weight
    assert weight is not IDLE
    assert weight >= 12
    assert world.true_work() >= 0.7 * world.work_alone


@pytest.mark.parametrize("ticks", [15, 40])
def test_a_patient_operator_gets_an_answer_as_well(ticks: int) -> None:
    world = World(settings=PolicySettings(evaluate_ticks=ticks), lra_demand=1.0)
    world.step(20)
    world.antagonist(True)
    world.step(6 * ticks)
    assert (
        all(d.reason != "the last change is being judged" for d in world.history[-2:])
        or len(actions(world)) > 1
    )


def test_nothing_is_guessed_while_undisturbed_performance_is_unknown() -> None:
    """Batch was there first and the objective is absolute: after the probe it is learned, not squeezed."""
    world = World(cores=16, lra_demand=6.0, objective=Objective(max_latency_ms=0.5))
    world.antagonist(True)
    world.step(12)
    assert not any(d.chosen.cpu.exclusive for d in world.history)


def test_batch_that_was_there_first_has_to_prove_its_innocence() -> None:
    """A clear miss of an absolute objective is not watched where nothing of a time without batch is known."""
    world = World(cores=8, lra_demand=4.0, objective=Objective(max_latency_ms=1.05), noise=0.0)
    world.antagonist(True)
    world.step(1)
    assert world.history[0].action is Action.EXPLORE
    assert world.history[0].verdict.health is Health.DEGRADED
    alone = World(cores=8, lra_demand=4.0, objective=Objective(max_latency_ms=0.5), noise=0.0)
    alone.step(30)
    assert actions(alone) == []  # without batch it is missed all the same: there is nothing to take


@pytest.mark.parametrize("jump", [1.0, 1.5])
def test_one_sample_clearly_below_is_believed_when_the_load_has_risen(jump: float) -> None:
    sample = Sample(
        "db", 9.0, 1.0, work_rate_per_s=100.0 * jump, load_per_s=100.0 * jump, latency_p95_ms=1.12
    )
    sample = replace(sample, cpu_some_pct=30.0)
    perf = performance(sample)
    target = Target(Unavailable("not asked for"), 1.0, None, Band(0.8, 0.03, 50.0))
    state = DetectorState(health=Health.HEALTHY)
    judged = judge(
        state, sample, perf, target, NoModel(), PolicySettings(), protected=True, rising=jump > 1.2
    )
    assert judged.verdict.health is (Health.DEGRADED if jump > 1.2 else Health.SUSPECT)


@pytest.mark.parametrize("touch", list(Touch))
def test_cores_of_its_own_end_when_its_owner_takes_them_from_what_may_be_touched(touch: Touch) -> None:
    """The allocation in force may be older than the configuration."""
    protection = Allocation(CpuGrant(2, 1, 100, exclusive=True))
    lra = WorkloadView(WorkloadSpec("db", Kind.LRA, "/db", touch=touch), None)
    batch = WorkloadView(WorkloadSpec("pi", Kind.BATCH, "/pi"), None)
    host = HostView(topology(2))
    found = arbitrate(host, [lra], [batch], {"db": protection}, PolicySettings())
    assert (found["db"].cpus is KEEP) is (touch is Touch.BATCH)
    assert found["pi"].cpus is not KEEP
    placed = arbitrate(host, [lra], [batch], {}, PolicySettings(), {"db": (0,)})
    assert (placed["db"].cpus is KEEP) is (touch is Touch.BATCH)


@pytest.mark.parametrize("seed", range(3))
def test_a_protected_lra_that_is_likely_short_is_helped_before_the_verdict(seed: int) -> None:
    lost = 1.0
    world = World(
        cores=16, lra_demand=6.0, noise=0.08, seed=seed, objective=Objective(tolerance_pct=10.0),
        loss=lambda a: lost if a.cpu.batch_cores > 4 else 1.0,
    )  # fmt: skip
    world.step(20)
    world.antagonist(True)
    world.step(150)
    assert world.protection != untouched(16)
    lost = 0.9
    world.step(10)
    helped = [d for d in world.history[-10:] if d.action is Action.GROW]
    assert helped
    assert helped[0].verdict.health is Health.SUSPECT, "a tenth in samples that scatter by 8 %"
