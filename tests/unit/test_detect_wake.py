"""A look between two ticks: who may ask, how often, and what becomes of it."""

from __future__ import annotations

import asyncio
import errno
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.detector import cusum
from perphd.agent.agent import Agent
from perphd.agent.service import Service
from perphd.agent.triggers import EarlyTicks
from perphd.config.file import Config
from perphd.config.tables import WakeConfig
from perphd.domain.errors import Denied, Gone, Invalid
from perphd.domain.sample import Sample, is_short
from perphd.domain.workload import Objective
from perphd.monitor.sli import SliReading


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Armed:
    path: str
    on_pressure: Callable[[], None]
    on_gone: Callable[[], None]
    threshold_us: int
    window_us: int
    closed: bool = False

    def close(self) -> None:
        self.closed = True


@dataclass
class Kernel:
    """Arms triggers as asked; ``refuse`` may raise instead."""

    refuse: Callable[[str, int], None] = lambda path, window_us: None
    armed: list[Armed] = field(default_factory=list)

    def __call__(
        self,
        path: str,
        on_pressure: Callable[[], None],
        on_gone: Callable[[], None],
        *,
        threshold_us: int,
        window_us: int,
    ) -> Armed:
        self.refuse(path, window_us)
        trigger = Armed(path, on_pressure, on_gone, threshold_us, window_us)
        self.armed.append(trigger)
        return trigger


@dataclass
class Groups:
    """Directories that can be watched, and who watches them."""

    there: set[str]
    watched: dict[str, list[Callable[[], None]]] = field(default_factory=dict)

    def __call__(self, directory: str, on_started: Callable[[], None]) -> Looking:
        if directory not in self.there:
            raise Gone(f"{directory}/cgroup.events", "open", errno.ENOENT)
        self.watched.setdefault(directory, []).append(on_started)
        return Looking(self, directory, on_started)

    def start(self, directory: str) -> None:
        for told in self.watched.get(directory, []):
            told()


@dataclass
class Looking:
    groups: Groups
    directory: str
    on_started: Callable[[], None]

    def close(self) -> None:
        self.groups.watched[self.directory].remove(self.on_started)


def early_ticks(
    kernel: Kernel, clock: Clock, config: WakeConfig | None = None, groups: Groups | None = None
) -> EarlyTicks:
    return EarlyTicks(
        config or WakeConfig(), lambda cgroup: f"/cg{cgroup}", clock, kernel, groups or Groups(set())
    )


def asks(listening: EarlyTicks) -> bool:
    return listening._requested.is_set()


async def test_every_lra_is_listened_to_and_forgotten_when_it_goes() -> None:
    kernel, clock = Kernel(), Clock()
    listening = early_ticks(kernel, clock)
    listening.follow({"db": "/db", "web": "/web"})
    assert sorted(t.path for t in kernel.armed) == [
        f"/cg/{name}/{what}.pressure" for name in ("db", "web") for what in ("cpu", "io", "memory")
    ]
    assert {(t.threshold_us, t.window_us) for t in kernel.armed} == {(150_000, 500_000)}
    listening.follow({"web": "/web"})
    assert [t.path for t in kernel.armed if not t.closed] == [
        f"/cg/web/{what}.pressure" for what in ("cpu", "memory", "io")
    ]
    listening.close()
    assert all(t.closed for t in kernel.armed)


async def test_pressure_asks_at_most_once_a_window() -> None:
    kernel, clock = Kernel(), Clock()
    listening = early_ticks(kernel, clock)
    listening.follow({"db": "/db"})
    kernel.armed[0].on_pressure()
    assert asks(listening)
    assert "cpu" in listening.take()["db"]
    listening.answered({"db"}, {"db"})
    for trigger in kernel.armed:
        trigger.on_pressure()
    assert not asks(listening)
    clock.now_s += 0.51
    kernel.armed[1].on_pressure()
    assert asks(listening)


async def test_pressure_that_is_nothing_is_heard_more_and_more_rarely() -> None:
    kernel, clock = Kernel(), Clock()
    listening = early_ticks(kernel, clock)
    listening.follow({"db": "/db"})
    heard = []
    for _ in range(4000):
        clock.now_s += 0.5
        kernel.armed[0].on_pressure()
        if asks(listening):
            heard.append(clock.now_s)
            listening.answered(listening.take(), set())
    gaps = [b - a for a, b in itertools.pairwise(heard)]
    assert gaps == sorted(gaps)
    assert gaps[0] <= 2.0
    assert gaps[-1] >= 60.0
    clock.now_s += 100
    kernel.armed[0].on_pressure()
    listening.answered(listening.take(), {"db"})  # this time there was something
    clock.now_s += 0.51
    kernel.armed[0].on_pressure()
    assert asks(listening)


async def test_a_kernel_that_takes_long_windows_only_gets_them() -> None:
    def refuse(path: str, window_us: int) -> None:
        if window_us % 2_000_000:
            raise Invalid(path, "arm a PSI trigger", errno.EINVAL)

    kernel, clock = Kernel(refuse), Clock()
    listening = early_ticks(kernel, clock)
    listening.follow({"db": "/db"})
    assert {(t.threshold_us, t.window_us) for t in kernel.armed} == {(600_000, 2_000_000)}
    kernel.armed[0].on_pressure()
    listening.answered(listening.take(), {"db"})
    clock.now_s += 1.9
    kernel.armed[0].on_pressure()
    assert not asks(listening)


async def test_a_kernel_that_refuses_is_asked_once_and_the_reason_kept() -> None:
    tried: list[str] = []

    def refuse(path: str, window_us: int) -> None:
        tried.append(path)
        raise Denied(path, "arm a PSI trigger", errno.EPERM)

    clock = Clock()
    listening = early_ticks(Kernel(refuse), clock)
    for _ in range(5):
        clock.now_s += 60
        listening.follow({"db": "/db", "web": "/web"})
    assert len(set(tried)) == 1
    assert "EPERM" in listening.refused
    assert listening.armed == 0


async def test_a_cgroup_that_comes_later_is_found() -> None:
    there: set[str] = set()

    def refuse(path: str, window_us: int) -> None:
        if path.rpartition("/")[0] not in there:
            raise Gone(path, "open for a PSI trigger", errno.ENOENT)

    kernel, clock = Kernel(refuse), Clock()
    listening = early_ticks(kernel, clock)
    listening.follow({"db": "/db"})
    assert listening.armed == 0
    assert not listening.refused
    there.add("/cg/db")
    listening.follow({"db": "/db"})
    assert listening.armed == 0  # not every tick
    clock.now_s += 11
    listening.follow({"db": "/db"})
    assert listening.armed == 3
    kernel.armed[0].on_gone()
    assert listening.armed == 0
    assert all(t.closed for t in kernel.armed)


async def test_a_pushed_reading_that_misses_the_objective_asks_at_once() -> None:
    listening = early_ticks(Kernel(), Clock())
    objective = Objective(max_latency_ms=5.0, min_work_rate_per_s=100.0)
    listening.pushed("db", objective, SliReading(work_rate_per_s=120.0, latency_p95_ms=4.0))
    assert not asks(listening)
    listening.pushed("db", objective, SliReading(latency_p95_ms=6.0))
    assert asks(listening)
    listening.take()
    listening.pushed("db", objective, SliReading(work_rate_per_s=80.0))
    assert asks(listening)
    off = early_ticks(Kernel(), Clock(), WakeConfig(enabled=False))
    off.follow({"db": "/db"})
    off.pushed("db", objective, SliReading(latency_p95_ms=6.0))
    assert not asks(off)
    assert off.armed == 0


@dataclass
class FakeAgent:
    early_ticks: EarlyTicks | None
    ticks: list[float] = field(default_factory=list)
    ring_after: int = 1
    stop: Callable[[], None] = lambda: None
    pace_s: float = 1.0
    periods: list[float] = field(default_factory=list)

    async def tick(self, now_s: float, period_s: float) -> None:
        self.ticks.append(now_s)
        self.periods.append(period_s)
        if self.early_ticks is not None:
            self.early_ticks.take()
        if len(self.ticks) == self.ring_after and self.early_ticks is not None:
            asyncio.get_running_loop().call_later(0.01, self.early_ticks.request_tick, "db", "pressure")
        if len(self.ticks) == self.ring_after + 2:
            self.stop()

    def missed(self, ticks: int) -> None:
        pass


class FakeServer:
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


async def test_the_loop_looks_between_two_ticks_and_keeps_its_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ordering only: the extra tick comes after the pause and before the next that is due; no wall-clock bound."""
    config = Config()
    period = config.daemon.period_s
    service = Service(Path("/nowhere"), config, lambda agent, reload: FakeServer())
    listening = early_ticks(Kernel(), Clock(), WakeConfig(min_interval_ms=50))
    agent = FakeAgent(listening, stop=service._stop.set)
    began = time.monotonic()
    await service._loop(cast(Agent, agent))
    first, extra, second = agent.ticks
    assert extra - first >= 0.05
    assert second - began >= period
    if listening.extra_ticks:  # a machine that stood still for the whole period looks only once
        assert listening.extra_ticks == 1
        assert extra - began < period


async def test_batch_that_starts_is_looked_at_at_once() -> None:
    clock, groups = Clock(), Groups({"/cg/batch.slice"})
    listening = early_ticks(Kernel(), clock, groups=groups)
    listening.await_batch({"jobs": "/batch.slice"}, {"jobs"}, set())
    assert not asks(listening)
    groups.start("/cg/batch.slice")
    assert (asks(listening), listening.started) == (True, {"jobs"})
    assert listening.take() == {"jobs": "it has started"}
    assert (asks(listening), listening.started) == (False, set())
    listening.await_batch({}, set(), set())
    assert not any(groups.watched.values())


async def test_a_group_that_is_not_there_yet_is_awaited_in_the_nearest_above_it_but_not_in_the_root() -> None:
    clock, groups = Clock(), Groups({"/cg", "/cg/batch.slice"})
    listening = early_ticks(Kernel(), clock, groups=groups)
    jobs = {"etl": "/batch.slice/etl.service", "loose": "/loose.service"}
    listening.await_batch(jobs, set(), set(jobs))
    assert {d for d, told in groups.watched.items() if told} == {"/cg/batch.slice"}
    groups.start("/cg/batch.slice")
    assert listening.take() == {"etl": "it has started"}
    listening.await_batch(jobs, set(), set(jobs))
    assert len(groups.watched["/cg/batch.slice"]) == 1, "not watched twice"
    # Now it has a group of its own, another one after a restart, and none at the end.
    groups.there.add("/cg/batch.slice/etl.service")
    listening.await_batch(jobs, {"etl"}, {"loose"})
    assert {d for d, told in groups.watched.items() if told} == {"/cg/batch.slice/etl.service"}
    listening.await_batch(jobs, {"etl"}, {"loose"})
    assert len(groups.watched["/cg/batch.slice/etl.service"]) == 1
    groups.there.discard("/cg/batch.slice/etl.service")
    listening.await_batch(jobs, set(), set(jobs))
    assert {d for d, told in groups.watched.items() if told} == {"/cg/batch.slice"}
    listening.close()
    assert not any(groups.watched.values())


async def test_a_workload_of_another_group_is_awaited_there() -> None:
    groups = Groups({"/cg/one.slice", "/cg/two.slice"})
    listening = early_ticks(Kernel(), Clock(), groups=groups)
    listening.await_batch({"jobs": "/one.slice"}, set(), set())
    listening.await_batch({"jobs": "/two.slice"}, set(), set())
    assert {d for d, told in groups.watched.items() if told} == {"/cg/two.slice"}


async def test_who_does_not_want_to_be_woken_watches_nothing() -> None:
    groups = Groups({"/cg/batch.slice"})
    listening = early_ticks(Kernel(), Clock(), WakeConfig(enabled=False), groups)
    listening.await_batch({"jobs": "/batch.slice"}, {"jobs"}, set())
    assert not groups.watched


@pytest.mark.parametrize(
    ("since_s", "until_s", "wait_s"),
    [(0.5, 0.5, 0.0), (0.05, 0.95, 0.15), (0.9, 0.1, None), (0.05, 0.25, None)],
)
async def test_a_look_keeps_its_distance_from_the_ticks_around_it(
    since_s: float, until_s: float, wait_s: float | None
) -> None:
    listening = early_ticks(Kernel(), Clock(), WakeConfig(min_interval_ms=200))
    found = listening.look_in_s(since_s, until_s)
    assert found == (None if wait_s is None else pytest.approx(wait_s))


async def test_the_loop_keeps_the_pace_that_the_agent_asks_for() -> None:
    """Ordering and nominal periods only; no wall-clock bound."""
    service = Service(Path("/nowhere"), Config(), lambda agent, reload: FakeServer())
    agent = FakeAgent(None, ring_after=3, stop=service._stop.set, pace_s=0.1)
    await service._loop(cast(Agent, agent))
    assert agent.periods[0] == Config().daemon.period_s
    assert all(0.1 <= period <= Config().daemon.period_s for period in agent.periods[1:])
    assert min(agent.periods) < Config().daemon.period_s


def test_a_short_sample_is_one_that_covers_less_than_half_a_period() -> None:
    assert is_short(Sample("db", 1.0, 0.3), 1.0)
    assert not is_short(Sample("db", 1.0, 0.7), 1.0)
    assert not is_short(Sample("db", 1.0, 0.0), 1.0)  # the first has no interval at all


@given(parts=st.lists(st.floats(0.05, 0.85), min_size=1, max_size=6), shift=st.floats(0.6, cusum.CLIP_SIGMA))
def test_a_period_seen_in_parts_gives_the_evidence_of_the_whole(parts: list[float], shift: float) -> None:
    known = cusum.Baseline(n=600, mean=0.0, variance=1.0, lagged=0.0, deviation=1.0 / 1.2533)
    at = cusum.Limits(0.0, 1.0, 0.5, 0.3, 100.0, 100.0, 1.0, 10.0, 0.5)
    share = sum(parts)
    pieces = known
    for part in parts:
        pieces = cusum.step(pieces, shift, at, part, part / share)
    if len(parts) > 1:
        whole = cusum.step(known, shift, at, 1.0)
        assert pieces.small == pytest.approx(whole.small)
        assert pieces.large == pytest.approx(whole.large)
        assert (pieces.n, pieces.mean, pieces.deviation) == (known.n, known.mean, known.deviation)
