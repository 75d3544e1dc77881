"""Requests early ticks: on pressure, when batch starts, and on readings that miss an objective.

Their rate is bounded: ticks are at least ``min_interval_ms`` apart, pressure requests at most one per window of the
kernel's triggers, and an LRA whose pressure revealed no problem is ignored for exponentially growing times.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import PurePosixPath
from typing import Final, Protocol

from perphd.config.tables import WakeConfig
from perphd.domain.backoff import BackoffRule
from perphd.domain.errors import Denied, KernelError, ParseError, Unsupported
from perphd.domain.reading import Reading, available
from perphd.domain.workload import Objective
from perphd.host.cgroup.population import PopulationWatch
from perphd.host.psi import UNPRIVILEGED_WINDOW_US, PsiTrigger
from perphd.monitor.sli import SliReading

log = logging.getLogger("perphd")

RETRY_S: Final = 10.0
"""Seconds before perphd tries a cgroup without pressure files again."""
MAX_IGNORED_S: Final = 60.0
_FILES: Final = ("cpu.pressure", "memory.pressure", "io.pressure")


class Trigger(Protocol):
    """An armed PSI trigger."""

    def close(self) -> None:
        """Disarm."""


class Arm(Protocol):
    """Factory of armed triggers, such as ``PsiTrigger``."""

    def __call__(
        self,
        path: str,
        on_pressure: Callable[[], None],
        on_gone: Callable[[], None],
        *,
        threshold_us: int,
        window_us: int,
    ) -> Trigger:
        """Arm a trigger; raises KernelError if the kernel refuses it or the file does not exist."""


class WatchFactory(Protocol):
    """Factory of watches for a group that becomes populated, such as ``PopulationWatch``."""

    def __call__(self, directory: str, on_started: Callable[[], None]) -> Trigger:
        """Watch a group; raises KernelError or ParseError if it does not exist or cannot be read."""


class _PopulationSubscription:
    """A watch on one batch workload's group or, while it has none, on the nearest ancestor."""

    def __init__(self, cgroup: str) -> None:
        self.cgroup = cgroup
        self.watched = ""
        self.watch: Trigger | None = None
        self.retry_at_s = 0.0

    @property
    def sees_its_own(self) -> bool:
        """True if the watched group is the workload's own."""
        return self.watched == self.cgroup

    def close(self) -> None:
        """Stop watching."""
        if self.watch is not None:
            self.watch.close()


class _PressureSubscription:
    """The PSI triggers of one LRA, and the time until which it is ignored."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.triggers: list[Trigger] = []
        self.retry_at_s = 0.0
        self.ignored_until_s = 0.0
        self.in_vain = 0


class EarlyTicks:
    """Collects requests for early ticks; ``requested`` returns at the first. One event loop, no threads.

    Args:
        config: which conditions request a tick, and how often.
        directory_of: the directory with a cgroup's pressure files; None if there is none (no cgroup2 tree).
        clock: monotonic seconds.
        arm: arms a trigger; tests replace it.
        watch: watches whether a group is empty; tests replace it.
    """

    def __init__(
        self,
        config: WakeConfig,
        directory_of: Callable[[str], str | None],
        clock: Callable[[], float],
        arm: Arm = PsiTrigger,
        watch: WatchFactory = PopulationWatch,
    ) -> None:
        self._config, self._directory_of, self._clock, self._arm = config, directory_of, clock, arm
        self._watch = watch
        self._population: dict[str, _PopulationSubscription] = {}
        self._started: set[str] = set()
        self._window_us = 1000 * config.window_ms
        self._pressure: dict[str, _PressureSubscription] = {}
        self._requested = asyncio.Event()
        self._requests: dict[str, str] = {}
        self._quiet_until_s = 0.0
        self._refused = ""
        self.extra_ticks = 0

    @property
    def refused(self) -> str:
        """Reason why the kernel arms no triggers; empty if it arms them, or if none were requested."""
        return self._refused

    @property
    def armed(self) -> int:
        """Number of armed triggers."""
        return sum(len(subscription.triggers) for subscription in self._pressure.values())

    def follow(self, lras: Mapping[str, str]) -> None:
        """Arm triggers for exactly these LRAs (name: cgroup)."""
        for name in [n for n in self._pressure if n not in lras]:
            self._disarm(self._pressure.pop(name))
        if not self._config.enabled or self._refused:
            return
        now_s = self._clock()
        for name, cgroup in lras.items():
            directory = self._directory_of(cgroup)
            if directory is None:
                continue
            subscription = self._pressure.get(name)
            if subscription is None or subscription.directory != directory:
                if subscription is not None:
                    self._disarm(subscription)
                subscription = self._pressure[name] = _PressureSubscription(directory)
            if not subscription.triggers and now_s >= subscription.retry_at_s and not self._refused:
                subscription.retry_at_s = now_s + RETRY_S
                self._listen(name, subscription)

    def await_batch(self, batch: Mapping[str, str], fresh: Collection[str], gone: Collection[str]) -> None:
        """Watch exactly these batch workloads (name: cgroup) for their start.

        ``fresh``: workloads with new or different groups; ``gone``: workloads without a group.
        """
        for name in [n for n in self._population if n not in batch]:
            self._population.pop(name).close()
        if not self._config.enabled:
            return
        now_s = self._clock()
        for name, cgroup in batch.items():
            subscription = self._population.get(name)
            other = subscription is not None and (subscription.cgroup != cgroup or name in fresh)
            if subscription is None or other or (name in gone and subscription.sees_its_own):
                if subscription is not None:
                    subscription.close()
                subscription = self._population[name] = _PopulationSubscription(cgroup)
            if not subscription.sees_its_own and now_s >= subscription.retry_at_s:
                subscription.retry_at_s = now_s + RETRY_S
                self._open(name, subscription)

    @property
    def started(self) -> Collection[str]:
        """Batch workloads whose start requested a tick."""
        return self._started

    def request_tick(self, name: str, why: str, pressure: bool = False) -> None:
        """Request a tick now. ``pressure``: a PSI trigger requests it; this counts once per window, and not
        while the LRA is ignored.
        """
        if not self._config.enabled:
            return
        now_s = self._clock()
        if pressure:
            subscription = self._pressure.get(name)
            if now_s < self._quiet_until_s or (
                subscription is not None and now_s < subscription.ignored_until_s
            ):
                return
        self._requests.setdefault(name, why)
        self._requested.set()

    def pushed(self, name: str, objective: Objective, reading: SliReading) -> None:
        """Request a tick if the readings that an application pushed miss its objective."""
        latency: Reading = getattr(reading, f"latency_{objective.latency_percentile}_ms")
        if objective.max_latency_ms is not None and available(latency) and latency > objective.max_latency_ms:
            self.request_tick(name, f"its latency of {latency:.4g} ms misses the objective")
        least, work = objective.min_work_rate_per_s, reading.work_rate_per_s
        if least is not None and available(work) and work < least:
            self.request_tick(name, f"its work rate of {work:.4g}/s misses the objective")

    async def requested(self) -> None:
        """Wait until a tick is requested."""
        await self._requested.wait()

    def look_in_s(self, since_tick_s: float, until_tick_s: float) -> float | None:
        """Seconds until a requested tick may run; None: the next regular tick is near enough.

        ``since_tick_s``: seconds since the last tick; ``until_tick_s``: seconds until the next.
        """
        least_s = self._config.min_interval_ms / 1000.0
        pause_s = max(0.0, least_s - since_tick_s)
        return None if 2 * pause_s >= until_tick_s or until_tick_s < least_s else pause_s

    def take(self) -> Mapping[str, str]:
        """Take all requests, as reasons by name. The tick that begins now, early or regular, answers them."""
        requests, self._requests = self._requests, {}
        self._started = set()
        self._requested.clear()
        if requests:
            self._quiet_until_s = self._clock() + self._window_us / 1e6
        return requests

    def answered(self, requests: Collection[str], troubled: Collection[str]) -> None:
        """Record the result of the tick: pressure on a healthy LRA (not in ``troubled``) is ignored for longer."""
        now_s = self._clock()
        for name in requests:
            subscription = self._pressure.get(name)
            if subscription is None:
                continue
            subscription.in_vain = 0 if name in troubled else subscription.in_vain + 1
            pauses = BackoffRule(2 * self._window_us / 1e6, MAX_IGNORED_S)
            in_vain = subscription.in_vain
            subscription.ignored_until_s = now_s + pauses.nth(in_vain - 1) if in_vain else 0.0

    def close(self) -> None:
        """Disarm everything."""
        for subscription in self._pressure.values():
            self._disarm(subscription)
        self._pressure.clear()
        for watched in self._population.values():
            watched.close()
        self._population.clear()

    def _open(self, name: str, subscription: _PopulationSubscription) -> None:
        """Watch the workload's own group or, without one, the nearest ancestor below the root."""

        def begun() -> None:
            self._started.add(name)
            self.request_tick(name, "it has started")

        own = PurePosixPath(subscription.cgroup)
        for group in (own, *own.parents[:-1]):
            directory = self._directory_of(str(group))
            if directory is None or str(group) == subscription.watched:
                return
            try:
                watch = self._watch(directory, begun)
            except (KernelError, ParseError):
                continue
            subscription.close()
            subscription.watch, subscription.watched = watch, str(group)
            return

    def _listen(self, name: str, subscription: _PressureSubscription) -> None:
        for file in _FILES:
            path = f"{subscription.directory}/{file}"
            try:
                subscription.triggers.append(self._armed(path, name, subscription, file))
            except (Unsupported, Denied) as exc:
                self._refused = str(exc)
                log.warning("early ticks on pressure are not available: %s", exc)
                self._disarm(subscription)
                return
            except KernelError:
                continue  # the cgroup or the file does not exist yet; retried later

    def _armed(self, path: str, name: str, subscription: _PressureSubscription, file: str) -> Trigger:
        def pressed() -> None:
            self.request_tick(name, f"pressure on its {file.partition('.')[0]}", pressure=True)

        def gone() -> None:
            self._disarm(subscription)

        share = min(1.0, self._config.stall_ms / self._config.window_ms)
        threshold_us = int(share * self._window_us)
        try:
            return self._arm(path, pressed, gone, threshold_us=threshold_us, window_us=self._window_us)
        except KernelError:
            if self._window_us == UNPRIVILEGED_WINDOW_US:
                raise
        # Without CAP_SYS_RESOURCE, kernels accept only long windows: use a long one with the same share of stall time.
        longer = UNPRIVILEGED_WINDOW_US
        trigger = self._arm(path, pressed, gone, threshold_us=int(share * longer), window_us=longer)
        self._window_us = longer
        return trigger

    def _disarm(self, subscription: _PressureSubscription) -> None:
        for trigger in subscription.triggers:
            trigger.close()
        subscription.triggers.clear()
