"""Masks: the laws of a CBM, and of every layout; the fewest ways remapped, checked against brute force."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdt.cbm import NO_WAYS, Cbm
from rdt.masks import EFFORT, CacheDomain, Demand, Infeasible, Layout, Use, solve
from rdt.pooling import Pool, pool

cbms = st.integers(0, (1 << 20) - 1).map(Cbm)


# --- a mask as a value -----------------------------------------------------------------------------------------


@given(cbms, cbms)
def test_a_mask_is_a_set_of_ways(one: Cbm, other: Cbm) -> None:
    a, b = set(one), set(other)
    assert set(one | other) == a | b
    assert set(one & other) == a & b
    assert set(one - other) == a - b
    assert (one <= other) == (a <= b)
    assert (one < other) == (a < b)
    assert one.ways == len(a)
    assert bool(one) == bool(a)
    assert all((way in one) == (way in a) for way in range(-1, 21))


@given(cbms)
def test_a_mask_is_the_union_of_its_runs(mask: Cbm) -> None:
    runs = mask.runs()
    assert sum(run.bits for run in runs) == mask.bits
    assert all(run.contiguous for run in runs)
    assert all(low.last + 1 < high.first for low, high in itertools.pairwise(runs))
    assert mask.contiguous == (len(runs) == 1)


@given(cbms)
def test_text_and_mirror_go_there_and_back(mask: Cbm) -> None:
    assert Cbm.parse(mask.text(20)) == mask
    assert len(mask.text(20)) == 5
    mirrored = mask.mirrored(20)
    assert {19 - way for way in mirrored} == set(mask)
    assert mirrored.mirrored(20) == mask


def test_a_mask_reads_what_the_kernel_shows() -> None:
    assert Cbm.parse("07f") == Cbm.span(0, 7)
    assert Cbm.parse("0x7F\n") == Cbm(0x7F)
    assert Cbm(0x7F).text(11) == "07f"
    assert (Cbm(0x600).first, Cbm(0x600).last) == (9, 10)
    for text in ("", "xyz", "-1", "7f,3"):
        with pytest.raises(ValueError, match="mask"):
            Cbm.parse(text)


def test_the_empty_mask_has_no_ends_and_is_not_contiguous() -> None:
    assert not NO_WAYS.contiguous
    assert NO_WAYS.runs() == ()
    assert NO_WAYS.mirrored(0) == NO_WAYS
    with pytest.raises(ValueError, match="empty"):
        _ = NO_WAYS.first
    with pytest.raises(ValueError, match="empty"):
        _ = NO_WAYS.last
    with pytest.raises(ValueError, match="fit"):
        Cbm(8).mirrored(3)


# --- layouts ---------------------------------------------------------------------------------------------------

ELEVEN = {0: CacheDomain(Cbm(0x7FF), 1, shareable=Cbm(0x600))}


def exclusive(group: str, ways: int, domain: int = 0) -> Demand:
    return Demand.of(group, {domain: ways}, Use.EXCLUSIVE)


def shared(group: str, ways: int, domain: int = 0) -> Demand:
    return Demand.of(group, {domain: ways})


def batch(group: str, ways: int, domain: int = 0) -> Demand:
    return Demand.of(group, {domain: ways}, Use.BATCH)


def mask(layout: Layout, group: str, domain: int = 0) -> str:
    return str(layout.masks_of(group)[domain])


def test_batch_has_the_end_that_io_fills_and_exclusive_masks_begin_at_the_other() -> None:
    layout = solve([exclusive("db", 4), exclusive("mq", 2), batch("etl", 3)], ELEVEN, closids=8)
    assert (mask(layout, "db"), mask(layout, "mq"), mask(layout, "etl")) == ("f", "30", "700")
    assert layout.domains[0].free == Cbm(0xC0)
    assert layout.domains[0].common == Cbm(0x7C0)
    assert layout.remapped_ways == 9
    low = {0: CacheDomain(Cbm(0x7FF), 1, shareable=Cbm(0x3))}
    layout = solve([exclusive("db", 4), exclusive("mq", 2), batch("etl", 3)], low, closids=8)
    assert (mask(layout, "db"), mask(layout, "mq"), mask(layout, "etl")) == ("780", "60", "7")


def test_the_same_demands_again_change_nothing_and_a_small_change_stays_small() -> None:
    demands = [exclusive("a", 3), exclusive("b", 2), exclusive("c", 2), batch("z", 2)]
    first = solve(demands, ELEVEN, closids=8)
    again = solve(demands, ELEVEN, closids=8, present=first)
    assert again.remapped_ways == 0
    assert again.classes == first.classes
    smaller = solve([exclusive("a", 3), exclusive("b", 1), *demands[2:]], ELEVEN, closids=8, present=first)
    assert smaller.remapped_ways == 0
    assert mask(smaller, "c") == mask(first, "c")
    grown = solve([exclusive("a", 3), exclusive("b", 2), exclusive("c", 3), demands[3]], ELEVEN, closids=8,
                  present=first)  # fmt: skip
    assert grown.remapped_ways == 1
    assert [mask(grown, each) for each in "abz"] == [mask(first, each) for each in "abz"]


def test_a_newcomer_takes_the_gap_and_nobody_moves() -> None:
    first = solve([exclusive("a", 3), exclusive("b", 2), exclusive("c", 2), batch("z", 2)], ELEVEN, closids=8)
    second = solve([exclusive("a", 3), exclusive("c", 2), exclusive("n", 2), batch("z", 3)], ELEVEN, closids=8,
                   present=first)  # fmt: skip
    assert mask(second, "n") == mask(first, "b")
    assert second.remapped_ways == 2 + 1


def test_shared_masks_may_overlap_but_avoid_it_where_there_is_room() -> None:
    layout = solve([shared("a", 4), shared("b", 4), batch("z", 3)], ELEVEN, closids=8)
    assert (mask(layout, "a"), mask(layout, "b"), mask(layout, "z")) == ("f", "f0", "700")
    layout = solve([exclusive("x", 5), shared("a", 4), shared("b", 4), batch("z", 3)], ELEVEN, closids=8)
    assert Cbm.parse(mask(layout, "a")) <= layout.domains[0].common
    assert not Cbm.parse(mask(layout, "x")) & layout.domains[0].common


def test_ways_shared_with_io_and_ways_of_others_are_never_exclusive() -> None:
    with pytest.raises(Infeasible) as failure:
        solve([exclusive("db", 10)], ELEVEN, closids=8)
    (shortage,) = failure.value.shortages
    assert (shortage.domain, shortage.wanted, shortage.available) == (0, 10, 9)
    assert str(failure.value) == (
        "domain 0 (11 ways): 10 exclusive ways are wanted beside 0 shared ones, but only 9 are left; "
        "2 are shared with I/O and cannot be exclusive"
    )
    others = {0: CacheDomain(Cbm(0xFF), 1, taken=Cbm(0x18))}
    assert mask(solve([exclusive("a", 3), exclusive("b", 3)], others, closids=8), "b") == "e0"
    with pytest.raises(
        Infeasible, match="2 are taken by others; they are enough in number, but not adjacent"
    ):
        solve([exclusive("a", 4), exclusive("b", 2)], others, closids=8)


def test_every_domain_that_lacks_ways_is_told() -> None:
    caches = {3: CacheDomain(Cbm(0xF)), 16: CacheDomain(Cbm(0xF))}
    with pytest.raises(Infeasible) as failure:
        solve(
            [Demand.of("a", {3: 3, 16: 4}, Use.EXCLUSIVE), batch("z", 2, 3), batch("y", 1, 16)],
            caches,
            closids=8,
        )
    assert [(each.domain, each.wanted, each.available) for each in failure.value.shortages] == [
        (3, 3, 2),
        (16, 4, 3),
    ]
    with pytest.raises(Infeasible, match="a shared mask needs 5 adjacent ways, but at most 4 are adjacent"):
        solve([shared("a", 5, 3)], caches, closids=8)


def test_a_group_has_a_narrow_mask_where_it_asks_for_nothing() -> None:
    caches = {0: CacheDomain(Cbm(0xFF), 2), 1: CacheDomain(Cbm(0xFF), 2)}
    layout = solve([exclusive("a", 6), exclusive("b", 1, 1)], caches, closids=8)
    assert layout.masks_of("a") == {0: Cbm(0x3F), 1: Cbm(0xC0)}
    assert layout.masks_of("b") == {0: Cbm(0xC0), 1: Cbm(0x03)}


def test_wrong_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="named twice: a"):
        solve([shared("a", 1), shared("a", 2)], ELEVEN, closids=8)
    with pytest.raises(ValueError, match="no cache domain 7"):
        solve([shared("a", 1, 7)], ELEVEN, closids=8)
    with pytest.raises(ValueError, match="at least one way"):
        shared("a", 0)
    with pytest.raises(ValueError, match="must have ways"):
        CacheDomain(NO_WAYS)
    with pytest.raises(KeyError):
        Layout().masks_of("a")


def test_a_layout_read_back_is_a_place_to_start_from() -> None:
    present = Layout.present(
        {"a": {0: Cbm(0x1C)}, "p": {0: Cbm(0x3)}, "q": {0: Cbm(0x3)}}, pools=[("p", "q")]
    )
    assert present.pools == (("p", "q"),)
    layout = solve(
        [exclusive("a", 3), exclusive("p", 1), exclusive("q", 1)], ELEVEN, closids=2, present=present
    )
    assert layout.remapped_ways == 0
    assert (mask(layout, "a"), mask(layout, "q")) == ("1c", "3")


# --- the laws, and brute force ----------------------------------------------------------------------------------

USES = st.sampled_from(Use)


@st.composite
def problems(draw: st.DrawFn, widest: int = 8, groups: int = 4) -> tuple[CacheDomain, list[Demand], Layout]:
    width = draw(st.integers(1, widest))
    full = (1 << width) - 1
    holes = draw(st.one_of(st.just(0), st.integers(0, full)))
    cbm_mask = full & ~holes or full
    shareable = draw(st.sampled_from([0, 0, full & ~(full >> 2), 1, 3])) & cbm_mask
    taken = draw(st.sampled_from([0, 0, 0, 1 << width // 2])) & cbm_mask
    cache = CacheDomain(Cbm(cbm_mask), draw(st.integers(1, min(2, width))), Cbm(shareable), Cbm(taken))
    names = [chr(ord("a") + number) for number in range(draw(st.integers(1, groups)))]
    demands = [Demand.of(name, {0: draw(st.integers(1, max(1, width // 2)))}, draw(USES)) for name in names]
    masks = {name: {0: Cbm(draw(st.integers(0, full)))} for name in names if draw(st.booleans())}
    return cache, demands, Layout.present(masks)


def attempt(
    demands: list[Demand], cache: CacheDomain, present: Layout, effort: int = EFFORT
) -> Layout | Infeasible:
    try:
        return solve(demands, {0: cache}, closids=8, present=present, effort=effort)
    except Infeasible as failure:
        return failure


@settings(max_examples=300, deadline=None)
@given(problems(widest=20, groups=8), st.randoms(use_true_random=False))
def test_every_layout_keeps_the_laws(
    problem: tuple[CacheDomain, list[Demand], Layout], shuffled: random.Random
) -> None:
    cache, demands, present = problem
    layout = attempt(demands, cache, present)
    if isinstance(layout, Infeasible):
        assert all(each.wanted > each.available or "not adjacent" in each.text for each in layout.shortages)
        return
    masks = {each.group: layout.masks_of(each.group)[0] for each in demands}
    own = [masks[each.group] for each in demands if each.use is Use.EXCLUSIVE]
    rest = [masks[each.group] for each in demands if each.use is not Use.EXCLUSIVE]
    end = cache.cbm_mask.first if cache.batch_end_is_low else cache.cbm_mask.last
    for each in demands:
        assert masks[each.group].contiguous
        assert masks[each.group] <= cache.cbm_mask
        assert masks[each.group].ways == max(each.ways[0], cache.min_cbm_bits)
        assert each.use is not Use.BATCH or end in masks[each.group]
    union = NO_WAYS
    for mine in own:
        assert mine <= cache.private
        assert not mine & union
        union |= mine
    told = layout.domains[0]
    assert not union & told.common
    for theirs in rest:
        assert theirs <= told.common
        union |= theirs
    assert union | told.free == cache.cbm_mask
    assert not union & told.free
    held = {group: each.masks[0] for each in present.classes for group in each.groups}
    assert told.remapped_ways == sum((masks[name] - held.get(name, NO_WAYS)).ways for name in masks)
    again = demands[:]
    shuffled.shuffle(again)
    assert solve(again, {0: cache}, closids=8, present=present) == layout
    settled = solve(demands, {0: cache}, closids=8, present=layout)
    assert settled.remapped_ways == 0
    assert settled.classes == layout.classes


def every_layout(cache: CacheDomain, demands: list[Demand]) -> Iterator[tuple[Cbm, ...]]:
    """All layouts by the rules, from all masks that there are."""
    end = cache.cbm_mask.first if cache.batch_end_is_low else cache.cbm_mask.last
    choices = []
    for each in demands:
        ways = max(each.ways[0], cache.min_cbm_bits)
        spans = [Cbm.span(first, ways) for first in range(cache.width - ways + 1)]
        inside = cache.private if each.use is Use.EXCLUSIVE else cache.cbm_mask
        choices.append(
            [span for span in spans if span <= inside and (each.use is not Use.BATCH or end in span)]
        )
    kinds = [each.use is Use.EXCLUSIVE for each in demands]
    for masks in itertools.product(*choices):
        own = [mask for mask, kind in zip(masks, kinds, strict=True) if kind]
        rest = [mask for mask, kind in zip(masks, kinds, strict=True) if not kind]
        if any(one & other for one, other in itertools.combinations(own, 2)):
            continue
        if own and rest:
            if cache.batch_end_is_low and min(each.first for each in own) <= max(each.last for each in rest):
                continue
            if not cache.batch_end_is_low and max(each.last for each in own) >= min(
                each.first for each in rest
            ):
                continue
        yield masks


@settings(max_examples=250, deadline=None)
@given(problems())
def test_nothing_remaps_less_than_the_answer(problem: tuple[CacheDomain, list[Demand], Layout]) -> None:
    cache, demands, present = problem
    held = {group: each.masks[0] for each in present.classes for group in each.groups}

    def cost(masks: tuple[Cbm, ...]) -> tuple[int, int]:
        pairs = [(held.get(each.group, NO_WAYS), mask) for each, mask in zip(demands, masks, strict=True)]
        return sum((new - old).ways for old, new in pairs), sum(new != old for old, new in pairs)

    best = min(map(cost, every_layout(cache, demands)), default=None)
    layout = attempt(demands, cache, present, effort=100_000)
    if isinstance(layout, Infeasible):
        assert best is None
        return
    assert layout.domains[0].proven
    assert cost(tuple(layout.masks_of(each.group)[0] for each in demands)) == best


def test_what_the_search_does_not_prove_it_does_not_claim() -> None:
    rng = random.Random(3)
    twenty = {0: CacheDomain(Cbm(0xFFFFF))}

    def demands() -> list[Demand]:
        ways = [1] * 15
        for _ in range(3):
            ways[rng.randrange(15)] += 1
        return [exclusive(f"g{number:02}", each) for number, each in enumerate(ways)] + [batch("z", 2)]

    unproven = 0
    for _ in range(12):
        first, second = demands(), demands()
        rng.shuffle(first)
        present = solve(first, twenty, closids=16)
        quick = solve(second, twenty, closids=16, present=present, effort=4)
        exact = solve(second, twenty, closids=16, present=present, effort=100_000)
        assert exact.domains[0].proven
        assert exact.remapped_ways <= quick.remapped_ways
        if quick.domains[0].proven:
            assert quick.remapped_ways == exact.remapped_ways
        unproven += not quick.domains[0].proven
    assert unproven


# --- pools -----------------------------------------------------------------------------------------------------


def test_the_most_alike_share_a_closid_and_batch_goes_first() -> None:
    demands = [
        exclusive("a", 2),
        exclusive("b", 2),
        shared("c", 3),
        batch("x", 1),
        batch("y", 4),
        batch("z", 3),
    ]
    layout = solve(demands, ELEVEN, closids=5)
    assert layout.pools == (("y", "z"),)
    assert layout.masks_of("z") == layout.masks_of("y")
    assert layout.masks_of("z")[0].ways == 4
    assert solve(demands, ELEVEN, closids=4).pools == (("x", "y", "z"),)
    layout = solve(demands, ELEVEN, closids=3)
    assert layout.pools == (("a", "b"), ("x", "y", "z"))
    assert layout.masks_of("a")[0].ways == 4
    assert solve(demands, ELEVEN, closids=2).pools == (("a", "b"), ("c", "x", "y", "z"))


def test_exclusive_groups_never_share_with_others() -> None:
    with pytest.raises(Infeasible, match="1 CLOSIDs for 3 groups: at least 2 are needed"):
        solve([exclusive("a", 1), shared("b", 1), batch("c", 1)], ELEVEN, closids=1)
    with pytest.raises(Infeasible, match="0 CLOSIDs"):
        solve([shared("b", 1)], ELEVEN, closids=0)
    assert solve([], ELEVEN, closids=0).classes == ()


def grouped(pools: list[Pool] | int) -> list[tuple[str, ...]]:
    assert not isinstance(pools, int)
    return [each.groups for each in pools]


def test_pools_do_not_mix_anew_for_a_change_of_one_way() -> None:
    before = [batch("a", 2), batch("b", 3), batch("c", 5)]
    assert grouped(pool(before, 2)) == [("a", "b"), ("c",)]
    after = [batch("a", 2), batch("b", 4), batch("c", 5)]
    assert grouped(pool(after, 2)) == [("a",), ("b", "c")]
    kept = pool(after, 2, together=[("a", "b")])
    assert grouped(kept) == [("a", "b"), ("c",)]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), USES), max_size=20),
    st.integers(1, 8),
)
def test_pools_hold_everybody_once_and_what_they_were_to_have(
    asked: list[tuple[int, int, Use]], closids: int
) -> None:
    demands = [Demand.of(f"g{n:02}", {0: one, 4: two}, use) for n, (one, two, use) in enumerate(asked)]
    pools = pool(demands, closids)
    if isinstance(pools, int):
        assert pools == 2 > closids
        return
    assert len(pools) <= closids
    assert sorted(group for each in pools for group in each.groups) == [each.group for each in demands]
    for each in pools:
        assert len({member.use is Use.EXCLUSIVE for member in each.members}) == 1
        for domain in (0, 4):
            wanted = [member.ways[domain] for member in each.members]
            assert each.ways(domain) == (sum(wanted) if each.use is Use.EXCLUSIVE else max(wanted))
