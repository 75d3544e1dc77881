"""Change windows: the grammar, the hours, and what a policy may do outside of them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.features.windowed import Windowed
from perphd.admission.perph import PerphPolicy
from perphd.admission.settings import TRIALS_OFF, PolicySettings, without_trials
from perphd.config.file import parse
from perphd.domain.allocation import UNTOUCHED, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import Action
from perphd.domain.errors import ConfigError
from perphd.domain.policy import Snapshot, TargetState
from perphd.domain.window import DAY_MIN, DAYS, Window, parse_window
from perphd.domain.workload import Touch
from tests.unit.admission_world import World


@pytest.mark.parametrize(
    ("text", "day", "minute", "is_open"),
    [
        ("", 3, 100, True),
        ("mon-fri 02:00-05:00", 0, 120, True),
        ("mon-fri 02:00-05:00", 0, 300, False),
        ("mon-fri 02:00-05:00", 5, 120, False),
        ("Sat,Sun 00:00-24:00", 6, 1439, True),
        ("22:00-04:00", 2, 1439, True),
        ("22:00-04:00", 2, 239, True),
        ("22:00-04:00", 2, 240, False),
        ("fri 22:00-04:00", 5, 60, True),
        ("fri 22:00-04:00", 4, 60, False),
        ("sun 22:00-04:00", 0, 60, True),
        ("fri-mon 01:00-02:00", 6, 60, True),
        ("fri-mon 01:00-02:00", 2, 60, False),
        ("mon 01:00-02:00; tue 03:00-04:00", 1, 200, True),
    ],
)
def test_hours(text: str, day: int, minute: int, is_open: bool):
    assert parse_window(text).is_open(day, minute) is is_open


@pytest.mark.parametrize(
    "text",
    ["mon", "02:00", "mon 2-5", "foo 02:00-03:00", "mon 25:00-26:00", "mon 03:00-03:00", "mon 01:60-02:00"],
)
def test_texts_that_are_no_window_are_refused(text: str):
    with pytest.raises(ConfigError) as refused:
        parse(f'[window]\nallow = "{text}"\n', "f")
    assert refused.value.key == "window.allow"


@given(
    st.lists(st.sampled_from(DAYS), min_size=1, unique=True),
    st.integers(0, DAY_MIN - 1),
    st.integers(1, DAY_MIN),
)
def test_a_window_is_open_for_as_long_as_it_says(days: list[str], start: int, end: int):
    if start == end:
        return
    text = f"{','.join(days)} {start // 60:02d}:{start % 60:02d}-{end // 60:02d}:{end % 60:02d}"
    window = parse_window(text)
    open_min = sum(window.is_open(day, minute) for day in range(7) for minute in range(DAY_MIN))
    assert open_min == len(days) * ((end - start) % DAY_MIN or DAY_MIN)


class Wishes:
    """A policy that wants what it is told to, and remembers what it was asked with."""

    name = "wishes"

    def __init__(self) -> None:
        self.settings: dict[str, Settings] = {}
        self.seen: list[Snapshot] = []

    def decide(self, snapshot: Snapshot) -> TargetState:
        self.seen.append(snapshot)
        return TargetState(dict(self.settings), memory=len(self.seen))


class Watched(World):
    """A world that keeps its snapshots and closes the window when it is told to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.snapshots: list[Snapshot] = []
        self.is_open = True
        inner = Windowed(PerphPolicy(self.settings))
        world = self

        class Kept:
            name = "kept"

            def decide(self, snapshot: Snapshot) -> TargetState:
                host = replace(snapshot.host, window_open=world.is_open)
                asked = replace(snapshot, host=host)
                world.snapshots.append(asked)
                return inner.decide(asked)

        self.policy = Kept()  # type: ignore[assignment]


def snapshot_of(is_open: bool, memory: Any, world: Watched) -> Snapshot:
    snapshot = world.snapshots[-1]
    return replace(snapshot, host=replace(snapshot.host, window_open=is_open), memory=memory)


PINNED = Settings(cpus=CpuSet.of([0]))
IDLE_BATCH = Settings(cpu_weight=10)


def test_own_settings_stay_as_they_were_when_the_window_closed():
    world, wishes = Watched(), Wishes()
    world.step(1)
    windowed = Windowed(wishes)
    wishes.settings = {"db": PINNED, "pi": IDLE_BATCH}
    target = windowed.decide(snapshot_of(True, None, world))
    assert target.settings == {"db": PINNED, "pi": IDLE_BATCH}
    wishes.settings = {"db": Settings(cpus=CpuSet.of([1])), "pi": Settings(cpu_weight=1)}
    closed = windowed.decide(snapshot_of(False, target.memory, world))
    assert closed.settings == {"db": PINNED, "pi": Settings(cpu_weight=1)}  # batch can always be taken back
    again = windowed.decide(snapshot_of(True, closed.memory, world))
    assert again.settings == wishes.settings
    assert wishes.seen[-1].memory == 2  # the policy's own memory came through


def test_what_its_owner_forbids_is_given_back_outside_of_the_window_too():
    world, wishes = Watched(), Wishes()
    world.step(1)
    windowed = Windowed(wishes)
    wishes.settings = {"db": replace(PINNED, memory_low_bytes=4096), "pi": IDLE_BATCH}
    target = windowed.decide(snapshot_of(True, None, world))
    closed = snapshot_of(False, target.memory, world)
    views = tuple(
        replace(view, spec=replace(view.spec, touch=Touch.BATCH)) if view.spec.name == "db" else view
        for view in closed.workloads
    )
    assert windowed.decide(replace(closed, workloads=views)).settings["db"] == Settings(memory_low_bytes=4096)


def test_an_untouched_lra_is_planned_for_with_batch_alone():
    world, wishes = Watched(), Wishes()
    world.step(1)
    wishes.settings = {"db": PINNED, "pi": IDLE_BATCH}
    closed = Windowed(wishes).decide(snapshot_of(False, None, world))
    assert closed.settings == {"db": UNTOUCHED, "pi": IDLE_BATCH}
    seen = {view.spec.name: view.enforceable for view in wishes.seen[-1].workloads}
    assert seen["db"] == frozenset()
    assert seen["pi"]


def test_an_lra_s_own_trial_keys_do_not_reach_a_closed_window():
    world, wishes = Watched(), Wishes()
    world.step(1)
    snapshot = snapshot_of(False, None, world)
    own = tuple(
        replace(view, spec=replace(view.spec, policy=(("settle_s", 3.0), ("step_aside_per_h", 60.0))))
        for view in snapshot.workloads
    )
    Windowed(wishes).decide(replace(snapshot, workloads=own))
    seen = {view.spec.name: view.spec.policy for view in wishes.seen[-1].workloads}
    assert seen["db"] == (("settle_s", 3.0),)


def test_the_perph_policy_relieves_by_batch_alone_outside_of_the_window():
    world = Watched(cores=4, lra_demand=3.0)
    world.is_open = False
    world.step(30)
    world.batch_running = True
    world.step(120)
    assert any(d.action is Action.GROW for d in world.history)  # it was not idle
    assert all(t.settings.get("db", UNTOUCHED).is_untouched() for t in world.targets)
    assert any(not t.settings.get("pi", UNTOUCHED).is_untouched() for t in world.targets)


def test_the_keys_that_switch_trials_off_exist():
    off = without_trials(PolicySettings())
    assert {name: getattr(off, name) for name in TRIALS_OFF} == dict(TRIALS_OFF)


def test_local_time_opens_the_window(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        sunday_noon_utc = 1_700_395_200.0  # 2023-11-19, 13:00 in Berlin
        assert Window("sun 13:00-13:01", lambda: sunday_noon_utc).is_open()
        assert not Window("sun 12:00-13:00", lambda: sunday_noon_utc).is_open()
        assert Window("", lambda: sunday_noon_utc).is_open()
    finally:
        monkeypatch.undo()
        time.tzset()
