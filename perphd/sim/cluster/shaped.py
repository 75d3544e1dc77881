"""A cluster whose components are resized every minute by the product's shaper (Pace 2018, 4.3).

Problem. How much sooner do applications complete if components hold only the memory that they will use, and
how many of them crash?

Every window of 60 s, in this order:

    1. every component used use(window) x reservation. Under ``Limit.HARD``, as published, a component that
       used more than it held crashes: an elastic component alone, a core component with its application,
       which restarts from the beginning at its place in the queue. Under ``Limit.SOFT``, as with perphd's
       limits, it takes free memory of the host: components crash, elastic before core and the youngest first,
       once the host's memory is used up
    2. every application's forecaster sees the window; the host's plan (``perphd.sizing.shaper``) resizes, freezes and
       ends components. As without swap, a component's memory cannot be reclaimed: it is frozen, and ended if
       the frozen memory does not fit. In ``OPTIMISTIC`` mode a growth beyond the host crashes the component
    3. elastic components of the applications in service are placed, oldest application first, and the next application
       is admitted if all its core components fit and no application in service waits for a place
    4. an application whose core runs proceeds by  (core + elastic components that run) / (all its components)

Memory is the resource: a shortage of CPU slows nothing down and crashes nothing. A host's free memory is what
no component holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import numpy as np

from perphd.domain.quick import maker
from perphd.domain.reading import Unavailable
from perphd.forecast.histogram import Floats
from perphd.forecast.series import Fitted, Forecaster, SeriesForecast, predictions
from perphd.sizing.shaper import (
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
    shape,
)

WINDOW_S: Final = 60.0


class Limit(Enum):
    """The effect of using more than a component holds."""

    HARD = "hard"
    SOFT = "soft"


_ROUNDING: Final = 1e-9
_make_component, _make_demand = maker(Component), maker(Demand)


@dataclass(frozen=True, slots=True, eq=False)
class ShapedApplication:
    """A submitted application: its components, which reserve the same amount each, and its use over time.

    ``run_s``: run time with all components. ``use``: maximum use in each window as a ratio of the reservation;
    the sequence repeats if the run is longer.
    """

    name: str
    submitted_s: float
    core: int
    elastic: int
    run_s: float
    reserved_gib: float
    use: Floats


@dataclass(frozen=True, slots=True)
class ShapedRun:
    """Results of one run.

    ``turnaround_s``: seconds from submission to end, by application. ``slack_ratio``: unused share of the
    held memory. ``crashed_ratio``: share of the applications that crashed. ``allocated_ratio``: share of the
    hosts' memory that was held.
    """

    turnaround_s: tuple[float, ...]
    slack_ratio: float
    crashed_ratio: float
    component_crashes: int
    preempted: int
    allocated_ratio: float


@dataclass(slots=True, eq=False)
class _Part:
    """One placed component."""

    name: str
    owner: _Served
    host: int
    role: Role
    held: float
    since: int
    rung: Rung | None = None
    frozen_use: float = 0.0

    @property
    def used_gib(self) -> float:
        """Use in the last window. A frozen component keeps its use."""
        return self.owner.used_gib if self.rung is None else self.frozen_use


@dataclass(slots=True, eq=False)
class _Served:
    """One application, in the queue or in service."""

    application: ShapedApplication
    rank: int
    begun: int = -1
    done_s: float = 0.0
    crashes: int = 0
    crashed: bool = False
    parts: list[_Part] = field(default_factory=list)
    history: list[float] = field(default_factory=list)
    fitted: Fitted | None = None
    fitted_at: int = -(10**9)
    placed: int = 0

    @property
    def used_gib(self) -> float:
        """Use of each running component in the last window."""
        return self.history[-1] * self.application.reserved_gib if self.history else 0.0

    def use_at(self, window: int) -> float:
        """Use in a window, as a ratio of the reservation."""
        use = self.application.use
        return float(use[(window - self.begun) % len(use)])


class ShapedCluster:
    """A run of one workload in one mode with one forecaster. A ``forecaster`` of None gives perfect forecasts."""

    def __init__(
        self,
        applications: Sequence[ShapedApplication],
        hosts: int,
        host_gib: float,
        mode: ShaperMode,
        forecaster: Forecaster | None,
        settings: ShaperSettings | None = None,
        limit: Limit = Limit.HARD,
    ) -> None:
        ordered = sorted(applications, key=lambda each: each.submitted_s)
        for each in ordered:
            fits = hosts * math.floor(host_gib / each.reserved_gib)
            if each.core > fits:
                raise ValueError(f"{each.name}: {each.core} core components, but only {fits} fit the cluster")
        self._coming = [_Served(each, rank) for rank, each in enumerate(ordered)][::-1]
        self._host_gib, self._mode, self._forecaster = host_gib, mode, forecaster
        self._settings, self._limit = settings or ShaperSettings(), limit
        self._free = np.full(hosts, float(host_gib))
        self._waiting: list[_Served] = []
        self._serving: list[_Served] = []
        self._window = 0
        self._done: list[tuple[_Served, float]] = []
        self._held = self._used = 0.0
        self._component_crashes = self._preempted = 0

    @property
    def free_gib(self) -> list[float]:
        """Memory not held by components, by host."""
        return [float(each) for each in self._free]

    def run(self) -> ShapedRun:
        """Run all applications to their end."""
        while self._coming or self._waiting or self._serving:
            now_s = self._window * WINDOW_S
            if not (self._waiting or self._serving):
                self._window = max(
                    self._window, int(self._coming[-1].application.submitted_s // WINDOW_S) + 1
                )
                now_s = self._window * WINDOW_S
            while self._coming and self._coming[-1].application.submitted_s <= now_s:
                self._waiting.append(self._coming.pop())
            self._use()
            if self._mode is not ShaperMode.OFF:
                self._shape()
            self._place()
            self._proceed(now_s)
            self._window += 1
        count = len(self._done)
        return ShapedRun(
            tuple(ended_s - each.application.submitted_s for each, ended_s in self._done),
            1.0 - self._used / max(self._held, _ROUNDING),
            sum(each.crashes > 0 for each, _ in self._done) / max(1, count),
            self._component_crashes,
            self._preempted,
            self._held / (len(self._free) * self._host_gib * max(1, self._window)),
        )

    def _use(self) -> None:
        """Compute the use in the window that ends now, and the resulting crashes."""
        over: list[_Part] = []
        for served in self._serving:
            if served.begun == self._window:
                continue
            served.history.append(served.use_at(self._window - 1))
            served.crashed = False
            over += [
                part
                for part in served.parts
                if part.rung is None and served.used_gib > part.held * (1.0 + _ROUNDING)
            ]
        if self._limit is Limit.HARD:
            for part in over:
                self._crash(part)
            return
        for part in over:
            self._free[part.host] -= part.owner.used_gib - part.held
            part.held = part.owner.used_gib
        for host in {part.host for part in over}:
            self._kill_beyond(host)

    def _kill_beyond(self, host: int) -> None:
        """End components of a host whose memory is used up: elastic before core, youngest first."""
        parts = [part for served in self._serving for part in served.parts if part.host == host]
        used = sum(part.used_gib for part in parts)
        for part in sorted(parts, key=lambda each: (each.role is Role.CORE, -each.since)):
            if used <= self._host_gib * (1.0 + _ROUNDING):
                return
            used -= part.used_gib
            self._crash(part)

    def _shape(self) -> None:
        by_host: dict[int, list[_Part]] = {}
        forecasts = self._forecasts()
        for served in self._serving:
            for part in served.parts:
                by_host.setdefault(part.host, []).append(part)
        for host, parts in by_host.items():
            known = {part.name: part for part in parts}
            plan = shape(
                [self._component(part, forecasts[part.owner.rank]) for part in parts],
                {Resource.MEMORY: self._host_gib},
                self._mode,
                self._settings,
            )
            for action in plan.actions:
                part = known[action.component]
                if part not in part.owner.parts:
                    continue  # its application has already ended with a core component
                if isinstance(action, Preemption):
                    self._preempt(part, action.rung)
                elif isinstance(action, MemoryRelease):
                    part.rung = None
                elif isinstance(action, Resize):
                    self._resize(host, part, action.after)

    def _component(self, part: _Part, forecast: SeriesForecast | Unavailable) -> Component:
        owner, reserved = part.owner, part.owner.application.reserved_gib
        used = (
            part.frozen_use
            if part.rung is not None
            else owner.history[-1] * reserved
            if owner.history
            else 0.0
        )
        known = isinstance(forecast, SeriesForecast)
        return _make_component(
            part.name,
            owner.application.name,
            owner.rank,
            part.role,
            (self._window - part.since) * WINDOW_S,
            {
                Resource.MEMORY: _make_demand(
                    reserved,
                    used,
                    part.held,
                    forecast.mean * reserved if isinstance(forecast, SeriesForecast) else forecast,
                    forecast.spread * reserved if isinstance(forecast, SeriesForecast) else forecast,
                    unreclaimable=used,
                )
            },
            len(owner.history) if known else 0,
            crashes=owner.crashes,
            crashed=owner.crashed,
            rung=part.rung,
        )

    def _forecasts(self) -> dict[int, SeriesForecast | Unavailable]:
        """The next window's use of every application in service, by rank."""
        model = self._forecaster
        if model is None:
            return {each.rank: SeriesForecast(each.use_at(self._window), 0.0) for each in self._serving}
        found: dict[int, SeriesForecast | Unavailable] = {}
        ranks, fitted, values = [], [], []
        for served in self._serving:
            if len(served.history) < model.least:
                found[served.rank] = Unavailable("too few windows")
                continue
            recent = np.asarray(served.history[-model.history - 1 :], dtype=np.float64)
            if len(served.history) - served.fitted_at >= model.refit_every:
                served.fitted, served.fitted_at = model.fit(recent), len(served.history)
            if served.fitted is None:
                found[served.rank] = Unavailable("the forecast model does not fit these windows")
                continue
            ranks.append(served.rank)
            fitted.append(served.fitted)
            values.append(recent)
        return found | dict(zip(ranks, predictions(model, fitted, values), strict=True))

    def _preempt(self, part: _Part, rung: Rung) -> None:
        if rung is Rung.END:
            self._preempted += 1
            if part.role is Role.CORE:
                self._requeue(part.owner)
            else:
                self._remove(part)
        elif part.rung is None:
            part.frozen_use = part.owner.used_gib
            part.rung = rung
            self._free[part.host] += part.held - part.frozen_use
            part.held = part.frozen_use

    def _resize(self, host: int, part: _Part, after: float) -> None:
        more = after - part.held
        if more > max(0.0, self._free[host]) + _ROUNDING:
            if self._limit is Limit.HARD:
                self._crash(part)  # two components exceed the host: the growing one crashes
                return
            more = max(0.0, float(self._free[host]))
        self._free[host] -= more
        part.held += more

    def _crash(self, part: _Part) -> None:
        if part not in part.owner.parts:
            return  # its application crashed with another component
        self._component_crashes += 1
        part.owner.crashes += 1
        if part.role is Role.CORE:
            self._requeue(part.owner)
        else:
            self._remove(part)
        part.owner.crashed = True

    def _requeue(self, served: _Served) -> None:
        """Restart from the beginning at the original position in the queue."""
        for part in list(served.parts):
            self._remove(part)
        self._serving.remove(served)
        served.done_s, served.history, served.fitted, served.fitted_at = 0.0, [], None, -(10**9)
        place = sum(each.rank < served.rank for each in self._waiting)
        self._waiting.insert(place, served)

    def _remove(self, part: _Part) -> None:
        part.owner.parts.remove(part)
        self._free[part.host] += part.held

    def _place(self) -> None:
        for served in self._serving:
            missing = served.application.core + served.application.elastic - len(served.parts)
            if missing and self._add(served, missing, Role.ELASTIC) < missing:
                return
        while self._waiting:
            served = self._waiting[0]
            if not self._has_room(served.application.core, served.application.reserved_gib):
                return
            self._waiting.pop(0)
            served.begun = self._window
            self._add(served, served.application.core, Role.CORE)
            self._serving.append(served)
            self._serving.sort(key=lambda each: each.rank)
            if self._add(served, served.application.elastic, Role.ELASTIC) < served.application.elastic:
                return

    def _has_room(self, count: int, gib: float) -> bool:
        return bool(np.floor((self._free + _ROUNDING) / gib).clip(0).sum() >= count)

    def _add(self, served: _Served, count: int, role: Role) -> int:
        """Place up to ``count`` components, each on the host with the most free memory. Returns the number placed."""
        reserved = served.application.reserved_gib
        for n in range(count):
            host = int(np.argmax(self._free))
            if self._free[host] + _ROUNDING < reserved:
                return n
            self._free[host] -= reserved
            served.placed += 1
            served.parts.append(
                _Part(
                    f"{served.application.name}.{served.placed}", served, host, role, reserved, self._window
                )
            )
        return count

    def _proceed(self, now_s: float) -> None:
        for served in list(self._serving):
            application = served.application
            ratio = served.use_at(self._window)
            for part in served.parts:
                self._held += part.held
                self._used += min(
                    part.held, part.frozen_use if part.rung is not None else ratio * application.reserved_gib
                )
            running = [part for part in served.parts if part.rung is None]
            if sum(part.role is Role.CORE for part in running) < application.core:
                continue
            served.done_s += WINDOW_S * len(running) / (application.core + application.elastic)
            if served.done_s >= application.run_s:
                over_s = served.done_s - application.run_s
                self._done.append((served, now_s + WINDOW_S - min(over_s, WINDOW_S)))
                for part in list(served.parts):
                    self._remove(part)
                self._serving.remove(served)
