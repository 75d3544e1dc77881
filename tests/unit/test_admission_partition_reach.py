"""Several LRAs that need more than the host has: their division by demand, and when it is held and left again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.arbiter import partition_reach
from perphd.admission.arbiter.member import Look, Member
from perphd.admission.arbiter.partition_cores import SharedCores
from perphd.admission.arbiter.partition_reach import SharedReach
from perphd.admission.moves.reach import HANDFUL, KEPT_S, LOOK_AGAIN_S
from tests.unit.admission_partition_world import CrowdWorld, Service
from tests.unit.test_admission_partition import machine
from tests.unit.test_admission_partitioned import look

NAMES = frozenset({"a", "b"})


def pool(total: int = 10, lras: int = 3, *, batch: bool = True) -> SharedCores:
    return SharedCores(total, 2, 1 if batch else 0, lras, batch, can_lend=batch, now_s=100.0)


def people(**demands: float) -> tuple[dict[str, Member], dict[str, Look]]:
    members = {name: Member(1, demand=demand) for name, demand in demands.items()}
    return members, {name: look(name) for name in demands}


def after(rounds: int) -> SharedReach:
    reach = partition_reach.seen(SharedReach(), NAMES, 0.0, all_met=False)
    for number in range(rounds):
        reach = partition_reach.changed(reach, float(number))
    return reach


def test_cores_are_divided_in_proportion_to_demand() -> None:
    members, looks = people(a=16.0, b=8.0, c=8.0)
    assert partition_reach.by_demand(pool(12), members, looks) == {"a": 6, "b": 3, "c": 3}


def test_a_higher_priority_gets_what_it_demands_first() -> None:
    members, _ = people(a=8.0, b=30.0, c=30.0)
    looks = {"a": look("a", priority=200), "b": look("b"), "c": look("c")}
    shared = pool(12)
    found = partition_reach.by_demand(shared, members, looks)
    assert found["a"] == shared.needed(members["a"])
    assert abs(found["b"] - found["c"]) <= 1


@given(
    st.lists(st.floats(0.1, 64.0), min_size=2, max_size=6),
    st.integers(8, 48),
    st.booleans(),
)
def test_everybody_has_a_core_and_nobody_more_than_it_demands(
    demands: list[float], total: int, batch: bool
) -> None:
    members, looks = people(**{f"lra{n}": demand for n, demand in enumerate(demands)})
    shared = pool(total, len(demands), batch=batch)
    found = partition_reach.by_demand(shared, members, looks)
    assert min(found.values()) >= 1
    assert sum(found.values()) <= shared.for_lras
    assert all(found[name] <= max(1, shared.needed(members[name])) for name in found)
    left = shared.for_lras - sum(found.values())
    assert left == 0 or all(found[name] >= shared.needed(members[name]) for name in found)


def test_a_handful_of_rounds_settles_and_each_look_that_fails_waits_longer() -> None:
    assert after(HANDFUL - 1).settled_until_s is None
    reach = after(HANDFUL)
    assert reach.settled_until_s == HANDFUL - 1 + LOOK_AGAIN_S
    reach = partition_reach.seen(reach, NAMES, reach.settled_until_s, all_met=False)
    assert reach.settled_until_s is None
    again_s = HANDFUL - 1 + LOOK_AGAIN_S
    reach = partition_reach.changed(reach, again_s)
    assert reach.settled_until_s == again_s + 2.0 * LOOK_AGAIN_S


def test_it_ends_when_all_have_kept_their_targets_or_somebody_comes() -> None:
    reach = after(HANDFUL)
    met = partition_reach.seen(reach, NAMES, 10.0, all_met=True)
    assert met.settled_until_s == reach.settled_until_s
    assert partition_reach.seen(met, NAMES, 10.0 + KEPT_S, all_met=True).settled_until_s is None
    missed = partition_reach.seen(met, NAMES, 20.0, all_met=False)
    assert partition_reach.seen(missed, NAMES, 10.0 + KEPT_S, all_met=True).settled_until_s is not None
    assert partition_reach.seen(reach, NAMES | {"c"}, 10.0, all_met=False) == SharedReach(NAMES | {"c"})


def test_cores_stay_where_they_are_unless_demand_has_changed_by_much() -> None:
    members, looks = people(a=16.0, b=16.0, c=16.0)
    has = {"a": 4, "b": 3, "c": 3}
    members = {name: Member(has[name], demand=member.demand) for name, member in members.items()}
    reach = after(HANDFUL)
    assert partition_reach.held(reach, pool(), members, looks).counts == has
    members["c"] = Member(3, demand=40.0)
    moved = partition_reach.held(reach, pool(), members, looks).counts
    assert moved["c"] > moved["a"]
    for number in range(8):
        reach = partition_reach.changed(reach, 90.0 + number)
    assert partition_reach.held(reach, pool(), members, looks).counts == has, "often enough for ten minutes"


def test_three_that_need_more_than_there_is_are_left_alone_until_the_load_falls() -> None:
    services = {name: Service(8.0) for name in "abc"}
    world = CrowdWorld(machine(1, 10), services, noise=0.04)
    world.step(300)
    assert world.changes(since=30) == 0
    assert sorted(world.cores(name) for name in "abc") == [3, 3, 4]
    for service in services.values():
        service.demand = 1.0
    world.step(300)
    assert all(world.score(name) >= 1.0 for name in services)
    assert world.cores("pi") >= 3, "batch gets what they do not need any more"
