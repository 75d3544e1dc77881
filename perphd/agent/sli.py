"""The applications' own indicators: one source per workload that has one, read together before every tick."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from perphd.domain.errors import ConfigError
from perphd.domain.reading import Unavailable
from perphd.domain.workload import SliSpec, WorkloadSpec
from perphd.monitor.sli import PushSource, SliReading, SliSource

SliOpener = Callable[[SliSpec], SliSource]


class SliBoard:
    """Opens, reads and closes the SLI sources of all workloads; a source never delays a tick beyond ``timeout_s``."""

    def __init__(self, opener: SliOpener, timeout_s: float) -> None:
        self._open, self._timeout_s = opener, timeout_s
        self._sources: dict[str, tuple[SliSpec, SliSource]] = {}
        self._running: dict[str, asyncio.Task[SliReading]] = {}

    async def follow(self, specs: Sequence[WorkloadSpec]) -> None:
        """Have exactly the sources that these workloads name."""
        wanted = {spec.name: spec.sli for spec in specs if spec.sli is not None}
        for name in [n for n, (spec, _) in self._sources.items() if wanted.get(n) != spec]:
            await self._close(name)
        for name, sli in wanted.items():
            if name not in self._sources:
                self._sources[name] = (sli, self._open(sli))

    async def read(self, now_s: float) -> Mapping[str, SliReading]:
        """One reading per workload with a source. A source that does not answer in time is Unavailable this tick.

        Its question stays open and its (late) answer is thrown away: answers belong to the tick that asked.
        """
        if not self._sources:
            return {}
        late = {name for name, task in self._running.items() if not task.done()}
        asked = {
            name: asyncio.ensure_future(source.read(now_s))
            for name, (_, source) in self._sources.items()
            if name not in late
        }
        if asked:
            await asyncio.wait(asked.values(), timeout=self._timeout_s)
        readings: dict[str, SliReading] = {}
        for name in self._sources:
            task = asked.get(name)
            if task is None or not task.done():
                reason = f"no answer within {self._timeout_s:g} s"
                readings[name] = SliReading.missing(Unavailable(reason))
                if task is not None:
                    self._running[name] = task
                continue
            self._running.pop(name, None)
            error = task.exception()
            readings[name] = (
                task.result() if error is None else SliReading.missing(Unavailable(f"source failed: {error}"))
            )
        return readings

    def push(self, workload: str, reading: SliReading, now_s: float) -> None:
        """Hand over a reading that the application delivered itself.

        Raises:
            ConfigError: this workload has no SLI source ``push``.
        """
        found = self._sources.get(workload)
        if found is None or not isinstance(found[1], PushSource):
            raise ConfigError(
                "request", workload, "does not take pushed readings", 'configure its sli with source = "push"'
            )
        found[1].push(reading, now_s)

    async def close(self) -> None:
        """Close every source."""
        for name in list(self._sources):
            await self._close(name)

    async def _close(self, name: str) -> None:
        _, source = self._sources.pop(name)
        task = self._running.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await source.close()
