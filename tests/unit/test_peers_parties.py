"""PARTIES against its published state machine (ASPLOS 2019)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.peers_world import Play, batch, cores_of, host, lra, mask_of, ways_of
from tools.bench.policies.peers.parties import BAN_S, BATCH, PartiesPolicy
from tools.bench.policies.peers.units import Units, equal_parts


def play(seed: int = 0) -> Play:
    return Play(PartiesPolicy(seed), period_s=0.5)


def moved(before: dict[str, Units], after: dict[str, Units]) -> dict[str, tuple[str, int]]:
    """Owner -> (resource, change) of everything that changed."""
    return {
        owner: (r, after[owner].get(r) - before[owner].get(r))
        for owner in after
        for r in ("cores", "ways", "mba")
        if after[owner].get(r) != before[owner].get(r)
    }


def test_starts_with_an_equal_part_of_everything():
    world = play()
    settings = world.step(lra("a"), lra("b"), batch())
    assert world.memory.parts == dict(zip(("a", "b", BATCH), equal_parts(Units(8, 11, 10), 3), strict=True))
    assert [cores_of(settings[n]) for n in ("a", "b", "be")] == [3, 3, 2]
    assert [ways_of(settings[n]) for n in ("a", "b", "be")] == [4, 4, 3]
    masks = [mask_of(settings[n]) for n in ("a", "b", "be")]
    assert masks[0] | masks[1] | masks[2] == 0x7FF
    assert masks[0] & masks[1] == masks[1] & masks[2] == 0


def test_upsizes_the_worst_by_one_unit_from_batch():
    world = play()
    views = lra("a", 9.8), lra("b", 5.0), batch()  # slack 2 %: below 5 %
    world.step(*views)
    before = world.memory.parts
    world.step(*views)
    changes = moved(before, world.memory.parts)
    assert set(changes) == {"a", BATCH}
    assert changes["a"][1] == 1
    assert changes[BATCH] == (changes["a"][0], -1)


def test_until_met_adds_units_only_while_a_target_is_missed():
    world = Play(PartiesPolicy(until_met=True), period_s=0.5)
    world.step(lra("a", 9.8), lra("b", 9.8), batch())
    before = world.memory.parts
    world.step(lra("a", 9.8), lra("b", 9.8), batch())  # slack 2 %: by its own rule it would take a unit
    assert world.memory.parts == before
    world.step(lra("a", 10.2), lra("b", 9.8), batch())
    assert moved(before, world.memory.parts)["a"][1] == 1
    assert world.policy.name == "parties-until-met"


def test_an_upsize_that_does_not_help_is_kept_and_the_next_resource_follows():
    world = play()
    views = lra("a", 20.0), batch()
    world.step(*views)
    tried = []
    for _ in range(3):
        before = world.memory.parts
        world.step(*views)
        changes = moved(before, world.memory.parts)
        assert changes["a"][1] == 1
        tried.append(changes["a"][0])
    assert sorted(tried) == ["cores", "mba", "ways"], "round the wheel, nothing taken back"


def test_an_upsize_that_helps_stays_with_its_resource():
    world = play()
    world.step(lra("a", 30.0), batch())
    resources = set()
    for latency_ms in (30.0, 25.0, 20.0):
        before = world.memory.parts
        world.step(lra("a", latency_ms), batch())
        resources.add(moved(before, world.memory.parts)["a"][0])
    assert len(resources) == 1


def test_downsizes_only_above_a_fifth_of_slack():
    world = play()
    world.step(lra("a", 8.5), batch())
    before = world.memory.parts
    world.step(lra("a", 8.5), batch())
    assert world.memory.parts == before, "15 % of slack: neither up nor down"
    world.step(lra("a", 7.0), batch())
    changes = moved(before, world.memory.parts)
    assert changes["a"][1] == -1
    assert changes[BATCH][1] == 1


def test_a_downsize_that_violates_is_undone_at_once_and_banned_for_30_s():
    world = play()
    world.step(lra("a", 5.0), batch())
    start = world.memory.parts
    world.step(lra("a", 5.0), batch())
    assert world.memory.parts != start
    world.step(lra("a", 12.0), batch())
    assert world.memory.parts == start
    undone_s = world.now_s
    while world.now_s < undone_s + BAN_S - world.period_s:
        world.step(lra("a", 5.0), batch())
        assert world.memory.parts == start
    world.step(lra("a", 5.0), batch())
    assert world.memory.parts != start, "the ban is over"


def test_takes_from_the_lra_with_most_slack_once_batch_has_one_unit_left():
    world = Play(PartiesPolicy(), host(cores=3, ways=3), period_s=0.5)
    views = lra("a", 20.0), lra("b", 1.0), batch()
    for _ in range(40):
        world.step(*views)
    parts = world.memory.parts
    assert min(parts[BATCH].cores, parts[BATCH].ways, parts[BATCH].mba) == 1
    assert parts["b"].mba == 1, "everything above one unit went to a"
    assert parts["a"].mba == 8


def test_counts_a_migration_after_60_s_without_meeting_targets():
    world = play()
    world.until(59.0, lra("a", 20.0), batch())
    assert world.memory.migrations == 0
    world.until(62.0, lra("a", 20.0), batch())
    assert world.memory.migrations == 1


@settings(max_examples=40, deadline=None)
@given(
    latencies=st.lists(st.tuples(st.floats(1, 40), st.floats(1, 40)), min_size=1, max_size=40),
    seed=st.integers(0, 5),
    cores=st.integers(3, 12),
)
def test_units_are_conserved_and_nobody_falls_below_one(latencies, seed, cores):
    world = Play(PartiesPolicy(seed), host(cores=cores), period_s=0.5)
    for one, other in latencies:
        before = dict(getattr(world.memory, "parts", {}))
        world.step(lra("a", one), lra("b", other), batch())
        parts = world.memory.parts
        for resource, total in (("cores", cores), ("ways", 11), ("mba", 10)):
            assert sum(p.get(resource) for p in parts.values()) == total
            assert min(p.get(resource) for p in parts.values()) >= 1
        if before:
            assert len(moved(before, parts)) in (0, 2), "one unit between two at a time"


@pytest.mark.parametrize("gone", [(), (batch(),)])
def test_without_anybody_to_watch_nothing_is_set(gone):
    assert play().step(*gone) == {}


def test_ways_and_bandwidth_that_are_there_later_are_divided_then_and_go_with_their_mount():
    world = play()
    bare, whole = host(ways=0), host()
    world.step(lra("a"), lra("b"), batch(), machine=bare)
    world.step(lra("a", 9.8), lra("b"), batch(), machine=bare)  # a core moves: what was found out stays
    cores = {owner: units.cores for owner, units in world.memory.parts.items()}
    assert {units.ways for units in world.memory.parts.values()} == {0}
    settings = world.step(lra("a", 9.0), lra("b", 9.0), batch(), machine=whole)
    assert [ways_of(settings[n]) for n in ("a", "b", "be")] == [4, 4, 3]
    assert [units.mba for units in world.memory.parts.values()] == [4, 3, 3]
    assert {owner: units.cores for owner, units in world.memory.parts.items()} == cores
    world.step(lra("a"), lra("b"), batch(), machine=bare)
    assert {(units.ways, units.mba) for units in world.memory.parts.values()} == {(0, 0)}
