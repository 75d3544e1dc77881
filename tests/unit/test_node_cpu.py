"""The division of CPUs, one moment at a time and for many alternatives at once: the same laws, the same figures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.domain.cpuset import CpuSet
from perphd.sim.node.cpu import divide, divide_one, fair_shares
from perphd.sim.node.grant import IDLE_WEIGHT, CpuClass, Grant, cpu_classes, grants
from perphd.sim.node.machine import Machine

Claim = tuple[int, float, float]  # CPUs as a mask, weight, cores wanted

claims = st.lists(
    st.tuples(st.integers(1, 255), st.floats(0.29, 10000), st.floats(0, 9)), min_size=1, max_size=5
)


def scalar(wanted: list[Claim]) -> tuple[tuple[CpuClass, ...], list[list[float]]]:
    classes = cpu_classes(tuple(CpuSet(mask) for mask, _, _ in wanted), (CpuSet(255),))
    got = divide_one(
        [float(group.size) for group in classes],
        [group.members for group in classes],
        [weight for _, weight, _ in wanted],
        [demand for _, _, demand in wanted],
    )
    return classes, got


def usage(*wanted: Claim) -> list[float]:
    return [sum(row) for row in scalar(list(wanted))[1]]


def test_equal_groups_get_equal_halves() -> None:
    assert usage((15, 100, 4), (15, 100, 4)) == pytest.approx([2, 2], abs=1e-6)


def test_weights_count_only_where_cpus_are_short() -> None:
    assert usage((15, 300, 4), (15, 100, 4)) == pytest.approx([3, 1], abs=1e-6)
    assert usage((15, 300, 1), (15, 100, 4)) == pytest.approx([1, 3], abs=1e-6)


def test_disjoint_sets_do_not_meet() -> None:
    assert usage((0b0011, 1, 4), (0b1100, 10000, 1)) == pytest.approx([2, 1])


def test_a_claim_moves_away_from_a_confined_neighbour() -> None:
    lra, batch = usage((15, 100, 3), (8, 100, 4))
    assert lra == pytest.approx(3, abs=1e-6)
    assert batch > 0.5


def test_idle_weight_takes_next_to_nothing_but_everything_that_is_left() -> None:
    assert usage((15, 100, 4), (15, IDLE_WEIGHT, 4))[0] > 3.95
    assert usage((15, 100, 1), (15, IDLE_WEIGHT, 4)) == pytest.approx([1, 3], abs=1e-6)


@given(claims)
def test_nothing_is_invented_and_nothing_wasted(wanted: list[Claim]) -> None:
    classes, got = scalar(wanted)
    used = [sum(row[index] for row in got) for index in range(len(classes))]
    assert all(use <= group.size + 1e-6 for use, group in zip(used, classes, strict=True))
    for index, (mask, _, demand) in enumerate(wanted):
        mine = sum(got[index])
        assert mine <= min(demand, CpuSet(mask).mask.bit_count()) + 1e-6
        assert all(share >= 0 for share in got[index])
        if mine < min(demand, mask.bit_count()) - 1e-4:  # whoever lacks something finds nothing free
            for group, use in zip(classes, used, strict=True):
                assert index not in group.members or use >= group.size - 1e-3


@settings(max_examples=60)
@given(st.lists(claims, min_size=1, max_size=4))
def test_many_at_once_are_divided_as_one_by_one(batch: list[list[Claim]]) -> None:
    width = max(len(wanted) for wanted in batch)
    rows = [[*wanted, *[(1, 1.0, 0.0)] * (width - len(wanted))] for wanted in batch]
    machine = Machine(1, 8)
    table = grants(machine, [[Grant(CpuSet(mask), weight) for mask, weight, _ in row] for row in rows])
    demand = np.array([[want for _, _, want in row] for row in rows])
    together = divide(table.layout.size, table.layout.member, table.weight, demand)
    for row, got in zip(rows, together, strict=True):
        _, alone = scalar(row)
        assert got[:, : len(alone[0])] == pytest.approx(np.array(alone), abs=1e-6)


def test_fair_shares_by_weight() -> None:
    assert fair_shares(6.0, {0: 1.0, 1: 9.0, 2: 9.0}, {0: 1.0, 1: 1.0, 2: 4.0}) == pytest.approx(
        {0: 1.0, 1: 1.0, 2: 4.0}
    )


def test_classes_split_at_sockets() -> None:
    machine = Machine(2, 2, 2)
    sockets = tuple(machine.socket_cpus(s) for s in range(2))
    classes = cpu_classes((machine.online, machine.siblings(3)), sockets)
    assert [(str(group.cpus), group.members, group.domain) for group in classes] == [
        ("0-1,4-5", (0,), 0),
        ("2,6", (0,), 1),
        ("3,7", (0, 1), 1),
    ]
