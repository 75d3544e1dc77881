"""Looking between two ticks: pressure, batch that starts and what applications push can ask for a tick at once.

Bounded: a tick follows the one before it by at least ``min_interval_ms``, pressure asks at most once per window of the
kernel's triggers, and an LRA whose pressure turns out to be nothing is listened to more and more rarely.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Protocol

from perphd.agent.config_schema import setting
from perphd.domain.errors import Denied, KernelError, ParseError, Unsupported
from perphd.domain.reading import Reading, available
from perphd.domain.workload import Objective
from perphd.host.cgroup.population import PopulationWatch
from perphd.host.psi import UNPRIVILEGED_WINDOW_US, PsiTrigger
from perphd.monitor.sli import SliReading

log = logging.getLogger("perphd")

RETRY_S: Final = 10.0
"""A cgroup that had no pressure files is tried again so often."""
MOST_DEAF_S: Final = 60.0
_FILES: Final = ("cpu.pressure", "memory.pressure", "io.pressure")


@dataclass(frozen=True, slots=True)
class WakeConfig:
    """Table ``[wake]``: looking at once, between two samples, when something is wrong."""

    enabled: bool = setting(
        True,
        "pressure on an LRA (PSI triggers of the kernel), batch that starts (cgroup v2) and pushed readings that miss "
        "an objective are looked at at once, not at the next period",
    )
    stall_ms: int = setting(
        150,
        "time within a window in which some task of an LRA stalls that is news",
        low=1,
        high=10000,
        unit="ms",
        expert=True,
    )
    window_ms: int = setting(
        500,
        "the window; without CAP_SYS_RESOURCE the kernel takes multiples of 2000 only, and 2000 is used instead",
        low=500,
        high=10000,
        unit="ms",
        expert=True,
    )
    min_interval_ms: int = setting(
        200,
        "a tick follows the one before it by at least so much",
        low=50,
        high=10000,
        unit="ms",
        expert=True,
    )


class Trigger(Protocol):
    """An armed PSI trigger."""

    def close(self) -> None:
        """Disarm."""


class Arm(Protocol):
    """How a trigger is armed: as ``PsiTrigger``."""

    def __call__(
        self,
        path: str,
        on_pressure: Callable[[], None],
        on_gone: Callable[[], None],
        *,
        threshold_us: int,
        window_us: int,
    ) -> Trigger:
        """Arm; raises KernelError."""


class Watch(Protocol):
    """How one asks to be told that a group is no longer empty: as ``PopulationWatch``."""

    def __call__(self, directory: str, on_started: Callable[[], None]) -> Trigger:
        """Watch; raises KernelError or ParseError."""


class _Eye:
    """What watches for one batch workload: its own group, or, as long as there is none, the nearest one above."""

    def __init__(self, cgroup: str) -> None:
        self.cgroup = cgroup
        self.watched = ""
        self.watch: Trigger | None = None
        self.retry_at_s = 0.0

    @property
    def sees_its_own(self) -> bool:
        """True while it is the workload's own group that is watched."""
        return self.watched == self.cgroup

    def close(self) -> None:
        """Watch no more."""
        if self.watch is not None:
            self.watch.close()


class _Ear:
    """The triggers of one LRA, and how readily it is listened to."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.triggers: list[Trigger] = []
        self.retry_at_s = 0.0
        self.deaf_until_s = 0.0
        self.in_vain = 0


class Waker:
    """Listens for every LRA, and to batch that starts; ``rung`` ends when a tick is asked for. One loop, no threads.

    Args:
        config: what is news, and how often.
        directory_of: the directory with a cgroup's pressure files; None where there is none (no cgroup2 tree).
        clock: monotonic seconds.
        arm: arms a trigger; tests bring their own.
        watch: watches whether a group is empty; tests bring their own.
    """

    def __init__(
        self,
        config: WakeConfig,
        directory_of: Callable[[str], str | None],
        clock: Callable[[], float],
        arm: Arm = PsiTrigger,
        watch: Watch = PopulationWatch,
    ) -> None:
        self._config, self._directory_of, self._clock, self._arm = config, directory_of, clock, arm
        self._watch = watch
        self._eyes: dict[str, _Eye] = {}
        self._started: set[str] = set()
        self._window_us = 1000 * config.window_ms
        self._ears: dict[str, _Ear] = {}
        self._rung = asyncio.Event()
        self._callers: dict[str, str] = {}
        self._quiet_until_s = 0.0
        self._refused = ""
        self.extra_ticks = 0

    @property
    def refused(self) -> str:
        """Why the kernel arms no triggers here; empty if it does, or nobody has asked yet."""
        return self._refused

    @property
    def armed(self) -> int:
        """Triggers that are armed."""
        return sum(len(ear.triggers) for ear in self._ears.values())

    def follow(self, lras: Mapping[str, str]) -> None:
        """Listen to exactly these LRAs (name: cgroup)."""
        for name in [n for n in self._ears if n not in lras]:
            self._disarm(self._ears.pop(name))
        if not self._config.enabled or self._refused:
            return
        now_s = self._clock()
        for name, cgroup in lras.items():
            directory = self._directory_of(cgroup)
            if directory is None:
                continue
            ear = self._ears.get(name)
            if ear is None or ear.directory != directory:
                if ear is not None:
                    self._disarm(ear)
                ear = self._ears[name] = _Ear(directory)
            if not ear.triggers and now_s >= ear.retry_at_s and not self._refused:
                ear.retry_at_s = now_s + RETRY_S
                self._listen(name, ear)

    def await_batch(self, batch: Mapping[str, str], fresh: Collection[str], gone: Collection[str]) -> None:
        """Look out for exactly these batch workloads (name: cgroup) to start.

        ``fresh``: those whose groups are new, or others than before; ``gone``: those that have none.
        """
        for name in [n for n in self._eyes if n not in batch]:
            self._eyes.pop(name).close()
        if not self._config.enabled:
            return
        now_s = self._clock()
        for name, cgroup in batch.items():
            eye = self._eyes.get(name)
            other = eye is not None and (eye.cgroup != cgroup or name in fresh)
            if eye is None or other or (name in gone and eye.sees_its_own):
                if eye is not None:
                    eye.close()
                eye = self._eyes[name] = _Eye(cgroup)
            if not eye.sees_its_own and now_s >= eye.retry_at_s:
                eye.retry_at_s = now_s + RETRY_S
                self._open(name, eye)

    @property
    def started(self) -> Collection[str]:
        """Batch that has started, among what asks for a tick."""
        return self._started

    def ring(self, name: str, why: str, pressure: bool = False) -> None:
        """Ask for a tick now. ``pressure``: it is the kernel that asks: at most once a window, and not in vain."""
        if not self._config.enabled:
            return
        now_s = self._clock()
        if pressure:
            ear = self._ears.get(name)
            if now_s < self._quiet_until_s or (ear is not None and now_s < ear.deaf_until_s):
                return
        self._callers.setdefault(name, why)
        self._rung.set()

    def heard(self, name: str, objective: Objective, reading: SliReading) -> None:
        """An application delivered these figures of its own: ask for a tick if they miss its objective."""
        latency: Reading = getattr(reading, f"latency_{objective.latency_percentile}_ms")
        if objective.max_latency_ms is not None and available(latency) and latency > objective.max_latency_ms:
            self.ring(name, f"its latency of {latency:.4g} ms misses the objective")
        least, work = objective.min_work_rate_per_s, reading.work_rate_per_s
        if least is not None and available(work) and work < least:
            self.ring(name, f"its work rate of {work:.4g}/s misses the objective")

    async def rung(self) -> None:
        """Until a tick is asked for."""
        await self._rung.wait()

    def look_in_s(self, since_tick_s: float, until_tick_s: float) -> float | None:
        """How long a look that is asked for has to wait yet; None: the next tick, which is about to come, is as good.

        ``since_tick_s``: since the last tick; ``until_tick_s``: until the next.
        """
        least_s = self._config.min_interval_ms / 1000.0
        pause_s = max(0.0, least_s - since_tick_s)
        return None if 2 * pause_s >= until_tick_s or until_tick_s < least_s else pause_s

    def take(self) -> Mapping[str, str]:
        """Who asked, and why; the next tick answers all of it, whether it is an extra one or not."""
        callers, self._callers = self._callers, {}
        self._started = set()
        self._rung.clear()
        if callers:
            self._quiet_until_s = self._clock() + self._window_us / 1e6
        return callers

    def answered(self, callers: Collection[str], troubled: Collection[str]) -> None:
        """What the extra tick found: an LRA that is well (not among ``troubled``) is listened to more rarely."""
        now_s = self._clock()
        for name in callers:
            ear = self._ears.get(name)
            if ear is None:
                continue
            ear.in_vain = 0 if name in troubled else ear.in_vain + 1
            wait_s = self._window_us / 1e6 * 2.0 ** min(ear.in_vain, 8)
            ear.deaf_until_s = now_s + min(wait_s, MOST_DEAF_S) if ear.in_vain else 0.0

    def close(self) -> None:
        """Disarm everything."""
        for ear in self._ears.values():
            self._disarm(ear)
        self._ears.clear()
        for eye in self._eyes.values():
            eye.close()
        self._eyes.clear()

    def _open(self, name: str, eye: _Eye) -> None:
        """Watch the workload's own group; where there is none (yet), the nearest one above it, but never the root."""

        def begun() -> None:
            self._started.add(name)
            self.ring(name, "it has started")

        own = PurePosixPath(eye.cgroup)
        for group in (own, *own.parents[:-1]):
            directory = self._directory_of(str(group))
            if directory is None or str(group) == eye.watched:
                return
            try:
                watch = self._watch(directory, begun)
            except (KernelError, ParseError):
                continue
            eye.close()
            eye.watch, eye.watched = watch, str(group)
            return

    def _listen(self, name: str, ear: _Ear) -> None:
        for file in _FILES:
            path = f"{ear.directory}/{file}"
            try:
                ear.triggers.append(self._armed(path, name, ear, file))
            except (Unsupported, Denied) as exc:
                self._refused = str(exc)
                log.warning("no looking between two samples on pressure: %s", exc)
                self._disarm(ear)
                return
            except KernelError:
                continue  # no such cgroup (yet), or no such file: tried again later

    def _armed(self, path: str, name: str, ear: _Ear, file: str) -> Trigger:
        def pressed() -> None:
            self.ring(name, f"pressure on its {file.partition('.')[0]}", pressure=True)

        def gone() -> None:
            self._disarm(ear)

        share = min(1.0, self._config.stall_ms / self._config.window_ms)
        threshold_us = int(share * self._window_us)
        try:
            return self._arm(path, pressed, gone, threshold_us=threshold_us, window_us=self._window_us)
        except KernelError:
            if self._window_us == UNPRIVILEGED_WINDOW_US:
                raise
        # Kernels give short windows to CAP_SYS_RESOURCE only; the same share of a long one is the same news.
        longer = UNPRIVILEGED_WINDOW_US
        trigger = self._arm(path, pressed, gone, threshold_us=int(share * longer), window_us=longer)
        self._window_us = longer
        return trigger

    def _disarm(self, ear: _Ear) -> None:
        for trigger in ear.triggers:
            trigger.close()
        ear.triggers.clear()
