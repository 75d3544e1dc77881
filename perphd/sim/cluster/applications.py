"""Applications that share a cluster: core and elastic components, an order and an allocation rule (Pace 2018, 3.3).

Problem. Which allocation rule and which queue order let applications complete soonest on a given capacity?

Model. An application has C units of core components and E units of elastic components. With all of them it takes T
seconds. Its work is W = T (C + E), and with G elastic units it proceeds at the rate C + G. Events are submissions and
completions. Nothing changes between events, so each completion time is computed exactly, without time steps:

    remaining -= (C + G) (now - since)          at every event
    next completion = now + min over applications in service of remaining / (C + G)

The rule sees what ``perphd.batch.elastic`` sees, and returns the applications in service with their elastic
units.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeAlias

from perphd.batch.elastic import ElasticRequest, ElasticShares, arrived, departed, rebalanced

Rule: TypeAlias = Callable[[ElasticShares], ElasticShares]
"""Computes the shares after an event from the shares before it with its application added or removed."""

INTERACTIVE_SIZE: Final = 0.001
"""Factor on the size of an interactive application. It puts the application before all batch work of the
published workloads.
"""
_DONE: Final = 1e-9
"""Share of an application's work that counts as a rounding error."""


@dataclass(frozen=True, slots=True)
class Application:
    """A submitted application: units of core and elastic components, and the run time in seconds with all of them.

    ``unit``: units of one elastic component. ``cpu_memory``: product of cores and GiB of one component,
    summed over the components (three-dimensional size).
    """

    name: str
    submitted_s: float
    core: int
    elastic: int
    run_s: float
    unit: int = 1
    components: int = 1
    cpu_memory: float = 1.0
    interactive: bool = False

    @property
    def work(self) -> float:
        """Its work in unit seconds."""
        return self.run_s * (self.core + self.elastic)


class Order(Enum):
    """The order of the queue; see ``key``."""

    FIFO = "FIFO"
    SJF = "SJF"
    SJF_2D = "SJF-2D"
    SJF_3D = "SJF-3D"
    HRRN = "HRRN"
    SRPT = "SRPT"


@dataclass(frozen=True, slots=True)
class Completion:
    """One completed application."""

    application: Application
    started_s: float
    ended_s: float

    @property
    def turnaround_s(self) -> float:
        """Seconds from submission to completion."""
        return self.ended_s - self.application.submitted_s

    @property
    def queued_s(self) -> float:
        """Seconds from submission to service."""
        return self.started_s - self.application.submitted_s


@dataclass(frozen=True, slots=True)
class Served:
    """A whole run: completions in order of time, and averages from the first submission to the last completion."""

    completions: tuple[Completion, ...]
    allocated_ratio: float
    waiting: float
    in_service: float


def key(order: Order, application: Application, now_s: float, remaining_ratio: float = 1.0) -> float:
    """The sorting key of a waiting application. The smallest is next.

    ``remaining_ratio``: remaining share of its work, for SRPT.
    """
    if order is Order.FIFO:
        return application.submitted_s
    if order is Order.HRRN:
        return -(1.0 + (now_s - application.submitted_s) / application.run_s)
    size = application.run_s * (INTERACTIVE_SIZE if application.interactive else 1.0)
    if order is Order.SJF_2D:
        return size * application.components
    if order is Order.SJF_3D:
        return size * application.cpu_memory
    return size * remaining_ratio if order is Order.SRPT else size


def run(
    applications: Iterable[Application],
    capacity: int,
    rule: Rule = rebalanced,
    order: Order = Order.FIFO,
    preemptive: bool = False,
) -> Served:
    """Run all applications to their end with one rule and one order.

    ``preemptive``: an application that precedes the last one in service takes elastic components. In that
    case Algorithm 2 of ``perphd.batch.elastic`` decides, whatever the rule.

    Raises:
        ValueError: the core of an application exceeds the capacity, or the rule never serves one.
    """
    return _Cluster(sorted(applications, key=lambda each: each.submitted_s), capacity, rule, order).run(
        preemptive
    )


class _Cluster:
    def __init__(self, applications: Sequence[Application], capacity: int, rule: Rule, order: Order) -> None:
        self._applications = {each.name: each for each in applications}
        if len(self._applications) != len(applications):
            raise ValueError("two applications have the same name")
        self._arrivals = list(reversed(applications))
        self._shares = ElasticShares(capacity)
        self._rule, self._order = rule, order
        self._left: dict[str, float] = {}
        self._started: dict[str, float] = {}
        self._now_s = applications[0].submitted_s if applications else 0.0
        self._done: list[Completion] = []
        self._allocated = self._waiting = self._serving = 0.0

    def run(self, preemptive: bool) -> Served:
        first_s = self._now_s
        while self._arrivals or self._shares.serving:
            ending, end_s = self._next_completion()
            if self._arrivals and self._arrivals[-1].submitted_s <= end_s:
                self._to(self._arrivals[-1].submitted_s)
                self._submit(self._simultaneous(), preemptive)
            else:
                self._to(end_s)
                self._complete(ending, preemptive)
        if self._shares.waiting or self._shares.preempting:
            names = [each.name for each in (*self._shares.preempting, *self._shares.waiting)]
            raise ValueError(f"the scheduling rule never serves {', '.join(names[:5])}")
        length_s = max(self._now_s - first_s, 1e-12)
        return Served(
            tuple(self._done),
            self._allocated / (self._shares.capacity * length_s),
            self._waiting / length_s,
            self._serving / length_s,
        )

    def _next_completion(self) -> tuple[str, float]:
        name, soonest_s = "", math.inf
        for job in self._shares.serving:
            after_s = self._left[job.name] / (job.core + job.granted)
            if after_s < soonest_s:
                name, soonest_s = job.name, after_s
        return name, self._now_s + soonest_s

    def _to(self, now_s: float) -> None:
        passed_s = now_s - self._now_s
        for job in self._shares.serving:
            units = job.core + job.granted
            self._left[job.name] -= units * passed_s
            self._allocated += units * passed_s
        self._waiting += (len(self._shares.waiting) + len(self._shares.preempting)) * passed_s
        self._serving += len(self._shares.serving) * passed_s
        self._now_s = now_s

    def _simultaneous(self) -> list[Application]:
        """All applications submitted at this instant; the order decides among them."""
        taken = []
        while self._arrivals and self._arrivals[-1].submitted_s <= self._now_s:
            taken.append(self._arrivals.pop())
        return taken

    def _submit(self, applications: list[Application], preemptive: bool) -> None:
        requests = []
        for each in applications:
            if not 0 < each.core <= self._shares.capacity:
                raise ValueError(
                    f"{each.name}: its core is {each.core} units (allowed: 1 to the capacity, {self._shares.capacity})"
                )
            self._left[each.name] = each.work
            requests.append(ElasticRequest(each.name, each.core, each.elastic, unit=each.unit))
        requests.sort(key=self._key)
        if preemptive:
            self._prioritise()
            for request in requests:
                urgent = replace(request, priority=self._priority(request.name))
                self._settle(arrived(self._shares, urgent))
            return
        waiting = list(self._shares.waiting)
        if self._order is Order.HRRN:
            waiting = sorted([*waiting, *requests], key=self._key)
        else:
            for request in requests:
                waiting.insert(bisect(waiting, self._key(request), key=self._key), request)
        self._shares = replace(self._shares, waiting=tuple(waiting))
        if waiting[0].core <= self._shares.free:
            self._settle(self._rule(self._shares))

    def _complete(self, name: str, preemptive: bool) -> None:
        assert self._left[name] <= _DONE * self._applications[name].work, name
        self._done.append(Completion(self._applications[name], self._started[name], self._now_s))
        if preemptive:
            self._prioritise()
            self._settle(departed(self._shares, name))
            del self._left[name]
            return
        del self._left[name]
        shares = replace(self._shares, serving=tuple(job for job in self._shares.serving if job.name != name))
        if self._order is Order.HRRN:
            shares = replace(shares, waiting=tuple(sorted(shares.waiting, key=self._key)))
        self._settle(self._rule(shares))

    def _settle(self, shares: ElasticShares) -> None:
        for job in shares.serving:
            self._started.setdefault(job.name, self._now_s)
        self._shares = shares

    def _key(self, job: ElasticRequest) -> float:
        application = self._applications[job.name]
        return key(self._order, application, self._now_s, self._left[job.name] / application.work)

    def _priority(self, name: str) -> int:
        """Priority in milliseconds; higher priorities are served first."""
        return -round(1000.0 * self._key(ElasticRequest(name, 1, 0)))

    def _prioritise(self) -> None:
        """Update the priorities of all applications, and sort them."""
        parts = []
        for jobs in (self._shares.serving, self._shares.preempting, self._shares.waiting):
            known = [replace(job, priority=self._priority(job.name)) for job in jobs]
            parts.append(tuple(sorted(known, key=lambda job: -job.priority)))
        self._shares = replace(self._shares, serving=parts[0], preempting=parts[1], waiting=parts[2])
