"""The division of CPUs: laws that hold for every set of claims."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.cpuset import CpuSet
from perphd.sim.cpu import Claim, classes, divide, fair_shares

ALL = CpuSet(0b1111)


def usage(*claims: Claim) -> list[float]:
    return [sum(row) for row in divide(claims)]


def test_equal_groups_get_equal_halves() -> None:
    assert usage(Claim(ALL, 100, 4), Claim(ALL, 100, 4)) == pytest.approx([2, 2], abs=1e-6)


def test_weights_count_only_where_cpus_are_short() -> None:
    assert usage(Claim(ALL, 300, 4), Claim(ALL, 100, 4)) == pytest.approx([3, 1], abs=1e-6)
    assert usage(Claim(ALL, 300, 1), Claim(ALL, 100, 4)) == pytest.approx([1, 3], abs=1e-6)


def test_disjoint_sets_do_not_meet() -> None:
    assert usage(Claim(CpuSet(0b0011), 1, 4), Claim(CpuSet(0b1100), 10000, 1)) == pytest.approx([2, 1])


def test_a_claim_moves_away_from_a_confined_neighbour() -> None:
    lra, batch = usage(Claim(ALL, 100, 3), Claim(CpuSet(0b1000), 100, 4))
    assert lra == pytest.approx(3, abs=1e-6)
    assert batch > 0.5


def test_idle_weight_takes_next_to_nothing_but_everything_that_is_left() -> None:
    idle = 100 * 3 / 1024
    assert usage(Claim(ALL, 100, 4), Claim(ALL, idle, 4))[0] > 3.95
    assert usage(Claim(ALL, 100, 1), Claim(ALL, idle, 4)) == pytest.approx([1, 3], abs=1e-6)


claims = st.lists(
    st.builds(
        Claim,
        cpus=st.integers(1, 255).map(CpuSet),
        weight=st.floats(0.29, 10000),
        demand_cores=st.floats(0, 9),
    ),
    min_size=1,
    max_size=5,
)


@given(claims)
def test_nothing_is_invented_and_nothing_wasted(wanted: list[Claim]) -> None:
    got = divide(wanted)
    groups = classes(tuple(claim.cpus for claim in wanted))
    used = [sum(row[index] for row in got) for index in range(len(groups))]
    for group, total in zip(groups, used, strict=True):
        assert total <= group.size + 1e-6
    for who, (claim, row) in enumerate(zip(wanted, got, strict=True)):
        limit = min(claim.demand_cores, len(claim.cpus))
        assert sum(row) <= limit + 1e-6
        for group, share in zip(groups, row, strict=True):
            assert share >= 0
            assert share == 0 or who in group.members
        if sum(row) < limit - 1e-6:  # it lacks something: then nothing that it may use is free
            for group, total in zip(groups, used, strict=True):
                assert who not in group.members or total >= group.size - 1e-6


@given(claims)
def test_classes_partition_the_cpus(wanted: list[Claim]) -> None:
    union = CpuSet()
    for claim in wanted:
        union = union | claim.cpus
    groups = classes(tuple(claim.cpus for claim in wanted))
    assert sum(group.size for group in groups) == len(union)
    for group in groups:
        for who, claim in enumerate(wanted):
            assert (group.cpus <= claim.cpus) == (who in group.members)


@given(
    st.floats(0.01, 64),
    st.dictionaries(st.integers(0, 9), st.tuples(st.floats(0.001, 64), st.floats(0.01, 1e4)), min_size=1),
)
def test_fair_shares_give_all_that_is_wanted_or_all_there_is(
    room: float, wants: dict[int, tuple[float, float]]
) -> None:
    shares = fair_shares(room, {k: v[0] for k, v in wants.items()}, {k: v[1] for k, v in wants.items()})
    total = sum(want for want, _ in wants.values())
    assert sum(shares.values()) == pytest.approx(min(room, total), rel=1e-6)
    assert all(share <= wants[who][0] + 1e-9 for who, share in shares.items())
