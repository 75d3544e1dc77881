"""Hosts with other laws, undeclared work, steal, phases and LRAs that tell nothing, in the policy bench."""

from __future__ import annotations

import statistics
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.policy import Snapshot, TargetState
from perphd.domain.reading import available
from perphd.sim.node.grant import Grant
from perphd.sim.node.load import Steps
from perphd.sim.node.machine import Machine
from perphd.sim.node.model import Node
from perphd.sim.node.physics import PRESENT, ChannelQueue, MissCurve, Physics, Waiting
from tools.bench.policies import harder, held, measure, oracle, scenarios, worlds
from tools.bench.policies.catalogue import entrant
from tools.bench.policies.driver import run
from tools.bench.policies.scene import Goal, Phases, Scenario
from tools.bench.policies.world import World

MACHINE = Machine(1, 4, 2, llc_ways=4, l3_bytes=8 << 20, memory_bytes_per_s=20e9)
FORMS = [
    Physics(misses, channels, waiting)
    for misses in MissCurve
    for channels in ChannelQueue
    for waiting in Waiting
]


class Nobody:
    """Does nothing; remembers what it saw."""

    name = "nobody"

    def __init__(self) -> None:
        self.seen: list[Snapshot] = []

    def decide(self, snapshot: Snapshot) -> TargetState:
        self.seen.append(snapshot)
        return TargetState({})


def plain(*more, length_s: float = 20.0) -> Scenario:
    actors = (
        scenarios.service(MACHINE, "masstree", 0.3),
        scenarios.batch("batch-thrash", threads=4, starts_s=5.0),
        *more,
    )
    return Scenario("plain", "paper", "a small host", MACHINE, actors, length_s, count_from_s=5.0)


# -- forms ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("physics", FORMS, ids=lambda p: f"{p.misses}-{p.channels}-{p.waiting}")
def test_every_form_is_a_law_of_its_kind(physics: Physics):
    u = np.linspace(0.0, 8.0, 60)
    missing = physics.missing(u)
    assert missing[0] == pytest.approx(1.0)
    assert (np.diff(missing) < 0).all()
    slope = -np.gradient(np.log(missing), u)[1:-1]
    assert physics.steepness(u)[1:-1] == pytest.approx(slope, abs=0.05)
    x = np.logspace(-4, 3, 80)
    used = physics.utilisation(x)
    assert (np.diff(used) > 0).all()
    assert 0.0 < used[0] < used[-1] < 1.0
    rise = np.gradient(used, np.log(x)) / x
    assert physics.utilisation_slope(x)[2:-2] == pytest.approx(rise[2:-2], rel=0.05)
    busy = np.linspace(0.01, 0.99, 30)
    queued = physics.queued(busy, np.full(30, 8.0))
    assert (np.diff(queued) > 0).all()
    assert 0.0 <= queued[0] < queued[-1] <= 1.0


@pytest.mark.parametrize("physics", FORMS[1::4], ids=lambda p: f"{p.misses}-{p.channels}-{p.waiting}")
def test_the_balance_is_found_under_every_form(physics: Physics):
    machine = replace(MACHINE, physics=replace(physics, overlap_power=3.0, pace_power=1.0, halt_ms=0.3))
    works = [a.work for a in plain().actors]
    node = Node(machine, works)
    told = node.solve([[Grant(), Grant(idle=True)], [Grant(), Grant()]])
    again = node.solve([[Grant(), Grant()]])
    assert np.isfinite(told.p95_ms).all()
    assert (told.work_per_s > 0).all()
    assert told.p95_ms[1, 0] >= 0.97 * told.p95_ms[0, 0], (
        "idle-class batch costs hardly more than equal batch"
    )
    assert again.work_per_s[0] == pytest.approx(told.work_per_s[1], rel=0.02)
    state = node.start(warm=True)
    rows = node._table([[Grant(), Grant()]])
    found = [node.step(state, rows, 0.25, np.ones(2)) for _ in range(80)][-1]
    assert found.work_per_s[0] == pytest.approx(told.work_per_s[1], rel=0.05)


def p95(machine: Machine, *batch: Grant) -> float:
    works = [a.work for a in plain().actors][: 1 + len(batch)]
    return float(Node(machine, works).solve([[Grant(), *batch]]).p95_ms[0, 0])


def test_where_halted_cpus_wake_slowly_confining_batch_protects_less_than_demoting_it():
    slow = replace(MACHINE, physics=Physics(halt_ms=1.0, mix_scale=0.0))
    demoted, confined = Grant(idle=True), Grant(idle=True, cpus=MACHINE.first_cores(1, 3))
    assert p95(slow, demoted) < p95(slow, confined)
    assert p95(slow, demoted) < p95(slow), "an LRA is better off beside it than alone"
    assert p95(MACHINE, confined) <= p95(MACHINE, demoted)


def test_where_only_own_cores_stay_warm_demoting_helps_little():
    warm = replace(MACHINE, physics=Physics(mix_half=0.005, mix_scale=1.5))
    thin = Grant(weight=1.0)

    def cost(machine: Machine, theirs: Grant, ours: Grant) -> float:
        works = [a.work for a in plain().actors]
        return float(Node(machine, works).solve([[ours, theirs]]).service_s[0, 0])

    own = Grant(cpus=MACHINE.first_cores(2)), Grant(cpus=MACHINE.first_cores(2, 2))
    lost = {
        name: cost(m, thin, Grant()) / cost(m, own[1], own[0])
        for name, m in (("as is", MACHINE), ("warm", warm))
    }
    assert lost["warm"] > lost["as is"]


def test_worlds_are_drawn_by_their_seed_and_foreign():
    assert worlds.world(3) == worlds.world(3)
    laws = [worlds.world(seed).machine.physics for seed in worlds.SEEDS]
    assert len(set(laws)) == len(laws)
    for physics in laws:
        assert physics.misses is not PRESENT.misses
        assert physics.channels is not PRESENT.channels
        assert physics.waiting is not PRESENT.waiting
        assert PRESENT.overlap_power != physics.overlap_power


# -- undeclared work and steal -------------------------------------------------------------------------------


def hidden() -> Scenario:
    stranger = scenarios.batch("batch-pi", "stranger", threads=6, starts_s=8.0)
    return plain(replace(stranger, declared=False))


def test_undeclared_work_is_seen_in_the_host_s_account_alone():
    watcher = Nobody()
    done = run(hidden(), watcher, 1.0, 0)
    names = {view.spec.name for view in watcher.seen[-1].workloads}
    assert names == {"masstree", "batch-thrash"}
    account = watcher.seen[-1].host.account
    assert account is not None
    assert [group.group for group in account.undeclared] == ["/undeclared/stranger"]
    cpu = account.cpu
    parts = (cpu.lras, cpu.batch, cpu.undeclared, cpu.kernel, cpu.steal, cpu.idle)
    assert sum(parts) == pytest.approx(cpu.capacity)
    assert cpu.undeclared > 2.0
    found = measure.measure(done, {})
    alone = measure.measure(run(plain(), Nobody(), 1.0, 0), {})
    assert found.batch < alone.batch, "its work does not count, but it takes its share"
    watcher = Nobody()
    run(plain(), watcher, 1.0, 0)
    assert watcher.seen[-1].host.account is None, "the scenarios of before are as they were"


def test_the_optimum_knows_of_undeclared_work_and_leaves_it_alone():
    scenario = hidden()
    here = measure.situation_at(scenario, 15.0)
    assert here.undeclared == (2,)
    assert here.batch == [1]
    found = oracle.best(here)
    cpus, weight, mask, level = found.row[2]
    assert (cpus, weight, mask, level) == (str(MACHINE.online), 100, MACHINE.full_mask, 100)
    assert set(held.settings_of(here, found)) == {"masstree", "batch-thrash"}
    free = oracle.best(measure.situation_at(plain(), 15.0))
    assert found.score <= free.score + 1e-9 or found.work <= free.work


def test_steal_slows_everybody_and_is_accounted_for():
    taken = Steps(((0.0, 0.0), (10.0, 0.3)))
    watcher = Nobody()
    done = run(replace(plain(), steal=taken), watcher, 1.0, 0)
    before, after = done.rounds[8].interval, done.rounds[-1].interval
    assert before.steal == 0.0
    assert after.steal == pytest.approx(0.3)
    service = [i.outcomes["masstree"].service_s for i in (before, after)]
    assert service[1] > 1.2 * service[0]
    account = watcher.seen[-1].host.account
    assert account is not None
    assert account.cpu.steal > 0.5
    sample = next(v.sample for v in watcher.seen[-1].workloads if v.spec.name == "batch-thrash")
    assert sample is not None
    assert available(sample.cpu_usage_cores)
    assert sample.cpu_usage_cores == pytest.approx(0.7 * after.outcomes["batch-thrash"].usage_cores)


# -- LRAs that tell nothing, and phases ---------------------------------------------------------------------


def mute(goal: Goal | None = None) -> Scenario:
    scenario = plain()
    lra = replace(scenario.actors[0], sli=False, goal=goal or scenario.actors[0].goal)
    return replace(scenario, actors=(lra, *scenario.actors[1:]))


def test_an_lra_without_indicators_has_no_rate_no_latency_and_no_objective():
    interval = (world := World(mute(), 0)).advance(1.0)
    sample = next(s for s in world.samples(interval) if s.workload == "masstree")
    assert not available(sample.work_rate_per_s)
    assert not available(sample.latency_p95_ms)
    assert not available(sample.load_per_s)
    assert available(sample.mips)
    spec = mute().actors[0].spec
    assert (spec.objective.max_latency_ms, spec.objective.min_work_rate_per_s) == (None, None)
    strict = mute(Goal(max_p95_ms=0.01))
    assert measure.measure(run(strict, Nobody(), 1.0, 0), {}).violation_s > 0.0, "it is judged all the same"


def test_policies_that_need_absolute_targets_get_mips_of_a_profile_in_their_stead():
    watcher = Nobody()
    run(mute(), watcher, 1.0, 0)
    view = watcher.seen[3].workloads[0]
    assert view.sample is not None
    assert available(view.sample.work_rate_per_s)
    least = view.spec.objective.min_work_rate_per_s
    assert least is not None
    assert view.sample.work_rate_per_s == pytest.approx(least / 0.9, rel=0.1), "undisturbed, a tenth above it"
    who = entrant("perph")
    seen: list[Snapshot] = []
    who.run(mute(), who.make(mute(), 0), 0, watch=lambda s, _: seen.append(s))
    assert all(not available(s.workloads[0].sample.work_rate_per_s) for s in seen if s.workloads[0].sample)


@given(st.sampled_from([0.19, 0.4]), st.integers(0, 50))
def test_phases_have_their_spread_and_memory(cov: float, seed: int):
    random, phases, level = Random(seed), Phases(cov), 0.0
    levels = []
    for _ in range(4000):
        level = phases.step(level, random, 1.0)
        levels.append(level)
    factors = [phases.factor(v) for v in levels]
    assert statistics.fmean(factors) == pytest.approx(1.0, abs=0.12 * cov / 0.19)
    assert statistics.stdev(factors) == pytest.approx(cov, rel=0.25)
    assert statistics.correlation(levels[:-1], levels[1:]) == pytest.approx(0.74, abs=0.08)


def test_a_phase_is_not_held_against_anybody():
    scenario = plain()
    lra = replace(scenario.actors[0], phases=Phases(0.4))
    done = run(replace(scenario, actors=(lra,), duration_s=60.0), Nobody(), 1.0, 1)
    factors = [r.interval.phases["masstree"] for r in done.rounds]
    assert max(factors) > 1.3
    assert measure.measure(done, {}).violation_s == 0.0


def test_neither_is_a_phase_of_a_loop_that_also_waits_for_other_things():
    closed = replace(
        plain(),
        actors=(scenarios.closed(MACHINE, "mysql-oltp", 4),),
        duration_s=60.0,
        name="a loop and its phases",
    )
    lra = replace(closed.actors[0], phases=Phases(0.4))
    done = run(replace(closed, actors=(lra,)), Nobody(), 1.0, 1)
    assert min(r.interval.phases[lra.name] for r in done.rounds) < 0.8
    assert max(r.interval.phases[lra.name] for r in done.rounds) > 1.3
    assert measure.measure(done, {}).violation_s == 0.0
    strict = replace(lra, goal=lra.goal.tightened(0.3) if lra.goal is not None else None)
    done = run(replace(closed, actors=(strict,)), Nobody(), 1.0, 1)
    assert measure.measure(done, {}).violation_s > 50.0, "what it misses without a phase it misses with one"


def test_lras_that_tell_nothing_have_twins_that_do_with_the_same_chance():
    silent = {s.name.removeprefix("mute-"): s for s in harder.mute() if s.family == "mute"}
    telling = {s.name.removeprefix("told-"): s for s in harder.told()}
    assert silent.keys() == telling.keys()
    for name, twin in telling.items():
        one, other = silent[name].drawn(3), twin.drawn(3)
        assert [a.sli for a in other.lras] == [True] * len(other.lras)
        assert not all(a.sli for a in one.lras)
        assert [replace(a, sli=True) for a in one.actors] == list(other.actors)
    worlds_ = [World(s["service"].drawn(1), 1) for s in (silent, telling)]
    first, second = (w.advance(1.0).outcomes["xapian"] for w in worlds_)
    assert first == second
