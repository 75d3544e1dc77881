"""Cache and bandwidth that wait for their write: they stay wanted, and nothing is learned of what was not in force."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from perphd.admission.controller import awaited
from perphd.admission.controller.lra_state import LraState
from perphd.admission.inference.inferer import untouched
from perphd.admission.moves.rescue import Move
from perphd.admission.perph import PerphMemory
from perphd.domain.allocation import IDLE, Allocation, CpuGrant
from perphd.domain.decision import Action
from perphd.domain.workload import Objective
from tests.unit.test_admission_ladder import CacheWorld

NARROW = (5, 40)


@dataclass
class LockedWorld(CacheWorld):
    """Where somebody holds resctrl's lock, or does not: while it is held, batch keeps the cache that it has."""

    is_locked: bool = False
    wanted: Allocation = field(default_factory=lambda: untouched(8))

    def put_in_force(self, chosen: Allocation) -> Allocation:
        self.wanted = chosen
        if not self.is_locked:
            return chosen
        return replace(chosen, llc_ways=self.protection.llc_ways, mbw_pct=self.protection.mbw_pct)

    def waiting(self) -> frozenset[str]:
        waits = self.is_locked and cache(self.wanted) != cache(self.protection)
        return frozenset({"llc_masks", "mba_pct"}) if waits else frozenset()

    def lose_the_group(self) -> None:
        self.protection = replace(self.protection, llc_ways=0, mbw_pct=100)
        self.since_s = self.now_s

    def finish_the_write(self) -> None:
        self.is_locked = False
        self.protection = self.wanted
        self.since_s = self.now_s


def cache(allocation: Allocation) -> tuple[int, int]:
    return allocation.llc_ways, allocation.mbw_pct


def world_with_batch(seconds: int, **changes: object) -> LockedWorld:
    world = LockedWorld(objective=Objective(tolerance_pct=10.0, delay_tolerance_pct=15.0), **changes)  # type: ignore[arg-type]
    world.step(20)
    world.antagonist(True)
    world.step(seconds)
    return world


def regretted_caches(world: LockedWorld) -> set[tuple[int, int]]:
    assert isinstance(world.memory, PerphMemory)
    return {cache(cooldown.allocation) for cooldown in world.memory.lras["db"].cooldowns}


def judged_changes(world: LockedWorld) -> set[float]:
    return {outcome.decided_at_s for target in world.targets for outcome in target.outcomes}


def test_a_group_that_is_lost_behind_a_lock_stays_wanted_as_it_was_and_is_back_at_once() -> None:
    world = world_with_batch(40)
    had, regretted = cache(world.protection), regretted_caches(world)
    assert had[0] >= world.enough_ways - 1
    world.is_locked = True
    world.lose_the_group()
    world.step(45)
    assert {cache(decision.chosen) for decision in world.history[-45:]} == {had}
    assert cache(world.protection) == (0, 100)
    assert regretted_caches(world) <= {*regretted, (0, 100)}, "nothing is held against what was not in force"
    world.is_locked = False
    world.step(1)
    assert cache(world.protection) == had
    world.step(8)
    assert world.true_work() >= 0.87 * world.work_alone


def test_a_first_step_that_waits_is_decided_once_and_its_ladder_is_not_climbed() -> None:
    world = world_with_batch(0, is_locked=True)
    world.step(45)
    chosen = [cache(decision.chosen) for decision in world.history[20:]]
    assert len(set(chosen) - {(0, 100)}) == 1, chosen
    assert not regretted_caches(world) - {(0, 100)}
    world.is_locked = False
    world.step(30)
    assert world.true_work() >= 0.87 * world.work_alone


def test_a_step_whose_write_outlasts_a_tick_is_judged_once_it_is_in_force() -> None:
    world = world_with_batch(0, is_locked=True)
    while cache(world.wanted) == (0, 100):
        world.step(1)
    world.step(1)  # the write takes longer than a tick
    assert isinstance(world.memory, PerphMemory)
    assert world.memory.lras["db"].pending is None, "what is not in force is not judged"
    assert not judged_changes(world)
    decided_s = next(d.at_s for d in world.history if cache(d.chosen) != (0, 100))
    world.finish_the_write()
    world.step(15)
    assert decided_s in judged_changes(world)


def test_processors_are_decided_on_and_come_into_force_beside_what_waits() -> None:
    world = world_with_batch(0, is_locked=True, lra_demand=7.0)
    world.step(30)
    assert world.protection.cpu != untouched(8).cpu
    assert cache(world.protection) == (0, 100)
    assert cache(world.wanted) != (0, 100)
    assert world.wanted.cpu == world.protection.cpu


def test_what_waits_is_given_up_only_with_everything() -> None:
    waits = replace(untouched(4), llc_ways=NARROW[0], mbw_pct=NARROW[1])
    cpu = replace(untouched(4), cpu=CpuGrant(4, 2, IDLE))
    assert cache(awaited.still_wanted(waits, Move(Action.GROW, cpu, "")).chosen) == NARROW
    assert awaited.still_wanted(waits, Move(Action.GROW, cpu, "")).chosen.cpu == cpu.cpu
    gone = Move(Action.RELEASE, untouched(4), "")
    assert awaited.still_wanted(waits, gone) is gone
    assert awaited.still_wanted(None, Move(Action.GROW, cpu, "")).chosen == cpu


@pytest.mark.parametrize("begins", [True, False])
def test_samples_from_before_a_wait_began_or_ended_say_nothing_about_the_room_after_it(begins: bool) -> None:
    wanted = replace(untouched(8), llc_ways=5)
    lra: Any = SimpleNamespace(current=untouched(8) if begins else wanted, cache_waits=lambda: begins)
    state = LraState(0.0, chosen=wanted, awaited=None if begins else wanted).scored(1.02, 4.0, 8)
    after = awaited.follow(lra, state)
    assert after.scores == after.rooms == ()
