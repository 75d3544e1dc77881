"""Reads the applications' own indicators: one source per workload, all together before every tick."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from perphd.agent.silence import Silence
from perphd.domain.capability import Area, Capability
from perphd.domain.errors import ConfigError
from perphd.domain.reading import Awaited, Unavailable, available
from perphd.domain.sample import Sample
from perphd.domain.workload import SliSpec, WorkloadSpec
from perphd.monitor.sli import NotedSource, PushSource, SliReading, SliSource

log = logging.getLogger("perphd")

SliOpener = Callable[[SliSpec, str], SliSource]
"""Makes a source from its specification and the path of its workload's control group."""


class SliBoard:
    """Opens, reads and closes the SLI sources of all workloads.

    Args:
        opener: makes a source.
        timeout_s: longest delay of a tick by sources.
        late_s: age up to which an open query counts as not due yet instead of missing.
    """

    def __init__(self, opener: SliOpener, timeout_s: float, late_s: float = 0.0) -> None:
        self._open, self._timeout_s, self._late_s = opener, timeout_s, late_s
        self._silence = Silence()
        self._sources: dict[str, tuple[tuple[SliSpec, str], SliSource]] = {}
        self._running: dict[str, asyncio.Task[SliReading]] = {}
        self._asked_at_s: dict[str, float] = {}

    async def follow(self, specs: Sequence[WorkloadSpec]) -> None:
        """Open and close sources so that they match these workloads."""
        wanted = {spec.name: (spec.sli, spec.cgroup) for spec in specs if spec.sli is not None}
        for name in [n for n, (spec, _) in self._sources.items() if wanted.get(n) != spec]:
            await self._close(name)
        self._silence.keep(self._sources)
        for name, place in wanted.items():
            if name not in self._sources:
                self._sources[name] = (place, self._open(*place))

    async def read(self, now_s: float) -> Mapping[str, SliReading]:
        """One reading per workload with a source.

        A query without an answer in time stays open, and its answer becomes the reading of a later tick. A late
        answer is correct for its own interval (a rate covers the time between two queries), and better than none
        from a slow source. Meanwhile the reading is Awaited for ``late_s``, then Unavailable.
        """
        asked = {
            name: asyncio.ensure_future(source.read(now_s))
            for name, (_, source) in self._sources.items()
            if name not in self._running
        }
        self._running |= asked
        self._asked_at_s |= dict.fromkeys(asked, now_s)
        if asked:  # the tick does not wait again for a source that is already late
            await asyncio.wait(asked.values(), timeout=self._timeout_s)
        readings = {name: self._answer(name, now_s) for name in self._sources if name in self._running}
        self._silence.take(now_s, readings)
        return readings

    def silence(self, workload: str, now_s: float) -> str:
        """The numbers that an indicator has lacked for long, as text; empty if it gives them."""
        found = self._sources.get(workload)
        if found is None:
            return ""
        (spec, _), _ = found
        return self._silence.text(workload, now_s).replace(f": {spec.source}: ", ": ", 1)

    def worked(self, samples: Iterable[Sample]) -> None:
        """Pass on the CPU time of the applications: an indicator that does not change during work has a
        coarse resolution.
        """
        for sample in samples:
            found = self._sources.get(sample.workload)
            if found is not None:
                usage = sample.cpu_usage_cores
                found[1].worked(usage * sample.interval_s if available(usage) else None)

    def resolution(self, workload: str) -> str:
        """The resolution of this workload's source, in words; empty if it has none."""
        found = self._sources.get(workload)
        return "" if found is None else str(found[1].resolution)

    def capabilities(self) -> tuple[Capability, ...]:
        """The sources for ``doctor``, with their resolutions."""
        return tuple(
            Capability(
                f"indicators of {name}",
                Area.MEASURE,
                present=True,
                detail=f"{sli.source}, resolution {source.resolution}",
            )
            for name, ((sli, _), source) in self._sources.items()
        )

    def _answer(self, name: str, now_s: float) -> SliReading:
        task = self._running[name]
        if not task.done():
            if now_s - self._asked_at_s[name] < self._late_s:
                return SliReading.missing(Awaited("the source's answer is late"))
            return SliReading.missing(Unavailable(f"no answer within {self._timeout_s:g} s"))
        del self._running[name]
        if task.cancelled():
            return SliReading.missing(Unavailable("the source failed: its query was cancelled"))
        error = task.exception()
        if error is not None:
            return SliReading.missing(Unavailable(f"the source failed: {error}"))
        return task.result()

    def notes(self) -> Mapping[str, str]:
        """The sources' remarks on their readings, by workload; empty if a source has none."""
        return {
            name: "; ".join(source.notes)
            for name, (_, source) in self._sources.items()
            if isinstance(source, NotedSource)
        }

    def push(self, workload: str, reading: SliReading, now_s: float) -> None:
        """Store a reading that the application delivered itself.

        Raises:
            ConfigError: this workload has no SLI source ``push``.
        """
        found = self._sources.get(workload)
        if found is None or not isinstance(found[1], PushSource):
            raise ConfigError(
                "request",
                workload,
                "the workload does not take pushed readings",
                'an sli with source = "push" in its table',
            )
        found[1].push(reading, now_s)

    async def close(self) -> None:
        """Close every source; a failure does not prevent the others from closing."""
        for name in list(self._sources):
            await self._close(name)

    async def _close(self, name: str) -> None:
        _, source = self._sources.pop(name)
        task = self._running.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        try:
            await source.close()
        except Exception as exc:
            log.warning("the SLI source of %s did not close cleanly: %s", name, exc)
