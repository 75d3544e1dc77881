"""Several LRAs decided for together, over long runs in a world whose truth is known."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.admission.arbiter import partitioned
from perphd.admission.arbiter.member import Look, Member, Trial, found_too_few, take_in
from perphd.admission.arbiter.partition import MOST_LOST
from perphd.admission.arbiter.partition_cores import CoreShares, SharedCores, divide, worth_a_trial
from perphd.admission.detector.judge import DetectorState, Judgement, Target
from perphd.admission.perph import PerphMemory
from perphd.admission.settings import PolicySettings
from perphd.admission.thresholds import BOLD
from perphd.domain.allocation import IDLE, KEEP, Keep, Settings, Weight
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import Action, Cause, Health, Verdict
from perphd.domain.policy import WorkloadView
from perphd.domain.reading import NOT_MEASURED
from perphd.domain.sample import Sample
from perphd.domain.workload import Kind, WorkloadSpec
from tests.unit.admission_partition_world import WORKING_SET_BYTES, CrowdWorld, Service, actions
from tests.unit.test_admission_partition import machine


def three() -> dict[str, Service]:
    return {"a": Service(1.0), "b": Service(3.0), "c": Service(2.0, knee=0.5)}


def sets_of(world: CrowdWorld) -> dict[str, CpuSet]:
    return {n: s.cpus for n, s in world.in_force.items() if s.cpus is not KEEP}


def weight_of(world: CrowdWorld) -> Weight | Keep:
    return world.in_force["pi"].cpu_weight


def test_each_gets_cores_of_its_own_and_its_target_and_batch_the_rest() -> None:
    world = CrowdWorld(machine(1, 12), three())
    world.step(60)
    found = sets_of(world)
    assert set(found) == {"a", "b", "c", "pi"}
    assert sum(len(cpus) for cpus in found.values()) == 24
    for one in found:
        for other in found:
            assert one == other or not found[one] & found[other]
    assert all(world.score(n) >= 1.0 for n in world.services)
    # Just enough, or a core more.
    need = {"a": 1, "b": 3, "c": 3}
    assert all(world.cores(n) <= need[n] + 1 for n in need)
    assert sum(bool(m) for m in world.missed) <= 12


def test_batch_that_starts_before_the_next_tick_gets_what_batch_has() -> None:
    world = CrowdWorld(
        machine(2, 6), {"a": Service(1.0), "b": Service(5.0, knee=0.3)}, ways=12, levels=(10, 50)
    )
    confined = 0
    for _ in range(200):
        world.step()
        here = world.in_force["pi"]
        assert world.newcomer == Settings(
            cpus=here.cpus, cpu_weight=here.cpu_weight, llc_masks=here.llc_masks, mba_pct=here.mba_pct
        )
        confined += here.cpus is not KEEP
    assert confined > 100


def test_a_newcomer_gets_nothing_where_nothing_is_in_force() -> None:
    world = CrowdWorld(machine(1, 12), three(), batch=False)
    world.step(30)
    assert world.newcomer == Settings()


def test_nobody_swings_over_two_thousand_ticks_of_noise() -> None:
    world = CrowdWorld(machine(1, 7), {"a": Service(1.5), "b": Service(3.0)}, noise=0.05)
    world.step(2000)
    assert world.changes(since=500) <= 24  # trials whose distance doubles
    assert sum(bool(m) for m in world.missed[500:]) <= 20


def test_load_that_comes_and_goes_slowly_costs_few_failed_reductions() -> None:
    """Each level of the load is one at which a core decides; a failure there is repeated once its cost allows it."""
    world = CrowdWorld(machine(1, 16), {"a": Service(2.4), "b": Service(1.7, knee=0.5)}, seed=2)
    for tick in range(5400):
        share = 0.8 - 0.4 * math.cos(2.0 * math.pi * tick / 5400.0)
        world.services["a"].demand, world.services["b"].demand = 6.0 * share, 4.2 * share
        world.step()
    assert world.changes(since=300) <= 40
    for name in world.services:
        assert sum(name in missed for missed in world.missed[300:]) <= MOST_LOST * 5100


def test_cores_are_too_few_also_for_misses_that_nothing_else_can_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batch has no cache that could be taken here."""
    monkeypatch.setattr(partitioned, "hierarchy_is_to_blame", lambda look: True)
    world = CrowdWorld(machine(1, 12), {"a": Service(1.0), "b": Service(3.0)})
    world.step(30)
    had = world.cores("b")
    world.services["b"].demand = 5.0
    world.step(10)
    assert world.cores("b") > had
    assert isinstance(world.memory, PerphMemory)
    assert world.memory.partitioned is not None
    assert any(not seen.good and seen.cores == had for seen in world.memory.partitioned.members["b"].seen)


def test_two_that_cannot_both_be_satisfied_do_not_pass_cores_to_and_fro() -> None:
    world = CrowdWorld(machine(1, 6), {"a": Service(6.0), "b": Service(6.0)}, noise=0.04)
    world.step(400)
    assert world.changes(since=100) <= 10
    assert abs(world.cores("a") - world.cores("b")) <= 1
    assert world.cores("pi") == 1  # batch keeps its floor
    reasons = [d.reason for d in world.history[-1]]
    assert any(
        "unsatisfiable" in r and "missing" in r for row in world.history for r in (d.reason for d in row)
    )
    assert all(reasons)


def test_what_is_missing_is_a_number_of_cores_or_said_to_be_none() -> None:
    world = CrowdWorld(machine(1, 6), {"a": Service(20.0), "b": Service(1.0)}, noise=0.04)
    world.step(60)
    reasons = [d.reason for row in world.history for d in row if "unsatisfiable" in d.reason]
    lacks = {int(number) for r in reasons for number in re.findall(r"but (-?[0-9]+) of them are missing", r)}
    assert lacks
    assert min(lacks) > 0
    assert any("no number of cores available here is expected to be enough" in r for r in reasons)


def test_where_every_core_is_needed_batch_is_an_idle_guest_and_moves_out_again() -> None:
    world = CrowdWorld(machine(1, 8), {"a": Service(1.0, knee=0.7), "b": Service(7.5, knee=0.73)})
    world.step(60)
    assert all(world.score(n) >= 1.0 for n in world.services)
    assert world.cores("a") + world.cores("b") == 8
    assert weight_of(world) is IDLE
    assert world.cores("pi") == 1
    assert any("idle guest" in str(d.chosen) for d in world.history[-1])
    assert world.changes(since=30) <= 6
    world.services["b"].demand = 2.0
    world.step(60)
    assert weight_of(world) is KEEP
    assert not sets_of(world)["pi"] & (sets_of(world)["a"] | sets_of(world)["b"])
    assert all(world.score(n) >= 1.0 for n in world.services)


def test_batch_is_never_confined_to_fewer_cores_than_it_was_promised() -> None:
    """Its own and those that it is a guest on count together."""
    for demand in (4.0, 5.0, 6.0, 7.0, 8.0):
        services = {"a": Service(1.0, knee=0.7), "b": Service(demand, knee=0.7)}
        world = CrowdWorld(machine(1, 8), services, min_cores=2.0)
        for _ in range(40):
            world.step()
            if isinstance(world.memory, PerphMemory) and world.memory.partitioned is not None:
                assert world.cores("pi") >= 2
                own = world.cores("a") + world.cores("b") + world.cores("pi") <= 8
                assert own or weight_of(world) is IDLE


def test_the_more_cores_batch_has_the_surer_must_be_that_one_more_can_be_spared() -> None:
    wanted = [worth_a_trial(cores) for cores in range(129)]
    assert wanted == sorted(wanted)
    # By the same odds for the same gain: a core more for 5 is as much as 12 more for 60.
    assert wanted[5] == wanted[0] < 0.5
    assert wanted[60] / (1.0 - wanted[60]) > 10.0 * wanted[5] / (1.0 - wanted[5])
    assert wanted[128] < 1.0


def look(name: str, score: float = 1.2, priority: int = 100) -> Look:
    spec = WorkloadSpec(name, Kind.LRA, f"/{name}", priority=priority)
    judged = Judgement(Verdict(Health.HEALTHY, Cause.NONE, 0.0, ()), DetectorState(), score)
    return Look(WorkloadView(spec, None), Target(1.0, 1.0), judged, True, PolicySettings())


def calm(cores: int, demand: float, since_s: float = 0.0, scores: tuple[float, ...] = (1.2, 1.2)) -> Member:
    return Member(cores, scores=scores, rooms=scores, demand=demand, calm_since_s=since_s)


def test_what_all_want_is_what_they_get_while_there_is_enough() -> None:
    members = {"a": calm(2, 1.0), "b": calm(3, 2.0)}
    looks = {name: look(name) for name in members}
    eight = SharedCores(8, 2, floor=2, lras=2, has_batch=True, can_lend=False, now_s=100.0)
    assert divide(eight, {"a": 2, "b": 4}, members, looks) == CoreShares({"a": 2, "b": 4}, lends=False)
    lending = replace(eight, can_lend=True)
    assert divide(lending, {"a": 2, "b": 4}, members, looks) == CoreShares({"a": 2, "b": 4}, lends=False)
    # Batch's promised cores go as well, and it is a guest then.
    assert divide(lending, {"a": 3, "b": 5}, members, looks) == CoreShares({"a": 3, "b": 5}, lends=True)
    alone = divide(replace(eight, floor=0, has_batch=False), {"a": 2, "b": 4}, members, looks)
    assert sum(alone.counts.values()) == 8  # nobody else has a use for the rest


def test_where_more_is_wanted_than_there_is_it_is_told_what_is_missing() -> None:
    members = {"gold": calm(1, 3.0, scores=(0.5, 0.5)), "iron": calm(3, 3.0, scores=(0.5, 0.5))}
    looks = {"gold": look("gold", 0.5, priority=200), "iron": look("iron", 0.5)}
    six = SharedCores(6, 2, floor=1, lras=2, has_batch=True, can_lend=False, now_s=100.0)
    shares = divide(six, {"gold": 5, "iron": 5}, members, looks)
    lacks = {"iron": "unsatisfiable: it needs 4 cores, but 3 of them are missing"}
    assert shares == CoreShares({"gold": 4, "iron": 1}, lends=False, lacks=lacks)


def test_cores_are_spared_when_that_is_sure_or_was_waited_for() -> None:
    cores = SharedCores(12, 2, floor=1, lras=2, has_batch=True, can_lend=False, now_s=100.0)
    found = look("a")

    def spared(member: Member, *, needed: bool = False, batch_cores: int = 4) -> tuple[int, str]:
        return cores.spared(found, member, needed=needed, batch_cores=batch_cores)

    fewest, why = spared(calm(8, 1.0))
    assert fewest < 8
    assert "almost certain" in why
    assert spared(calm(8, 1.0, since_s=99.5))[0] == 8  # not yet
    assert spared(replace(calm(8, 1.0), trial=Trial(99.0, 7, 8, 1.0, 1.0))) == (8, "")  # one thing at a time
    assert spared(calm(1, 0.1)) == (1, "")
    few, why = spared(calm(2, 1.8))
    assert (few, why[:11]) == (2, "just enough")
    # Worth it for a neighbour that is short, not for one core more of 60.
    assert BOLD <= cores.chance_of(found, calm(3, 1.8), 2) < worth_a_trial(60)
    assert spared(calm(3, 1.8), needed=True, batch_cores=60)[0] == 2
    assert spared(calm(3, 1.8), batch_cores=60)[0] == 3


def test_when_there_is_not_enough_the_more_important_one_is_satisfied() -> None:
    services = {"gold": Service(4.0, priority=200), "iron": Service(4.0, priority=50)}
    world = CrowdWorld(machine(1, 7), services)
    world.step(120)
    assert world.score("gold") >= 1.0
    assert world.cores("gold") > world.cores("iron") >= 1
    late = world.missed[60:]
    assert sum("gold" in m for m in late) <= 4


def test_load_that_moves_takes_its_cores_along() -> None:
    world = CrowdWorld(machine(1, 10), {"a": Service(1.0), "b": Service(6.0)})
    world.step(60)
    before = world.cores("a")
    world.services["a"].demand, world.services["b"].demand = 6.0, 1.0
    world.step(40)
    assert world.cores("a") > before
    assert world.score("a") >= 1.0
    assert world.score("b") >= 1.0
    assert Action.GROW in actions(world, "a")
    assert Action.SHRINK in actions(world, "b")


def test_who_comes_gets_a_part_and_who_goes_leaves_its_own() -> None:
    world = CrowdWorld(machine(1, 12), {**three(), "late": Service(2.0, present=False)})
    world.step(60)
    batch = world.cores("pi")
    world.services["late"].present = True
    world.step(30)
    assert world.score("late") >= 1.0
    assert all(world.score(n) >= 1.0 for n in world.services)
    world.services["late"].present = False
    world.step(30)
    assert world.cores("pi") >= batch - 1


def test_everything_is_given_back_when_batch_is_gone() -> None:
    world = CrowdWorld(machine(1, 12), three())
    world.step(40)
    assert isinstance(world.memory, PerphMemory)
    assert world.memory.partitioned is not None
    world.batch = False
    world.step(40)
    assert all(s.is_untouched() for s in world.in_force.values())
    assert any(Action.RELEASE in [d.action for d in row] for row in world.history)


def test_a_slowdown_that_cores_do_not_cure_gets_none() -> None:
    world = CrowdWorld(machine(1, 12), {"a": Service(1.0), "b": Service(0.5, knee=-2.0)})
    world.step(120)
    # It is slow whatever it is given, and hardly uses what it has.
    assert world.cores("b") <= 4
    assert world.score("a") >= 1.0


def test_delays_of_one_lra_are_its_own() -> None:
    patient = (("shrink_after_s", 3600.0), ("shrink_sure_after_s", 3600.0))
    world = CrowdWorld(machine(1, 12), {"a": Service(4.0), "b": Service(4.0, policy=patient)})
    world.step(40)
    had = world.cores("b")
    for service in world.services.values():
        service.demand = 1.0
    world.step(120)
    assert world.cores("a") < had
    assert world.cores("b") == had


def test_who_stalls_for_memory_gets_its_working_set_and_no_more() -> None:
    """However long it goes on stalling and missing its target: protecting what it does not use would not help."""
    world = CrowdWorld(
        machine(1, 12), {"a": Service(1.0), "b": Service(0.5, knee=-2.0, memory_stalls_pct=40.0)}
    )
    world.step(60)
    assert world.protections["b"][0].memory_bytes == int(1.2 * WORKING_SET_BYTES)
    assert world.protections["a"][0].memory_bytes == 0


def test_who_gave_and_who_got_is_said() -> None:
    world = CrowdWorld(machine(1, 8), {"a": Service(1.0), "b": Service(3.0)})
    world.step(30)
    world.services["b"].demand = 5.5
    world.step(30)
    grown = [d for row in world.history[30:] for d in row if d.workload == "b" and d.action is Action.GROW]
    assert grown
    assert "cores of its own" in grown[0].reason
    assert any(c.verdict == "chosen" for c in grown[0].candidates)


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.2, 12.0), st.sampled_from([50, 100])), min_size=2, max_size=5),
    st.lists(st.floats(0.3, 3.0), min_size=1, max_size=3),
    st.integers(0, 100),
)
def test_whatever_is_asked_cores_are_divided_and_never_shared(
    asked: list[tuple[float, int]], swings: list[float], seed: int
) -> None:
    """Disjoint sets of usable CPUs, a core at least for each, batch's floor kept, at every tick; and it replays."""

    def play() -> CrowdWorld:
        services = {f"s{n}": Service(demand, priority=p) for n, (demand, p) in enumerate(asked)}
        world = CrowdWorld(machine(1, 8), services, seed=seed)
        for swing in swings:
            for service in services.values():
                service.demand *= swing
            for _ in range(8):
                world.step()
                found = sets_of(world)
                if world.memory is not None and getattr(world.memory, "crowd", None) is None:
                    continue
                assert set(found) == {*services, "pi"}
                assert all(len(cpus) >= world.threads for cpus in found.values())
                batch = found.pop("pi")
                guest = world.in_force["pi"].cpu_weight is IDLE
                mine = found if guest else {**found, "pi": batch}
                assert sum(len(cpus) for cpus in mine.values()) == len(world.topology.usable)
                for name, cpus in mine.items():
                    assert not cpus - world.topology.usable
                    assert not any(cpus & other for n, other in mine.items() if n != name)
                if guest:
                    # No more than its floor, on whole cores that somebody has.
                    assert len(batch) == world.threads
                    assert any(not batch - cpus for cpus in found.values())
                assert len(batch) >= world.threads
        return world

    assert play().history == play().history


def masks_of(world: CrowdWorld) -> dict[int, int]:
    masks = world.in_force["pi"].llc_masks
    return {} if masks is KEEP else dict(masks)


def test_batch_loses_cache_only_in_the_domains_of_lras_and_by_what_those_need() -> None:
    services = {"a": Service(2.0), "b": Service(3.0), "c": Service(1.0)}
    world = CrowdWorld(machine(4, 8), services, ways=11, levels=(10, 50, 60, 100))
    world.step(2)
    assert isinstance(world.memory, PerphMemory)
    assert world.memory.partitioned is not None
    used = {core // 8 for cores in world.memory.partitioned.placed.values() for core in cores}
    assert len(used) == 3, "kept apart while that costs nothing"
    assert set(masks_of(world)) == used == set(world.memory.partitioned.caches)
    world.services["b"].present = False
    world.step(5)
    assert isinstance(world.memory, PerphMemory)
    assert world.memory.partitioned is not None
    left = {core // 8 for cores in world.memory.partitioned.placed.values() for core in cores}
    assert len(left) == 2
    assert set(masks_of(world)) == left == set(world.memory.partitioned.caches)


def test_what_is_given_back_in_one_domain_is_not_given_back_in_the_other() -> None:
    """The LRA on the one socket has room, the other one is only just on target."""
    world = CrowdWorld(
        machine(2, 8), {"a": Service(0.5), "b": Service(6.0, knee=0.45)}, ways=11, levels=(10, 50, 60, 100)
    )
    seen = set()
    for _ in range(120):
        world.step()
        assert isinstance(world.memory, PerphMemory)
        crowd = world.memory.partitioned
        if crowd is not None:
            seen.add(tuple(sorted((domain, state.ways) for domain, state in crowd.caches.items())))
    assert any(len({ways for _, ways in each}) == 2 for each in seen), seen


# --- time that a number of cores has cost -----------------------------------------------------------------------


def at(
    member: Member, now_s: float, interval_s: float, score: float, clean: bool = True
) -> tuple[Member, Look]:
    """The member after a sample of this length that ends now."""
    sample = Sample("a", now_s, interval_s)
    found = look("a", score)
    found = replace(found, view=replace(found.view, sample=sample), clean=clean)
    return take_in(member, found, NOT_MEASURED, 1, now_s, 1.0), found


def barred_s(member: Member, found: Look, now_s: float) -> float:
    """How long cores that were too few are not tried again."""
    (seen,) = found_too_few(member, found, now_s).seen
    return seen.until_s - now_s


def test_a_failed_reduction_costs_what_was_sampled_and_no_gap() -> None:
    member = replace(calm(3, 2.0, scores=()), trial=Trial(100.0, 4, 3, 1.2, 2.0))
    member, _ = at(member, 101.0, 5.0, 0.9, clean=False)  # one of its five seconds lies after the change
    member, _ = at(member, 102.0, 1.0, 1.1)  # on target
    # The host was suspended for an hour, and the next two samples cover two seconds.
    member, _ = at(member, 3702.0, 1.0, 0.9)
    member, found = at(member, 3703.0, 1.0, 0.9)
    assert member.trial is not None
    assert member.trial.lost_s == pytest.approx(3.0)
    assert barred_s(member, found, 3703.0) == pytest.approx(3.0 / MOST_LOST)


def test_each_sample_counts_with_its_own_length() -> None:
    """A long sample after short ones: four seconds below target, not ten."""
    member = calm(3, 2.0, scores=())
    for second, (length_s, score) in enumerate([(1.0, 0.9), (1.0, 0.9), (1.0, 1.1), (1.0, 0.9), (1.0, 0.9)]):
        member, _ = at(member, 10.0 + second, length_s, score)
    member, found = at(member, 25.0, 10.0, 1.1)
    assert barred_s(member, found, 25.0) == pytest.approx(4.0 / MOST_LOST)


def test_time_from_before_the_last_change_is_not_counted() -> None:
    member, _ = at(calm(3, 2.0, scores=()), 10.0, 9.0, 0.5)
    member = replace(member, scores=())
    member, found = at(member, 11.0, 1.0, 0.5)
    assert barred_s(member, found, 11.0) == pytest.approx(1.0 / MOST_LOST)
