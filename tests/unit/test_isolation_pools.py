"""Who shares a control group where CLOSIDs are short."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from perphd.isolation.pools import Pool, Want, assign
from rdt import Schemata

FULL = 0x7FF


def schemata(mask: int, pct: int) -> Schemata:
    return Schemata.of({"L3": {0: mask, 1: FULL}, "MB": {0: pct}})


masks = st.builds(
    lambda low, ways: (((1 << ways) - 1) << low) & FULL or 1, st.integers(0, 10), st.integers(1, 11)
)
wants = st.builds(Want, st.builds(schemata, masks, st.sampled_from((10, 50, 100))), st.booleans())
wanted_by_name = st.dictionaries(st.sampled_from([f"w{n}" for n in range(12)]), wants, max_size=12)


def homes(pools: tuple[Pool, ...]) -> dict[str, frozenset[str]]:
    return {pool.key: frozenset(pool.names) for pool in pools}


@given(wanted_by_name, wanted_by_name, st.integers(1, 12))
def test_everybody_is_in_one_group_and_nobody_who_is_protected_loses(
    before: Mapping[str, Want], wanted: Mapping[str, Want], room: int
) -> None:
    pools = assign(wanted, homes(assign(before, {}, room)), room)
    assert sorted(name for pool in pools for name in pool.names) == sorted(wanted)
    assert len({pool.key for pool in pools}) == len(pools)
    kinds = {want.lra for want in wanted.values()}
    assert len(pools) <= max(room, len(kinds))
    assert len(pools) == len(wanted) or len(pools) >= min(room, len(wanted)), "nobody shares who need not"
    for pool in pools:
        lra = {wanted[name].lra for name in pool.names}
        assert len(lra) == 1, "an application never shares with batch"
        mask, pct = pool.schemata.get("L3", 0) or 0, pool.schemata.get("MB", 0) or 0
        own = [
            (wanted[name].schemata.get("L3", 0) or 0, wanted[name].schemata.get("MB", 0) or 0)
            for name in pool.names
        ]
        assert mask
        if lra == {True}:
            assert all(each & ~mask == 0 and throttle <= pct for each, throttle in own)
            assert mask & (mask + (mask & -mask)) == 0, "no holes"
        else:
            assert all(pct <= throttle for _, throttle in own)
            assert any(mask & ~each == 0 for each, _ in own)


@given(wanted_by_name, st.integers(1, 12))
def test_the_same_wishes_move_nobody(wanted: Mapping[str, Want], room: int) -> None:
    pools = assign(wanted, {}, room)
    assert assign(wanted, homes(pools), room) == pools


def test_those_alike_share_before_those_unlike_and_batch_before_applications() -> None:
    narrow, wide, app = (
        Want(schemata(0x3, 50), False),
        Want(schemata(0x7F, 50), False),
        Want(schemata(0x700, 100), True),
    )
    other = Want(schemata(0x7C0, 100), True)
    wanted = {"db": app, "web": other, "a": narrow, "b": wide, "c": narrow}
    assert [pool.names for pool in assign(wanted, {}, 5)] == [("a",), ("b",), ("c",), ("db",), ("web",)]
    assert [pool.names for pool in assign(wanted, {}, 4)] == [("a", "c"), ("b",), ("db",), ("web",)]
    assert [pool.names for pool in assign(wanted, {}, 3)] == [("a", "b", "c"), ("db",), ("web",)]
    assert [pool.names for pool in assign(wanted, {}, 2)] == [("a", "b", "c"), ("db", "web")]


def test_a_group_stays_with_those_who_are_in_it_and_no_two_have_one_name() -> None:
    narrow, wide = Want(schemata(0x3, 50), False), Want(schemata(0xF, 50), False)
    present = {"b": frozenset({"a", "b"})}
    assert homes(assign({"a": narrow, "b": wide}, present, 2)) == {"b": {"b"}, "a": {"a"}}
    assert homes(assign({"a": narrow, "c": wide}, {"c": frozenset({"a"})}, 2)) == {"c": {"a"}, "c~2": {"c"}}


def test_batch_that_must_share_gets_a_mask_that_the_machine_accepts() -> None:
    wanted = {name: Want(schemata(mask, 50), False) for name, mask in (("a", 0b0011), ("b", 0b0110))}
    (narrow,) = assign(wanted, {}, 1)
    assert narrow.schemata.get("L3", 0) == 0b0010
    (shared,) = assign(wanted, {}, 1, least_bits=2)
    assert shared.schemata.get("L3", 0) == 0b0011
