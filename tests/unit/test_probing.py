from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.features import probing
from perphd.admission.features.probing import Probing
from perphd.admission.inference import inferer
from perphd.admission.inference.inferer import Assessed
from perphd.admission.perph import PerphMemory
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import Allocation, CpuGrant
from perphd.domain.decision import Action, Health, Prediction
from perphd.domain.policy import HostView, WorkloadView
from perphd.domain.workload import Kind, WorkloadSpec
from tests.unit.admission_world import KNOBS, World, topology

SETTINGS = PolicySettings(step_aside_per_h=2.0)
HERE = Allocation(CpuGrant(8, 4))


def assessed(batch_cores: int, support: float, score: float = 1.2, **more: int) -> Assessed:
    allocation = replace(Allocation(CpuGrant(8, batch_cores)), **more)  # type: ignore[arg-type]
    return Assessed(allocation, Prediction(score, 0.9 * score, 1.1 * score, support), float(batch_cores))


def test_a_step_needs_slack_calm_and_budget() -> None:
    good = [1.1] * 10
    assert probing.may_step(Probing(), good, 300.0, 1000.0, SETTINGS)
    assert not probing.may_step(Probing(), good[1:], 300.0, 1000.0, SETTINGS)  # too few clean samples
    assert not probing.may_step(Probing(), [1.02] * 10, 300.0, 1000.0, SETTINGS)  # no slack
    assert not probing.may_step(Probing(), good, 299.0, 1000.0, SETTINGS)  # something has changed of late
    assert not probing.may_step(Probing((500.0, 900.0)), good, 300.0, 1000.0, SETTINGS)
    assert probing.may_step(Probing((500.0, 900.0)), good, 300.0, 4101.0, SETTINGS)
    assert not probing.may_step(Probing(), good, 1e6, 1000.0, replace(SETTINGS, step_aside_per_h=0.0))


def test_the_least_known_neighbour_is_taken_and_only_one_step_away() -> None:
    around = [assessed(4, 20.0), assessed(2, 0.0), assessed(3, 1.0), assessed(5, 2.0), assessed(8, 0.0)]
    found = probing.step(around, HERE, (), (), 1.0)
    assert found is not None
    assert found.allocation.cpu.batch_cores == 3  # those at 2 and 8 cores are further away
    down = probing.step([assessed(4, 20.0), assessed(3, 1.0), assessed(5, 1.0)], HERE, (), (), 1.0)
    assert down is not None
    assert down.allocation.cpu.batch_cores == 5  # of two equally unknown ones that which leaves batch more
    assert (
        probing.step([assessed(4, 20.0), assessed(3, 19.5), assessed(5, 19.1)], HERE, (), (), 1.0) is None
    )  # alike
    there = probing.step(
        [assessed(4, 20.0), assessed(3, 1.0), assessed(5, 2.0)], HERE, (), (Allocation(CpuGrant(8, 3)),), 1.0
    )
    assert there is not None
    assert there.allocation.cpu.batch_cores == 5  # at 3 one was already
    apart = replace(assessed(4, 0.0), allocation=Allocation(CpuGrant(8, 4, exclusive=True)))
    assert (
        probing.step([assessed(4, 20.0), apart], HERE, (), (), 1.0) is None
    )  # no step but another instrument


def test_what_is_regretted_or_likely_to_miss_the_target_is_not_tried() -> None:
    around = [assessed(4, 20.0), assessed(5, 0.0, 0.95), assessed(3, 19.9)]
    assert probing.step(around, HERE, (), (), 1.0) is None
    around[1] = assessed(5, 0.0, 1.1)
    assert probing.step(around, HERE, (), (), 1.0) is around[1]
    assert probing.step(around, HERE, (Allocation(CpuGrant(8, 5)),), (), 1.0) is None
    assert (
        probing.step(around, HERE, (Allocation(CpuGrant(8, 3)),), (), 1.0) is None
    )  # it protects less than that


def test_cache_and_bandwidth_are_stepped_where_they_can_be_set() -> None:
    batch = WorkloadView(WorkloadSpec("pi", Kind.BATCH, "/pi"), None, enforceable=KNOBS)
    host = HostView(topology(8), llc_ways=11, min_cbm_bits=1, mba_levels_pct=(10, 20, 30, 100))
    assert probing.around(HERE, host, [batch]) == ()
    settable = [replace(batch, enforceable=KNOBS | {"llc_masks", "mba_pct"})]
    found = probing.around(replace(HERE, llc_ways=4, mbw_pct=20), host, settable)
    assert {(a.llc_ways, a.mbw_pct) for a in found} == {(3, 20), (5, 20), (4, 10), (4, 30)}
    assert {a.llc_ways for a in probing.around(HERE, host, settable)} == {0, 1}  # never below none


@given(st.lists(st.floats(0.0, 7200.0), max_size=30), st.floats(7200.0, 9000.0))
def test_what_is_remembered_is_bounded_by_the_hour(times: list[float], now_s: float) -> None:
    state = Probing(tuple(sorted(times)))
    after = state.stepped(assessed(3, 0.0), HERE, now_s)
    assert all(now_s - s < probing.HOUR_S for s in after.steps_s)
    assert after.made(now_s) == state.made(now_s) + 1
    assert after.way_home(after.out or HERE) == HERE
    assert after.back().way_home(after.out or HERE) is None


@dataclass
class Calm(World):
    """An LRA that is just well enough off where it is, for a long time."""

    def run(self, seconds: int) -> list[float]:
        found = []
        for _ in range(seconds):
            self.step()
            found.append(self.true_work() / self.work_alone)
        return found


PER_H = 3


@functools.cache
def calm() -> tuple[Calm, list[float]]:
    settings = PolicySettings(step_aside_per_h=PER_H, step_aside_calm_s=15.0, step_aside_slack_pct=2.0)
    world = Calm(cores=8, lra_demand=3.0, settings=settings, noise=0.01)
    world.step(20)
    world.batch_running = True
    return world, world.run(180)


def test_a_calm_lra_is_probed_within_its_budget_and_keeps_its_target() -> None:
    world, work = calm()
    steps = [d for d in world.history if "an exploration step while there is slack" in d.reason]
    assert 1 <= len(steps) <= PER_H
    assert all(d.verdict.health is Health.HEALTHY for d in steps)
    for d in steps:
        assert d.action is (Action.SHRINK if inferer.asks_no_more(d.chosen, d.current) else Action.EXPLORE)
    assert f"of at most {PER_H} within an hour" in steps[-1].reason
    assert sum(share < 0.9 for share in work[30:]) <= 0.03 * len(work)


def test_a_step_up_goes_back_once() -> None:
    world = Calm(cores=8, lra_demand=3.0, noise=0.01)
    world.step(20)
    world.batch_running = True
    world.step(20)
    assert isinstance(world.memory, PerphMemory)
    state = world.memory.lras["db"]
    home = replace(world.protection, llc_ways=0, mbw_pct=100, cpu=CpuGrant(8, 8, 6))
    aside = replace(state.aside, out=world.protection, home=home)
    world.memory = replace(world.memory, lras={"db": replace(state, aside=aside)})
    world.step(30)
    back = [d for d in world.history if "the exploration step is over" in d.reason]
    assert [(d.action, d.chosen) for d in back] == [(Action.SHRINK, home)]


def test_what_is_only_watched_is_never_probed() -> None:
    settings = PolicySettings(step_aside_calm_s=10.0, step_aside_slack_pct=0.0)
    world = Calm(cores=8, lra_demand=3.0, noise=0.01, settings=settings, enforced=False)
    world.step(20)
    world.batch_running = True
    world.step(40)
    assert not any("exploration step" in d.reason for d in world.history)
