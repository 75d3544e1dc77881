"""The resource shaper: sizes, Algorithm 3 on published vectors, and what must hold for every host."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.reading import Reading, Unavailable
from perphd.sizing.shaper import (
    GREATEST_CRASHES,
    Component,
    Demand,
    MemoryRelease,
    Preemption,
    Resize,
    Resource,
    Role,
    Rung,
    ShaperMode,
    ShaperSettings,
    ShapingPlan,
    memory_limits,
    shape,
)

NONE = ShaperSettings(k1=0.0, k2={Resource.MEMORY: 0.0, Resource.CPU: 0.0})


def _component(
    name: str,
    memory: float,
    role: Role = Role.CORE,
    rank: int = 0,
    age_s: float = 0.0,
    reserved: float = 100.0,
) -> Component:
    demand = Demand(reserved, used=0.0, held=reserved, mean=memory, spread=0.0)
    return Component(
        name, name.split("/", maxsplit=1)[0], rank, role, age_s, {Resource.MEMORY: demand}, samples=10
    )


def _plan(
    *components: Component, capacity: float = 10.0, mode: ShaperMode = ShaperMode.PESSIMISTIC
) -> ShapingPlan:
    return shape(components, {Resource.MEMORY: capacity}, mode, NONE)


def _preempted(plan: ShapingPlan) -> list[str]:
    return [action.component for action in plan.proposed if isinstance(action, Preemption)]


# --- sizes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("demand", "target"),
    [
        (Demand(100, 20, 100, mean=40.0, spread=5.0), 40 + 5 + 15),
        (Demand(100, 70, 100, mean=40.0, spread=5.0), 70),  # never below what is used now
        (Demand(100, 20, 100, mean=90.0, spread=5.0), 100),  # never above the reservation
        (Demand(100, 130, 100, mean=90.0, spread=50.0), 130),  # unless that is exceeded already
        (Demand(100, 20, 100, mean=-5.0, spread=0.0, least=30), 30),
        (Demand(100, 20, 100, mean=Unavailable("no model"), spread=0.0), 100),
        (Demand(100, 20, 100, mean=40.0, spread=Unavailable("no model")), 100),
    ],
)
def test_a_size_is_forecast_and_buffer_within_its_bounds(demand: Demand, target: float) -> None:
    component = replace(_component("a", 0), demands={Resource.MEMORY: demand})
    plan = shape([component], {Resource.MEMORY: 1000.0}, ShaperMode.PESSIMISTIC)
    assert [size.target for size in plan.sizes] == [pytest.approx(target)]


def test_cpu_keeps_one_spread() -> None:
    demand = Demand(8.0, 1.0, 8.0, mean=2.0, spread=0.5)
    component = replace(_component("a", 0), demands={Resource.CPU: demand})
    plan = shape([component], {Resource.CPU: 16.0}, ShaperMode.PESSIMISTIC)
    assert [size.target for size in plan.sizes] == [pytest.approx(2.0 + 0.4 + 0.5)]


@pytest.mark.parametrize(("samples", "crashes", "crashed"), [(9, 0, False), (10, 5, False), (10, 1, True)])
def test_grace_crashes_and_the_breaker_restore_the_reservation(
    samples: int, crashes: int, crashed: bool
) -> None:
    assert GREATEST_CRASHES == 5
    component = replace(_component("a", 5), samples=samples, crashes=crashes, crashed=crashed)
    shrunk = replace(
        component, demands={Resource.MEMORY: replace(component.demands[Resource.MEMORY], held=7.0)}
    )
    plan = shape([shrunk], {Resource.MEMORY: 100.0}, ShaperMode.PESSIMISTIC)
    assert plan.actions == (Resize("a", Resource.MEMORY, 7.0, 100.0),)


def test_before_the_fifth_crash_shaping_goes_on() -> None:
    plan = _plan(replace(_component("a", 5), crashes=GREATEST_CRASHES - 1))
    assert plan.actions == (Resize("a", Resource.MEMORY, 100.0, 5.0),)


# --- Algorithm 3 ------------------------------------------------------------------------------------------------


def test_an_application_whose_core_does_not_fit_is_preempted_whole() -> None:
    plan = _plan(
        _component("a/1", 6), _component("b/1", 5, rank=1), _component("b/2", 1, Role.ELASTIC, rank=1)
    )
    assert _preempted(plan) == ["b/2", "b/1"]  # elastic components go before core ones
    assert plan.reclaimable == {Resource.MEMORY: 4.0}


def test_a_component_that_exactly_fills_the_host_stays() -> None:
    assert _preempted(_plan(_component("a/1", 6), _component("a/2", 4, Role.ELASTIC))) == []
    assert _preempted(_plan(_component("a/1", 6), _component("b/1", 4, rank=1))) == []
    assert _preempted(_plan(_component("a/1", 6), _component("a/2", 4.01, Role.ELASTIC))) == ["a/2"]


def test_only_the_elastic_component_of_the_younger_application_goes() -> None:
    plan = _plan(
        _component("old/1", 3),
        _component("old/2", 2, Role.ELASTIC),
        _component("young/1", 3, rank=1),
        _component("young/2", 3, Role.ELASTIC, rank=1),
    )
    assert _preempted(plan) == ["young/2"]


def test_the_oldest_elastic_component_keeps_its_place() -> None:
    plan = _plan(
        _component("a/core", 4),
        _component("a/new", 4, Role.ELASTIC, age_s=10),
        _component("a/old", 4, Role.ELASTIC, age_s=99),
    )
    assert _preempted(plan) == ["a/new"]


def test_a_later_application_takes_the_room_that_a_preempted_one_leaves() -> None:
    plan = _plan(_component("a/1", 6), _component("b/1", 7, rank=1), _component("c/1", 4, rank=2))
    assert _preempted(plan) == ["b/1"]


def test_cpu_preempts_only_where_it_is_guarded() -> None:
    cpu = Demand(8.0, 1.0, 8.0, mean=6.0, spread=0.0)
    pair = [replace(_component(name, 0, rank=i), demands={Resource.CPU: cpu}) for i, name in enumerate("ab")]
    guarded = replace(NONE, guarded=(Resource.MEMORY, Resource.CPU))
    assert _preempted(shape(pair, {Resource.CPU: 8.0}, ShaperMode.PESSIMISTIC, NONE)) == []
    assert _preempted(shape(pair, {Resource.CPU: 8.0}, ShaperMode.PESSIMISTIC, guarded)) == ["b"]


def test_preemption_goes_one_rung_at_a_time() -> None:
    component, rungs = _component("a", 11), []
    for _ in range(4):
        found = _plan(component).actions[0]
        assert isinstance(found, Preemption)
        rungs.append(found.rung)
        component = replace(component, rung=found.rung)
    assert rungs == [Rung.RECLAIM, Rung.FREEZE, Rung.END, Rung.END]


def test_memory_whose_kind_cannot_be_read_ends_nobody() -> None:
    """All of it might only end with its owner, or nothing of it: it is reclaimed first, and frozen at most."""
    known = Demand(100, used=9.0, held=9.0, mean=9.0, spread=0.0, unreclaimable=9.0)
    unread = replace(known, unreclaimable=Unavailable("memory.stat: Input/output error"))
    stays = replace(_component("stays", 9), demands={Resource.MEMORY: known})
    goes = replace(_component("goes", 9, rank=1), demands={Resource.MEMORY: known})
    assert _rung(_plan(stays, goes), "goes") is Rung.END
    goes, rungs = replace(goes, demands={Resource.MEMORY: unread}), []
    for _ in range(4):
        rung = _rung(_plan(stays, goes), "goes")
        rungs.append(rung)
        goes = replace(goes, rung=rung)
    assert rungs == [Rung.RECLAIM, Rung.FREEZE, Rung.FREEZE, Rung.FREEZE]


def _rung(plan: ShapingPlan, name: str) -> Rung:
    return next(
        each.rung for each in plan.proposed if isinstance(each, Preemption) and each.component == name
    )


def test_a_frozen_component_that_fits_again_resumes() -> None:
    frozen = replace(_component("a", 3, reserved=3.0), rung=Rung.FREEZE)
    assert _plan(frozen).actions == (MemoryRelease("a"),)
    assert _plan(replace(frozen, rung=Rung.END)).actions == ()


def test_shrinks_come_before_grows_and_preemptions_before_both() -> None:
    grown = replace(_component("g", 3), demands={Resource.MEMORY: Demand(100, 0, 1.0, 3.0, 0.0)})
    plan = _plan(grown, _component("s", 4, rank=1), _component("x", 9, rank=2))
    assert [type(action).__name__ for action in plan.actions] == ["Preemption", "Resize", "Resize"]
    assert [action.component for action in plan.actions] == ["x", "s", "g"]


@pytest.mark.parametrize(("shaped", "degraded"), [(False, False), (True, True)])
def test_what_is_not_given_to_the_shaper_or_degraded_is_advised_alone(shaped: bool, degraded: bool) -> None:
    service = replace(_component("lra", 8), shaped=shaped, degraded=degraded)
    plan = _plan(_component("batch", 3), service)
    assert [size.target for size in plan.sizes] == [3.0, 8.0]
    assert _preempted(plan) == ["batch"]  # first come is no claim against it
    assert all(action.component != "lra" for action in plan.proposed)
    unknown = replace(
        service, demands={Resource.MEMORY: Demand(100, 6, 100, Unavailable("new"), Unavailable("new"))}
    )
    assert _preempted(_plan(_component("batch", 3), unknown)) == []  # what is unknown preempts nobody


# --- modes ------------------------------------------------------------------------------------------------------


def test_modes() -> None:
    components = [_component("a", 6), _component("b", 6, rank=1)]
    plans = {mode: _plan(*components, mode=mode) for mode in ShaperMode}
    assert (
        plans[ShaperMode.OFF].proposed
        == plans[ShaperMode.OFF].actions
        == plans[ShaperMode.OBSERVE].actions
        == ()
    )
    assert plans[ShaperMode.OBSERVE].proposed == plans[ShaperMode.PESSIMISTIC].actions
    assert _preempted(plans[ShaperMode.PESSIMISTIC]) == ["b"]
    assert [action.component for action in plans[ShaperMode.OPTIMISTIC].actions] == ["a", "b"]
    assert _preempted(plans[ShaperMode.OPTIMISTIC]) == []


AMOUNTS = st.floats(0, 50)


@st.composite
def hosts(draw: st.DrawFn) -> list[Component]:
    found = []
    for i in range(draw(st.integers(0, 8))):
        reserved, used = draw(st.floats(1, 50)), draw(AMOUNTS)
        mean = draw(st.one_of(AMOUNTS, st.just(Unavailable("no forecast"))))
        demand = Demand(reserved, used, draw(AMOUNTS), mean, draw(st.floats(0, 10)))
        app = draw(st.integers(0, 3))
        found.append(
            Component(
                f"{app}/{i}", str(app), app, draw(st.sampled_from(Role)), draw(AMOUNTS), {Resource.MEMORY: demand},
                draw(st.integers(8, 12)), draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 6)),
            )
        )  # fmt: skip
    return found


@given(hosts(), st.floats(1, 150))
def test_what_holds_for_every_host(components: list[Component], capacity: float) -> None:
    plan = shape(components, {Resource.MEMORY: capacity}, ShaperMode.PESSIMISTIC)
    by_name = {component.name: component for component in components}
    preempted = set(_preempted(plan))
    for size in plan.sizes:
        demand = by_name[size.component].demands[Resource.MEMORY]
        assert demand.used <= size.target <= max(demand.reserved, demand.used)
    assert all(by_name[action.component].shaped for action in plan.proposed)
    assert not any(by_name[action.component].degraded for action in plan.proposed)
    targets = {size.component: size.target for size in plan.sizes}
    touchable = [each for each in components if each.shaped and not each.degraded]
    kept = [each for each in touchable if each.name not in preempted]
    if kept:
        assert plan.reclaimable[Resource.MEMORY] >= -1e-9  # the sizes of all that stays fit the host
    for each in touchable:
        if each.role is not Role.CORE or each.name not in preempted:
            continue  # a core goes only if it does not fit beside what ranks before it
        cores = sum(
            targets[c.name] for c in touchable if c.application == each.application and c.role is Role.CORE
        )
        others = sum(targets[c.name] for c in kept if c.rank < each.rank)
        assert others + cores > capacity - _advised(components, targets) - 1e-6
    for each in kept:
        if each.role is Role.ELASTIC:  # within an application, the youngest of equals goes first
            same = [c for c in touchable if c.application == each.application and c.role is Role.ELASTIC]
            gone = [c for c in same if c.name in preempted and targets[c.name] <= targets[each.name]]
            assert all(c.age_s <= each.age_s for c in gone)


def _advised(components: list[Component], targets: dict[str, float]) -> float:
    return sum(
        targets[each.name]
        if each.samples >= 10 and not isinstance(each.demands[Resource.MEMORY].mean, Unavailable)
        else each.demands[Resource.MEMORY].used
        for each in components
        if not each.shaped or each.degraded
    )


@given(hosts())
def test_all_of_the_reservation_as_buffer_changes_nothing(components: list[Component]) -> None:
    whole = ShaperSettings(k1=1.0)
    held = [
        replace(each, demands={Resource.MEMORY: replace(demand, held=max(demand.reserved, demand.used))})
        for each in components
        for demand in each.demands.values()
    ]
    assert shape(held, {Resource.MEMORY: 1e6}, ShaperMode.PESSIMISTIC, whole).actions == ()


# --- soft limits ------------------------------------------------------------------------------------------------


def test_the_guard_lifts_the_high_limit() -> None:
    assert memory_limits(1000, 0.0, False).high_bytes == 1050
    cases: list[tuple[Reading, bool]] = [(0.06, False), (0.0, True), (Unavailable("no PSI"), False)]
    lifted = [memory_limits(1000, ratio, rise) for ratio, rise in cases]
    assert [(limits.low_bytes, limits.high_bytes) for limits in lifted] == [(1000, None)] * 3
