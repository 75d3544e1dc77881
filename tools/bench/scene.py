"""The measured agent: it controls the bench's own groups in enforce mode; every fifth of them is an LRA."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from perphd.agent.agent import Agent
from perphd.agent.assembly import assemble
from perphd.agent.composition import build_parts
from perphd.agent.parts import Parts
from perphd.agent.upkeep import collecting_later, protect_self
from perphd.config.file import parse

LRA_SHARE = 5
"""One workload in this many is an LRA."""
STATE_BELOW = "/var/tmp"
"""Parent of state directories, on a disk like the daemon's, so that fsync takes a realistic time."""
T = TypeVar("T")


def configuration(paths: Sequence[str], state: Path) -> str:
    """A configuration with these groups as workloads, the LRAs first, and the shipped defaults.

    Only the limit of changes per second is higher, because the reaction bench changes the same knobs without a pause.
    """
    lras = max(1, len(paths) // LRA_SHARE)
    lines = ["[daemon]", 'mode = "enforce"', f'state_dir = "{state}"', f'socket = "{state}/perphd.sock"']
    lines += ["", "[tuning.isolation]", "changes_per_s = 100"]
    for number, path in enumerate(paths):
        kind = "lra" if number < lras else "batch"
        lines += ["", f"[[{kind}]]", f'name = "{kind}-{number:03}"', f'cgroup = "{path}"']
    return "\n".join(lines) + "\n"


@dataclass(slots=True)
class Phases:
    """Seconds of one tick, by phase. ``ended``: when the last write of the tick had been read back, or None."""

    sampling: float = 0.0
    model: float = 0.0
    decide: float = 0.0
    plan: float = 0.0
    apply: float = 0.0
    deciding_at: float = 0.0
    ended_at: float | None = None


@dataclass(slots=True)
class Stopwatch:
    """Measures the duration of each phase of each tick of an agent."""

    now: Phases = field(default_factory=Phases)

    def attach(self, agent: Agent, parts: Parts) -> None:
        """Put timers around methods of the agent's parts. They cost a fraction of a microsecond each."""
        monitor, policy, executor, loop = _open(parts.monitor, parts.policy, parts.executor, agent._loop)
        monitor.sample = self._timer("sampling", monitor.sample)
        policy.decide = self._timer("decide", policy.decide, begins=True)
        executor.plan = self._timer("plan", executor.plan)
        executor.apply = self._waited("apply", executor.apply)
        loop.learn = self._timer("model", loop.learn)

    def _timer(self, phase: str, call: Callable[..., T], begins: bool = False) -> Callable[..., T]:
        def timed(*args: Any, **kwargs: Any) -> T:
            began = time.perf_counter()
            if begins:
                self.now.deciding_at = began
            try:
                return call(*args, **kwargs)
            finally:
                setattr(self.now, phase, getattr(self.now, phase) + time.perf_counter() - began)

        return timed

    def _waited(self, phase: str, call: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        async def timed(*args: Any, **kwargs: Any) -> T:
            began = time.perf_counter()
            result = await call(*args, **kwargs)
            self.now.ended_at = time.perf_counter()
            setattr(self.now, phase, getattr(self.now, phase) + self.now.ended_at - began)
            return result

        return timed


class DiskMeter:
    """Seconds that this process spends in fsync and fdatasync while the meter is installed."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
    def installed(self) -> Iterator[DiskMeter]:
        """Meter within the block."""
        module: Any = os
        originals = module.fsync, module.fdatasync
        module.fsync, module.fdatasync = (self._metered(call) for call in originals)
        try:
            yield self
        finally:
            module.fsync, module.fdatasync = originals

    def _metered(self, call: Callable[[Any], None]) -> Callable[[Any], None]:
        def metered(fd: Any) -> None:
            began = time.perf_counter()
            try:
                call(fd)
            finally:
                self.seconds += time.perf_counter() - began

        return metered


def cpu_wait_s() -> float:
    """Time that the threads of this process have waited on run queues so far (schedstat)."""
    waited_ns = 0
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError, IndexError):  # a thread that ended, a kernel without schedstat
            waited_ns += int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1])
    return waited_ns / 1e9


@contextlib.contextmanager
def daemon_priority() -> Iterator[None]:
    """The daemon's own CPU priority within the block."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    protect_self()
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


def _open(*objects: Any) -> tuple[Any, ...]:
    """These objects, with methods that can be replaced."""
    return objects


class Scene:
    """An agent, its parts and its virtual clock: every tick is one second after the last, however long it takes."""

    def __init__(self, paths: Sequence[str], state: Path) -> None:
        config = parse(configuration(paths, state), "bench")
        self.parts = build_parts(config)
        self.agent = assemble(config, self.parts)
        self.stopwatch = Stopwatch()
        self._now_s = 1000.0

    async def tick(self) -> Phases:
        """Run one tick; returns the durations of its phases."""
        self.stopwatch.now = Phases()
        self._now_s += 1.0
        with collecting_later():  # as the daemon does
            await self.agent.tick(self._now_s)
        return self.stopwatch.now

    async def close(self) -> None:
        """Restore everything and close."""
        await self.agent.stop(restore=True)
