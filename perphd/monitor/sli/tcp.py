"""Requests per second and latency of any TCP server, by BPF programs at its control group (docs/tcp_latency.md)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from perphd.domain.workload import SliSpec
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.tcp_latency import HookPlace, LatencyCounter, Placement, TcpCounts, TcpProbe, find_place
from perphd.monitor.sli.options import ports_of, setting
from perphd.monitor.sli.polled import AnsweredAt, PolledSource, SliError
from perphd.monitor.sli.reading import SliReading, SliSource
from perphd.monitor.sli.resolution import EXACT, Resolution
from perphd.monitor.sli.tcp_window import TcpWindow

_OPENING_S: Final = 5.0
LOOK_AGAIN_S: Final = 30.0
"""Seconds between two searches for the listening socket while no request is seen."""


class Probe(Protocol):
    """Attached BPF programs."""

    def read(self) -> TcpCounts:
        """All counts since the programs were attached."""

    def close(self) -> None:
        """Detach the programs."""


ProbeOpener = Callable[[str, int, Sequence[int]], Probe]
"""Takes a directory, its inode (0: unknown) and ports, and attaches the programs. Raises KernelError if that fails."""
PlaceFinder = Callable[[str, Sequence[int]], Placement]
"""Takes the workload's cgroup and configured ports; returns where its connections can be observed."""


class TcpSource(PolledSource):
    """Measures a TCP server; attaches its programs again if the control group or the listening socket changes."""

    def __init__(self, spec: SliSpec, cgroup: str, find: PlaceFinder, opener: ProbeOpener = TcpProbe) -> None:
        super().__init__("tcp", _OPENING_S, EXACT)
        self._cgroup, self._find, self._open = cgroup, find, opener
        self._ports = ports_of(setting(spec, "ports"))
        self._from_first = setting(spec, "from") == "first"
        self._lock = asyncio.Lock()
        self._attached: tuple[HookPlace, Probe, TcpWindow] | None = None
        self._quiet_since_s = 0.0
        self._started = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings for an operator about these readings; empty if there are none."""
        if self._attached is None:
            return ()
        place, _, window = self._attached
        return (*((place.why,) if place.why else ()), *window.signs)

    async def _ask(self, answered_at: AnsweredAt) -> SliReading:
        async with self._lock:  # a concurrent close waits until attaching is complete
            return await self._look(answered_at)

    async def _look(self, answered_at: AnsweredAt) -> SliReading:
        now_s = answered_at()
        if self._attached is not None and await self._is_elsewhere(self._attached[0], now_s):
            self._detach()
        if self._attached is None:
            self._attached = await self._attach()
            self._quiet_since_s, self._started = now_s, 0
        _, probe, window = self._attached
        counts, at_s = probe.read(), answered_at()
        if counts[LatencyCounter.STARTED] != self._started:
            self._started, self._quiet_since_s = counts[LatencyCounter.STARTED], at_s
        return window.update(counts, at_s)

    async def _attach(self) -> tuple[HookPlace, Probe, TcpWindow]:
        place = await asyncio.to_thread(self._find, self._cgroup, self._ports)
        if isinstance(place, str):
            raise SliError(place)
        return place, self._open(place.directory, place.inode, place.ports), TcpWindow(self._from_first)

    async def _is_elsewhere(self, place: HookPlace, now_s: float) -> bool:
        """True if the group was recreated, or no request comes and the listening socket has moved."""
        try:
            inode = os.stat(place.directory).st_ino
        except OSError:
            return True
        if place.inode and inode != place.inode:
            return True
        if now_s - self._quiet_since_s < LOOK_AGAIN_S:
            return False
        self._quiet_since_s = now_s
        found = await asyncio.to_thread(self._find, self._cgroup, self._ports)
        return isinstance(found, HookPlace) and (found.directory, found.ports) != (
            place.directory,
            place.ports,
        )

    async def _failed(self) -> None:
        self._detach()

    async def close(self) -> None:
        """Detach the programs."""
        async with self._lock:
            self._detach()

    def _detach(self) -> None:
        attached, self._attached = self._attached, None
        if attached is not None:
            attached[1].close()


class WithTcpLatency:
    """A source of the work rate, combined with ``tcp`` for the latency."""

    def __init__(self, source: SliSource, tcp: TcpSource) -> None:
        self._source, self._tcp = source, tcp

    @property
    def notes(self) -> tuple[str, ...]:
        """See ``TcpSource.notes``."""
        return self._tcp.notes

    @property
    def resolution(self) -> Resolution:
        """Reporting period of the source; the latency is exact at any moment."""
        return self._source.resolution

    def worked(self, cpu_s: float | None) -> None:
        """Take the application's CPU time between the last two readings; None if unknown."""
        self._source.worked(cpu_s)

    async def read(self, now_s: float) -> SliReading:
        """The source's own indicators, with the latency of its TCP connections."""
        own, seen = await asyncio.gather(self._source.read(now_s), self._tcp.read(now_s))
        return replace(
            own,
            latency_p50_ms=seen.latency_p50_ms,
            latency_p95_ms=seen.latency_p95_ms,
            latency_p99_ms=seen.latency_p99_ms,
            p50=seen.p50,
            p95=seen.p95,
            p99=seen.p99,
        )

    async def close(self) -> None:
        """Close both sources."""
        try:
            await self._tcp.close()
        finally:
            await self._source.close()


def tcp_source(spec: SliSpec, cgroup: str, hierarchies: Hierarchies) -> TcpSource:
    """The TCP source on the running host."""
    return TcpSource(spec, cgroup, lambda group, ports: find_place(hierarchies, group, ports))
