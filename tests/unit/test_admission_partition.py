from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.admission.arbiter import partition
from perphd.admission.arbiter.partition import (
    NEVER,
    Anchor,
    Claim,
    ScoreBands,
    Seen,
    busy_share,
    busy_shares,
    chances,
    expected,
    note,
    queue_estimates,
    share_out,
    worst,
)
from perphd.admission.arbiter.placement import ROOM, cpus_of, lend, place
from perphd.domain.cpuset import CpuSet
from perphd.domain.topology import Core, L3Domain, Topology


def machine(sockets: int, per_socket: int, threads: int = 2) -> Topology:
    total = sockets * per_socket
    cores = tuple(
        Core(n // per_socket, n % per_socket, CpuSet.of(n + t * total for t in range(threads)))
        for n in range(total)
    )
    domains = tuple(
        L3Domain(s, CpuSet.of(cpu for c in cores if c.socket == s for cpu in c.cpus), 1 << 24)
        for s in range(sockets)
    )
    return Topology(cores, domains, (), CpuSet.of(range(total * threads)))


@st.composite
def claims(draw: st.DrawFn) -> tuple[int, list[Claim]]:
    count = draw(st.integers(1, 8))
    total = draw(st.integers(count, 40))
    found = []
    for n in range(count):
        steps = draw(st.lists(st.floats(0.0, 0.5), min_size=1, max_size=12))
        scores = [0.01]
        for step in steps:
            scores.append(scores[-1] + step)
        found.append(
            Claim(f"app{n}", draw(st.sampled_from([50, 100])), draw(st.integers(0, 8)), tuple(scores))
        )
    return total, found


@settings(max_examples=50)
@given(claims())
def test_nothing_is_given_twice_and_everybody_has_a_core(case: tuple[int, list[Claim]]) -> None:
    total, asked = case
    got = share_out(total, asked)
    assert set(got) == {c.name for c in asked}
    assert sum(got.values()) <= total
    for claim in asked:
        assert 1 <= got[claim.name] <= max(claim.needs(1.0), 1)


@settings(max_examples=50)
@given(claims())
def test_within_a_class_nobody_could_be_raised_without_lowering_somebody_to_less(
    case: tuple[int, list[Claim]],
) -> None:
    """Max-min: the worst score is the greatest that any division has; here against equal parts and one core each."""
    total, asked = case
    peers = [c for c in asked if c.priority == asked[0].priority]
    got = share_out(total, peers)
    equal = {c.name: total // len(peers) for c in peers}
    assert worst(got, peers) >= worst(equal, peers) - 1e-9


@settings(max_examples=50)
@given(claims())
def test_what_is_left_could_bring_nobody_further(case: tuple[int, list[Claim]]) -> None:
    total, asked = case
    got = share_out(total, asked)
    left = total - sum(got.values())
    for claim in asked:
        if claim.score(got[claim.name]) < 1.0:
            assert claim.score(got[claim.name] + left) <= claim.score(got[claim.name]) + 1e-12


def test_who_is_more_important_is_served_first() -> None:
    steep = (0.1, 0.2, 0.4, 0.8, 1.1)
    asked = [Claim("gold", 200, 1, steep), Claim("iron", 100, 5, steep)]
    assert share_out(6, asked) == {"gold": 5, "iron": 1}
    assert share_out(8, asked) == {"gold": 5, "iron": 3}
    with pytest.raises(ValueError, match="at least one"):
        share_out(1, asked)


@given(st.floats(0.0, 100.0), st.integers(1, 64), st.integers(1, 2))
def test_cores_are_less_busy_the_more_there_are(demand: float, cores: int, threads: int) -> None:
    assert busy_share(demand, cores + 1, threads) <= busy_share(demand, cores, threads) + 1e-9
    assert busy_shares(demand, cores, threads)[-1] == pytest.approx(busy_share(demand, cores, threads))


SEEN = st.lists(
    st.builds(
        Seen,
        cores=st.integers(1, 12),
        demand=st.floats(0.1, 12.0),
        score=st.floats(0.05, 1.5),
        until_s=st.floats(-10.0, 500.0),
        times=st.integers(0, 4),
    ),
    max_size=6,
)


def estimates(
    seen: Sequence[Seen], most: int, demand: float, now_s: float, anchor: Anchor | None = None
) -> ScoreBands:
    """Scores by queueing with 1 to ``most`` cores of two threads."""
    return queue_estimates(seen, busy_shares(demand, most, 2), 2, now_s, anchor)


@given(SEEN, st.floats(0.1, 12.0), st.integers(1, 16))
def test_experience_overrules_the_bands_for_every_number_of_cores(
    seen: list[Seen], demand: float, most: int
) -> None:
    bands = estimates(seen, most, demand, 0.0)
    found = chances(seen, demand, 0.0, most, lambda: bands)
    scores = expected(seen, demand, 0.0, bands)
    assert len(found) == len(scores) == most
    for cores in range(1, most + 1):
        failed = [
            s for s in seen if not s.good and cores <= s.cores and demand * partition.LESS_DEMAND >= s.demand
        ]
        good = [s for s in seen if s.good and cores >= s.cores and demand <= s.demand * partition.SAME_DEMAND]
        band = bands.band(cores)
        guess = 0.5 * (1.0 + math.erf(math.log(band.value) / band.sd / math.sqrt(2.0)))
        guess = min(max(guess * (partition.FAILED_BEFORE if failed else 1.0), NEVER), partition.KNOWN)
        if any(s.until_s > 0.0 for s in failed):
            guess = NEVER
        elif any(s.until_s > 0.0 for s in good):
            guess = partition.KNOWN
        assert found[cores - 1] == pytest.approx(guess)
        score = band.value
        for s in seen:
            if s.until_s > 0.0 and s in good:
                score = max(score, s.score)
            elif s.until_s > 0.0 and not s.good and cores <= s.cores and demand * 1.05 >= s.demand:
                score = min(score, s.score)
        assert scores[cores - 1] == pytest.approx(score)


@settings(max_examples=50)
@given(claims(), st.integers(0, 40))
def test_the_common_level_is_the_highest_that_fits(case: tuple[int, list[Claim]], spare: int) -> None:
    asked = case[1]
    found = partition._highest_level(asked, spare)
    levels = {min(score, 1.0) for claim in asked for score in claim.scores}
    fitting = [each for each in levels if sum(c.needs(each) - 1 for c in asked) <= spare]
    assert found == max(fitting)


@given(
    SEEN,
    st.floats(0.1, 24.0),
    st.none()
    | st.builds(Anchor, st.floats(1.0, 4.0), st.floats(0.05, 0.97), st.integers(1, 12), st.floats(0.0, 1.0)),
)
def test_the_queue_estimate_never_falls_with_more_cores(
    seen: list[Seen], demand: float, anchor: Anchor | None
) -> None:
    scores = estimates(seen, 24, demand, 0.0, anchor).value.tolist()
    assert all(more >= less * (1.0 - 1e-9) for less, more in pairwise(scores))


def known(
    seen: Sequence[Seen], cores: int, demand: float, now_s: float, anchor: Anchor | None = None
) -> float:
    """Chance by experience and queueing."""
    return chances(seen, demand, now_s, cores, lambda: estimates(seen, cores, demand, now_s, anchor))[-1]


def test_experience_is_believed_as_far_as_it_reaches() -> None:
    seen = note((), Seen(3, 2.0, 0.7, 0.0, times=1), 0.0, 60.0)
    assert known(seen, 3, 2.0, 1.0) == partition.NEVER
    assert known(seen, 2, 2.5, 1.0) == partition.NEVER
    assert known(seen, 4, 1.5, 1.0) > partition.NEVER
    assert known(seen, 3, 2.0, 61.0) > partition.NEVER  # for a while only
    seen = note(seen, Seen(4, 2.0, 1.2, 400.0), 2.0, 60.0)
    assert known(seen, 4, 2.0, 3.0) == partition.KNOWN
    assert known(seen, 5, 1.9, 3.0) == partition.KNOWN
    assert expected(seen, 2.0, 3.0, estimates(seen, 3, 2.0, 3.0))[-1] <= 0.7


def test_nothing_is_estimated_where_experience_leaves_no_number_open() -> None:
    seen = (Seen(3, 2.0, 0.7, 60.0, times=1), Seen(4, 2.0, 1.2, 60.0))

    def unexpected() -> ScoreBands:
        raise AssertionError

    found = chances(seen, 2.0, 0.0, 6, unexpected)
    assert found == [NEVER, NEVER, NEVER, partition.KNOWN, partition.KNOWN, partition.KNOWN]


def test_what_failed_before_has_half_the_chance_when_it_may_be_tried_again() -> None:
    anchor = Anchor(1.5, 0.4, 4, 0.5)
    plain = known((), 3, 3.0, 100.0, anchor)
    failed = Seen(3, 3.0, 0.9, until_s=60.0, times=1)
    assert known((failed,), 3, 3.0, 50.0, anchor) == NEVER
    assert known((failed,), 3, 3.0, 100.0, anchor) == pytest.approx(max(0.5 * plain, NEVER))
    assert known((failed,), 3, 2.5, 100.0, anchor) == known((), 3, 2.5, 100.0, anchor)  # less is asked


def test_a_failure_that_is_repeated_is_believed_twice_as_long() -> None:
    seen: tuple[Seen, ...] = ()
    spans = []
    now_s = 0.0
    for _ in range(4):
        seen = note(seen, Seen(3, 2.0, 0.7, 0.0, times=1), now_s, 60.0)
        spans.append(seen[-1].until_s - now_s)
        now_s = seen[-1].until_s + 1.0
    assert spans == [60.0, 120.0, 240.0, 480.0]
    # Not repeated for as long as it was believed, it is forgotten.
    seen = note(seen, Seen(3, 2.0, 0.7, 0.0, times=1), now_s + 1000.0, 60.0)
    assert seen[-1].times == 1


def test_a_failure_that_cost_much_is_believed_for_as_long_as_that_justifies() -> None:
    failed = Seen(3, 2.0, 0.7, 0.0, times=1)
    seen = note((), failed, 0.0, 60.0, least_s=6000.0)
    assert known(seen, 3, 2.0, 5999.0) == NEVER
    assert known(seen, 3, 1.7, 10.0) > NEVER  # less is asked
    # A cheaper failure does not shorten that.
    assert note(seen, failed, 1000.0, 60.0, least_s=30.0)[-1].until_s == 6000.0
    assert note((), failed, 0.0, 60.0, least_s=30.0)[-1].until_s == 60.0


# -- which cores ---------------------------------------------------------------------------------------------


@st.composite
def moves(draw: st.DrawFn) -> tuple[Topology, list[dict[str, int]]]:
    topology = machine(draw(st.integers(1, 3)), draw(st.integers(2, 12)), draw(st.integers(1, 2)))
    total = len(topology.usable_cores)
    rows = []
    for _ in range(draw(st.integers(1, 5))):
        left, row = total, {}
        for n in range(draw(st.integers(1, 5))):
            count = draw(st.integers(0, 6))
            if 0 < count <= left:
                row[f"app{n}"] = count
                left -= count
        rows.append(row)
    return topology, rows


@settings(max_examples=30)
@given(moves())
def test_sets_are_disjoint_whole_and_of_the_size_that_was_asked_for(
    case: tuple[Topology, list[dict[str, int]]],
) -> None:
    topology, rows = case
    before: dict[str, tuple[int, ...]] = {}
    for row in rows:
        after = place(topology, row, before)
        assert {n: len(c) for n, c in after.items()} == row
        used = [core for cores in after.values() for core in cores]
        assert len(used) == len(set(used))
        assert set(used) <= set(range(len(topology.usable_cores)))
        for cores in after.values():
            cpus = cpus_of(topology, cores)
            assert not cpus - topology.usable
            for core in topology.usable_cores:  # siblings together
                assert not core.cpus & cpus or not core.cpus - cpus
        assert place(topology, row, after) == after  # nothing moves without a reason
        before = after


def test_who_grows_keeps_its_cores_and_stays_on_its_socket() -> None:
    topology = machine(2, 8)
    first = place(topology, {"a": 3, "b": 3}, {})
    assert {topology.usable_cores[c].socket for c in first["a"]} != {
        topology.usable_cores[c].socket for c in first["b"]
    }
    second = place(topology, {"a": 6, "b": 2}, first)
    assert set(first["a"]) < set(second["a"])
    assert set(second["b"]) < set(first["b"])
    assert len({topology.usable_cores[c].socket for c in second["a"]}) == 1


def test_who_does_not_fit_beside_its_own_moves_whole_if_it_can() -> None:
    topology = machine(2, 4)
    placed = place(topology, {"a": 2, "b": 2}, {"a": (0, 1), "b": (2, 3)})
    grown = place(topology, {"a": 3, "b": 2}, placed)
    assert {topology.usable_cores[c].socket for c in grown["a"]} == {1}
    split = place(topology, {"a": 6, "b": 2}, placed)
    assert len(split["a"]) == 6
    assert set(split["b"]) == {2, 3}


def test_the_least_important_whom_it_harms_least_lends_and_goes_on_lending() -> None:
    placed = {"a": (0, 1, 2), "b": (3, 4), "c": (5, 6, 7, 8)}
    alike = {"a": 100, "b": 100, "c": 100}
    assert lend(1, placed, alike, {}, ()) == (8,)  # a smaller part of many cores
    assert lend(1, placed, {"a": 100, "b": 50, "c": 100}, {}, ()) == (4,)
    assert lend(1, placed, alike, {}, (0,)) == (0,)  # not moved without need
    assert lend(1, placed, {"a": 100, "b": 50, "c": 100}, {}, (0,)) == (
        4,
    )  # nor left to a more important one
    assert lend(2, placed, alike, {}, (9,)) == (2, 8)
    assert lend(3, {"a": (0,), "b": (1,)}, {"a": 1, "b": 2}, {}, ()) == (0, 1)


def test_a_guest_leaves_whom_it_brings_below_target_for_whom_it_does_not() -> None:
    placed = {"a": (0, 1, 2), "b": (3, 4), "c": (5, 6, 7, 8)}
    alike = {"a": 100, "b": 100, "c": 100}
    assert lend(1, placed, alike, {"a": 1.5, "b": 1.0, "c": 1.2}, ()) == (2,)
    assert lend(1, placed, alike, {"a": 1.5, "b": 1.0, "c": 0.95}, (8,)) == (2,)
    assert lend(1, placed, alike, {"a": 1.5, "b": 1.0, "c": 1.06}, (8,)) == (8,)  # it has room
    assert lend(1, placed, alike, {"a": 1.1, "b": 1.0, "c": 0.95}, (8,)) == (8,)  # nobody has clearly more


@given(data=st.data())
def test_what_is_lent_are_so_many_cores_of_the_least_important(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    cores = iter(range(sum(sizes)))
    placed = {f"l{n}": tuple(next(cores) for _ in range(size)) for n, size in enumerate(sizes)}
    priorities = {name: data.draw(st.sampled_from([50, 100])) for name in placed}
    levels = {name: data.draw(st.floats(0.05, 10.0)) for name in placed if data.draw(st.booleans())}
    before = tuple(sorted(data.draw(st.sets(st.integers(0, sum(sizes) - 1)))))
    count = data.draw(st.integers(1, sum(sizes)))
    lent = lend(count, placed, priorities, levels, before)
    assert len(set(lent)) == len(lent) == count
    least = {
        core for name, own in placed.items() if priorities[name] == min(priorities.values()) for core in own
    }
    assert set(lent) <= least or set(lent) > least
    if all(levels.get(name, 1.0) >= ROOM for name in placed):  # who is not in levels is taken to be on target
        assert lend(count, placed, priorities, levels, lent) == lent
