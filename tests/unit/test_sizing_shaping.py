"""The resource shaper over time: what follows from look to look, and what must hold on every host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.domain.reading import Unavailable
from perphd.domain.sample import Quality, Sample
from perphd.sizing import shaping
from perphd.sizing.shaper import (
    GREATEST_CRASHES,
    Component,
    Resize,
    Resource,
    Role,
    Rung,
    ShaperMode,
    ShaperSettings,
    ShapingPlan,
    shape,
)
from perphd.sizing.shaping import FROZEN_INTERVALS, GUARD_INTERVALS, LEARN_PER_LOOK, advance, is_notable
from perphd.sizing.shaping_state import (
    ShapedLimits,
    ShapedMember,
    ShapedSubject,
    ShapingRules,
    ShapingState,
    ShapingStep,
)
from perphd.sizing.shaping_view import view

MIB = 1 << 20
INTERVAL_S = 10.0
RULES = ShapingRules(ShaperMode.PESSIMISTIC, INTERVAL_S, ShaperSettings())
NOTHING = ShapedLimits()


def _subject(name: str = "a", used: float = 100, reserved: float = 1000, lra: bool = False) -> ShapedSubject:
    return ShapedSubject(
        name,
        name,
        lra,
        Role.CORE if lra else Role.ELASTIC,
        reserved * MIB,
        used * MIB,
        unreclaimable_bytes=used * MIB,
        kills=0.0,
        full_ratio=0.0,
        refaults_per_s=0.0,
    )


class Host:
    """Looks once a second."""

    def __init__(self, rules: ShapingRules = RULES, capacity: float = 4000.0) -> None:
        self.rules, self.capacity, self.now_s = rules, capacity * MIB, 0.0
        self.state = ShapingState()
        self.ends: list[str] = []

    def look(self, *subjects: ShapedSubject, seconds: int = 1) -> ShapingStep:
        step = ShapingStep({})
        for _ in range(seconds):
            self.now_s += 1.0
            self.state, step = advance(self.state, subjects, self.capacity, self.rules, self.now_s)
            self.ends += [name for name, _ in step.ends]
        return step

    def grown_up(self, *subjects: ShapedSubject) -> ShapingStep:
        """After the grace."""
        return self.look(*subjects, seconds=int(13 * INTERVAL_S))


def test_a_steady_workload_is_shrunk_to_its_forecast_after_the_grace() -> None:
    host = Host()
    assert host.look(_subject(), seconds=int(9 * INTERVAL_S)).limits["a"] == NOTHING
    limits = host.grown_up(_subject()).limits["a"]
    assert limits.low_bytes is not None
    assert limits.high_bytes is not None
    assert 100 * MIB <= limits.low_bytes <= 160 * MIB  # 5 % of the reservation, and the least spread
    assert limits.high_bytes == pytest.approx(limits.low_bytes * 1.05, abs=2)
    assert limits.max_bytes is None  # only on request


def test_memory_max_follows_on_request_alone() -> None:
    host = Host(replace(RULES, hard_limit=True))
    limits = host.grown_up(_subject()).limits["a"]
    assert limits.max_bytes is not None
    assert limits.high_bytes is not None
    assert limits.max_bytes > limits.high_bytes


@pytest.mark.parametrize("mode", list(ShaperMode))
def test_k1_of_a_hundred_per_cent_changes_nothing(mode: ShaperMode) -> None:
    host = Host(ShapingRules(mode, INTERVAL_S, ShaperSettings(k1=1.0)))
    for used in (100, 400, 300, 900, 50):
        step = host.look(_subject(used=used), seconds=int(5 * INTERVAL_S))
        assert step.limits.get("a", NOTHING) == NOTHING
    assert not host.ends


def test_observe_proposes_and_changes_nothing() -> None:
    host = Host(replace(RULES, mode=ShaperMode.OBSERVE), capacity=150.0)
    subjects = (_subject("a"), _subject("b"))
    assert set(host.grown_up(*subjects).limits.values()) == {NOTHING}
    assert not host.ends
    shown = view(host.state, subjects, host.capacity, host.rules)
    assert any("freeze" in line or "end" in line for line in shown.proposed)


def test_a_new_size_that_reads_like_the_old_one_is_not_shown() -> None:
    mib = float(1 << 20)
    sizes = tuple(Resize("a", Resource.MEMORY, before * mib, 122.3 * mib) for before in (122.1, 640.0))
    state = ShapingState({"a": ShapedMember(0.0, proposed=sizes)})
    assert view(state, (_subject("a"),), 4000.0, RULES).proposed == ("a: 640 MiB -> 122 MiB",)


def test_who_is_not_shaped_or_is_degraded_is_never_touched() -> None:
    host = Host()
    free = replace(_subject("free"), shaped=False)
    ill = _subject("ill", lra=True)
    host.grown_up(free, ill)
    assert host.look(free, ill).limits["ill"] != NOTHING
    limits = host.look(free, replace(ill, degraded=True), seconds=int(2 * INTERVAL_S)).limits
    assert limits == {"free": NOTHING, "ill": NOTHING}


def test_a_crash_restores_the_reservation_at_once_and_begins_the_grace_anew() -> None:
    host = Host()
    host.grown_up(_subject())
    crashed = replace(_subject(used=20), kills=1.0)
    step = host.look(crashed)
    assert step.limits["a"] == NOTHING
    assert "crash 1 of 5" in step.notes[0][1]
    assert host.look(crashed, seconds=int(8 * INTERVAL_S)).limits["a"] == NOTHING
    assert host.grown_up(crashed).limits["a"] != NOTHING


def test_the_fifth_crash_ends_the_shaping_of_a_workload() -> None:
    host = Host()
    host.look(_subject())
    for crash in range(1, GREATEST_CRASHES):
        host.grown_up(replace(_subject(), kills=float(crash)))
    assert host.look(replace(_subject(), kills=4.0)).limits["a"] != NOTHING
    ended = replace(_subject(), kills=5.0)
    assert host.grown_up(ended).limits["a"] == NOTHING
    assert "no longer shaped" in view(host.state, (ended,), host.capacity, host.rules).workloads[0].reason


def test_the_kernels_counter_before_the_first_look_is_no_crash() -> None:
    host = Host()
    assert host.look(replace(_subject(), kills=7.0)).notes == ()


def test_memory_high_is_lifted_within_a_look_and_stays_away_for_a_while() -> None:
    host = Host()
    host.grown_up(_subject())
    stalled = host.look(replace(_subject(), full_ratio=0.3)).limits["a"]
    assert stalled.low_bytes is not None
    assert stalled.high_bytes is None
    assert host.look(_subject()).limits["a"].high_bytes is None
    later = host.look(_subject(), seconds=int(GUARD_INTERVALS * INTERVAL_S))
    assert later.limits["a"].high_bytes is not None


def test_pages_that_come_back_lift_memory_high_too() -> None:
    host = Host()
    host.grown_up(_subject())
    assert host.look(replace(_subject(), refaults_per_s=5000.0)).limits["a"].high_bytes is None


def test_the_youngest_is_frozen_while_it_fits_frozen_and_resumes_when_there_is_room() -> None:
    host = Host(capacity=2800.0)
    old, young = _subject("old", 1000, 1600), _subject("young", 500, 1600)
    host.look(old)
    limits = host.look(old, young).limits
    assert limits == {"old": NOTHING, "young": ShapedLimits(frozen=True)}
    assert host.look(old, young, seconds=int(INTERVAL_S)).limits["young"].frozen  # patient: it is not ended
    assert not host.ends
    limits = host.grown_up(old, young).limits  # the old one has shrunk to its forecast
    assert not limits["young"].frozen


def test_the_youngest_ends_where_even_frozen_it_does_not_fit() -> None:
    host = Host(capacity=2000.0)
    old, young = _subject("old", 1000, 1600), _subject("young", 700, 1600)
    host.look(old)
    host.look(old, young)
    assert host.ends == ["young"]
    assert host.look(old, replace(young, used_bytes=0.0)).limits.keys() == {"old"}


def test_who_stays_frozen_for_long_is_ended() -> None:
    host = Host(capacity=1700.0)
    old, young = _subject("old", 1000, 1600), _subject("young", 50, 1600)
    host.look(old)
    host.look(old, young)
    steady = replace(old, lra=True, shaped=False)
    host.look(
        steady, replace(young, reserved_bytes=1600 * MIB), seconds=int((FROZEN_INTERVALS - 2) * INTERVAL_S)
    )
    assert not host.ends
    host.look(steady, young, seconds=int(4 * INTERVAL_S))
    assert host.ends == ["young"]


def test_outgrowing_a_target_is_answered_before_the_interval_ends() -> None:
    host = Host(capacity=1500.0)
    quiet = (_subject("old", 500), _subject("young", 500))
    host.look(quiet[0])
    host.grown_up(*quiet)
    grown = (replace(quiet[0], used_bytes=1000.0 * MIB), quiet[1])
    step = host.look(*grown)
    assert host.ends == ["young"] or step.limits["young"].frozen
    assert step.limits["old"] == NOTHING  # it has its reservation


def test_missing_readings_decide_nothing() -> None:
    host = Host()
    before = host.grown_up(_subject())
    gone = replace(_subject(), used_bytes=Unavailable("gone"), kills=Unavailable("gone"))
    assert host.look(gone, seconds=int(3 * INTERVAL_S)).ends == ()
    assert host.look(_subject()).limits == before.limits
    unknown = Host()
    unknown.capacity = Unavailable("no meminfo")  # type: ignore[assignment]
    assert unknown.grown_up(_subject()).limits["a"] == NOTHING


def _capacity_kept(host: Host, subjects: list[ShapedSubject]) -> None:
    shown = {row.workload: row for row in view(host.state, subjects, host.capacity, host.rules).workloads}
    stay = [shown[each.name].target_bytes for each in subjects if not shown[each.name].makes_room_by]
    numbers = [target for target in stay if not isinstance(target, Unavailable)]
    if len(numbers) > 1:  # one alone may need more than there is: it is not shaped beyond its use
        assert sum(numbers) <= host.capacity * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 1000), min_size=3, max_size=3), min_size=1, max_size=40),
    st.integers(300, 3500),
)
def test_targets_fit_and_never_lie_below_use(uses: list[list[int]], capacity: int) -> None:
    host = Host(capacity=float(capacity))
    for used in uses:
        subjects = [_subject(f"w{i}", amount) for i, amount in enumerate(used)]
        step = host.look(*subjects, seconds=3)
        for subject in subjects:
            limits = step.limits.get(subject.name, NOTHING)
            assert not isinstance(subject.used_bytes, Unavailable)
            if limits.low_bytes is not None:
                assert subject.used_bytes - 1 <= limits.low_bytes <= subject.reserved_bytes
            if limits.high_bytes is not None and not _reclaims(host, subject.name):
                assert limits.high_bytes >= subject.used_bytes
        _capacity_kept(host, subjects)


def _reclaims(host: Host, name: str) -> bool:
    return host.state.members[name].rung is Rung.RECLAIM


def test_cpu_has_no_part_in_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    resources: set[Resource] = set()

    def noted(components: Sequence[Component], *args: Any, **named: Any) -> ShapingPlan:
        resources.update(resource for component in components for resource in component.demands)
        return shape(components, *args, **named)

    monkeypatch.setattr(shaping, "shape", noted)
    Host().grown_up(_subject())
    assert resources == {Resource.MEMORY}


def test_a_job_in_a_new_group_of_the_same_path_does_not_pay_for_the_one_before() -> None:
    host = Host(capacity=200.0)
    first, second = _subject("first"), replace(_subject("second"), unreclaimable_bytes=10.0 * MIB)
    host.grown_up(first)
    step = host.look(first, second, seconds=int(2 * INTERVAL_S))
    assert step.limits["second"] != NOTHING
    step = host.look(first, replace(second, restarted=True))
    assert host.state.members["second"].rung is not Rung.END
    assert host.state.members["second"].rung_intervals == 0
    assert host.state.members["second"].began_s == host.now_s
    assert step.limits["second"].frozen is False


def test_memory_that_cannot_be_read_is_not_squeezed_out() -> None:
    host = Host(capacity=200.0)
    first, second = _subject("first"), replace(_subject("second"), unreclaimable_bytes=10.0 * MIB)
    host.grown_up(first)
    for _ in range(int(2 * INTERVAL_S)):
        host.look(first, second)
        if _reclaims(host, "second"):
            break
    assert _reclaims(host, "second")
    unread = replace(second, unreclaimable_bytes=Unavailable("memory.stat cannot be read"))
    high = host.look(first, unread).limits["second"].high_bytes
    assert high is None or high >= 100 * MIB


def test_a_job_whose_memory_cannot_be_read_while_it_is_short_is_not_ended() -> None:
    host = Host(capacity=150.0)
    first = _subject("first")
    unread = replace(_subject("second"), unreclaimable_bytes=Unavailable("memory.stat cannot be read"))
    host.grown_up(first)
    for _ in range(int(8 * INTERVAL_S)):
        assert host.look(first, unread).ends == ()
    assert host.state.members["second"].rung is Rung.FREEZE


# --- many workloads ---------------------------------------------------------------------------------------------


MANY = 40


def test_where_all_fit_beside_each_other_every_plan_is_of_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(components: Sequence[Component], *args: Any, **named: Any) -> ShapingPlan:
        sizes.append(len(components))
        return shape(components, *args, **named)

    monkeypatch.setattr(shaping, "shape", counted)
    host = Host(replace(RULES, interval_s=60.0), capacity=1000.0 * MANY)
    many = [_subject(f"w{number:02}", used=100 + number) for number in range(MANY)]
    host.look(*many)
    assert sizes == [MANY], "new ones have a target at once"
    sizes.clear()
    host.look(*many, seconds=14 * 60)
    assert max(sizes) == LEARN_PER_LOOK
    shown = view(host.state, many, host.capacity, host.rules)
    targets = [row.target_bytes for row in shown.workloads if isinstance(row.target_bytes, float)]
    assert len(targets) == MANY
    assert all(target < 300 * MIB for target in targets), "all were shrunk"
    assert shown.reclaimable_bytes == pytest.approx(host.capacity - sum(targets))
    sizes.clear()
    many[7] = replace(many[7], used_bytes=700.0 * MIB)
    assert host.look(*many).limits["w07"].low_bytes == 700 * MIB
    assert min(sizes) == 1, "the one that outgrew its target, without the others"
    host.look(*many[1:])
    assert "w00" not in host.state.members
    assert "w00" not in host.look(*many[1:], seconds=60).limits


@pytest.mark.parametrize("seconds_a_look", [1, 4, 9, 10, 15])
@pytest.mark.parametrize("k1", [0.05, 1.0])
def test_everybody_has_a_target_however_rare_looks_are(seconds_a_look: int, k1: float) -> None:
    """Six that reserve twice what there is, as on a host whose rounds are late."""
    rules = ShapingRules(ShaperMode.OPTIMISTIC, INTERVAL_S, ShaperSettings(k1=k1))
    subjects = tuple(_subject(f"w{i}", reserved=1000) for i in range(6))
    state = ShapingState()
    for look in range(1, 2 + math.ceil(3 * INTERVAL_S / seconds_a_look)):
        state, _ = advance(state, subjects, 3000.0 * MIB, rules, float(look * seconds_a_look))
    assert {name for name, member in state.members.items() if member.target_bytes is not None} == {
        subject.name for subject in subjects
    }


def test_where_not_all_fit_the_plan_of_all_decides_once_all_are_learned_from() -> None:
    host = Host(replace(RULES, interval_s=60.0), capacity=500.0 * MANY)
    many = [_subject(f"w{number:02}", used=100) for number in range(MANY)]
    for number in range(MANY):
        host.look(*many[: number + 1])
    assert any(member.rung for member in host.state.members.values()), "reservations do not fit"
    host.look(*many, seconds=26 * 60)  # the frozen ones learn nothing, and resume as others shrink
    assert not any(member.rung for member in host.state.members.values()), "what they need does"
    _capacity_kept(host, many)


def test_who_is_not_looked_at_stays_as_it_was() -> None:
    host = Host()
    subjects = (_subject("a"), _subject("b"))
    host.grown_up(*subjects)
    before = host.look(*subjects).limits
    changed = tuple(replace(each, full_ratio=0.5) for each in subjects)
    host.state, step = advance(
        host.state, changed, host.capacity, host.rules, host.now_s + 1, looked=frozenset({"b"})
    )
    assert before["b"].high_bytes is not None
    assert step.limits == {"a": before["a"], "b": replace(before["b"], high_bytes=None)}


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ({}, False),
        ({"memory_working_set_bytes": 121.0 * MIB}, True),
        ({"memory_working_set_bytes": 119.0 * MIB}, False),
        ({"memory_full_pct": 6.0}, True),
        ({"refaults_per_s": 101.0}, True),
        ({"quality": (Quality.RESTARTED,)}, True),
        ({"memory_working_set_bytes": Unavailable("gone")}, False),
    ],
)
def test_no_room_stalls_and_new_groups_are_notable(sample: dict[str, Any], expected: bool) -> None:
    calm: dict[str, Any] = {
        "memory_working_set_bytes": 100.0 * MIB,
        "memory_full_pct": 0.0,
        "refaults_per_s": 0.0,
    }
    seen = Sample("a", 1.0, 1.0, **(calm | sample))
    assert is_notable(ShapedMember(0.0, greatest_bytes=1.0, target_bytes=120.0 * MIB), seen) is expected
    assert is_notable(ShapedMember(0.0), seen) is (
        sample.get("memory_working_set_bytes", 100.0) != Unavailable("gone")
    )
    calm["memory_working_set_bytes"] = 1.0
    assert not is_notable(ShapedMember(0.0), Sample("a", 1.0, 1.0, **calm)), (
        "an empty group waits for its turn"
    )


def test_the_greatest_use_between_two_looks_enters_the_forecasters() -> None:
    host = Host()
    host.grown_up(_subject())
    host.look(replace(_subject(), peak_bytes=180.0 * MIB))
    host.look(_subject(), seconds=int(INTERVAL_S))
    assert 180 * MIB in host.state.members["a"].ladder.values
