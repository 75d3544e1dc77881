"""Applications with stages on one server of a cluster: Prophet beside CS, DRF and Tetris (ICAC 2016).

Executors are alike on all servers, so one server represents all. CPU and memory are reserved from an
application's start to its end; disk and network are shared. Time passes in samples of ``STEP_S``.

    demand of a device    sum of its users' demands in their present stages, x = demand / capacity
    contention            x > 1: the device moves capacity / (1 + kappa (x - 1)), and all its users slow down alike

    CS         first in, first out; the first application that does not fit CPU and memory blocks the others
    DRF        the fitting application with the smallest dominant share
    Tetris     among applications whose peaks fit all four resources, the one best aligned with the free resources
    Prophet    ``perphd.batch.fairness.next_start`` by ``perphd.qos.availability``, from profiles with errors

Backoff is ``perphd.qos.contention``, with one state per device: it has the daemon's inputs, and restricts the
antagonists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from perphd.batch.fairness import StartCandidate, next_start, overdue_after
from perphd.qos.availability import (
    AvailableInterval,
    DemandStage,
    availability,
    distance,
    fit,
    over_ratio,
)
from perphd.qos.bands import QosBand
from perphd.qos.contention import Contender, DeviceContention, DeviceSample, observed

STEP_S: Final = 2.0
DISK, NET = "disk", "net"
CAPACITIES: Final[Mapping[str, float]] = {DISK: 330.0, NET: 160.0}
"""MB/s of a server: three disks of 110, and both directions of a gigabit link as measured."""
CPUS: Final = 24.0
MEMORY_GIB: Final = 32.0
KAPPA: Final = 0.7
"""Loss through contention, fitted to published makespans before this simulator existed; see ``StagedSettings``."""


class StagedPolicy(StrEnum):
    """Policy that chooses the next application to start."""

    CAPACITY = "CS"
    DRF = "DRF"
    TETRIS = "Tetris"
    PROPHET = "Prophet"


@dataclass(frozen=True, slots=True)
class StagedSettings:
    """``backoff``: relieve contended devices. ``most_over``: Prophet's admission cap; infinite: none.

    ``kappa``: loss of a device's throughput through contention (see the module's docstring).
    """

    policy: StagedPolicy
    backoff: bool = False
    most_over: float = math.inf
    kappa: float = KAPPA


@dataclass(frozen=True, slots=True)
class AppStage:
    """A stage: its length in seconds when it runs alone, and its demand on each device in MB/s."""

    length_s: float
    demands: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class StagedApp:
    """An application's executor on this server, and the profile of an earlier run."""

    name: str
    submitted_s: float
    cpus: float
    memory_gib: float
    stages: tuple[AppStage, ...]
    profile: tuple[AppStage, ...]

    def peak(self, device: str) -> float:
        """The largest profiled demand on a device, in MB/s."""
        return max(stage.demands.get(device, 0.0) for stage in self.profile)


@dataclass(slots=True)
class _Run:
    app: StagedApp
    started_s: float
    stage: int = 0
    done_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StagedOutcome:
    """``makespan_s``: time to the last end. ``execution_s``, ``completion_s``: seconds in execution and to
    completion, by application in order of submission.

    ``over_ratio``: share of busy time in which the demand on a device exceeded its capacity. ``restricted``:
    rounds of backoff.
    """

    makespan_s: float
    execution_s: tuple[float, ...]
    completion_s: tuple[float, ...]
    over_ratio: float
    restricted: int


class StagedServer:
    """One run."""

    def __init__(
        self,
        apps: Sequence[StagedApp],
        settings: StagedSettings,
        capacities: Mapping[str, float] = CAPACITIES,
    ) -> None:
        self._apps = sorted(apps, key=lambda app: (app.submitted_s, app.name))
        for app in self._apps:
            if app.cpus > CPUS or app.memory_gib > MEMORY_GIB:
                raise ValueError(
                    f"{app.name} requests {app.cpus:g} CPUs and {app.memory_gib:g} GiB; a server has {CPUS:g} and "
                    f"{MEMORY_GIB:g}"
                )
        self._settings, self._capacities = settings, capacities
        self.running: list[_Run] = []
        self.waiting: list[StagedApp] = []
        self._waits: list[float] = []
        self._devices = {name: DeviceContention(peak_bytes_s=most) for name, most in capacities.items()}
        self._ended: dict[str, tuple[float, float]] = {}
        self._busy_steps = self._over_steps = self._rounds = 0

    def run(self) -> StagedOutcome:
        """Run until the last application has ended."""
        now_s, arrived = 0.0, 0
        while arrived < len(self._apps) or self.waiting or self.running:
            while arrived < len(self._apps) and self._apps[arrived].submitted_s <= now_s:
                self.submit(self._apps[arrived])
                arrived += 1
            self.start_all(now_s)
            self._step(now_s)
            now_s += STEP_S
        names = [app.name for app in self._apps]
        starts, ends = zip(*(self._ended[name] for name in names), strict=True)
        return StagedOutcome(
            max(ends),
            tuple(end - start for start, end in zip(starts, ends, strict=True)),
            tuple(end - app.submitted_s for app, end in zip(self._apps, ends, strict=True)),
            self._over_steps / max(1, self._busy_steps),
            self._rounds,
        )

    def submit(self, app: StagedApp) -> None:
        """Add one more waiting application."""
        self.waiting.append(app)

    def start_all(self, now_s: float) -> None:
        """Start applications as long as the policy names one."""
        while (app := self._next(now_s)) is not None:
            self.waiting = [each for each in self.waiting if each is not app]
            self._waits.append(now_s - app.submitted_s)
            self.running.append(_Run(app, now_s))

    def _next(self, now_s: float) -> StagedApp | None:
        fitting = [app for app in self.waiting if self._fits(app)]
        if not fitting:
            return None
        match self._settings.policy:
            case StagedPolicy.CAPACITY:
                head = self.waiting[0]
                return head if head is fitting[0] else None
            case StagedPolicy.DRF:
                return min(fitting, key=lambda app: max(app.cpus / CPUS, app.memory_gib / MEMORY_GIB))
            case StagedPolicy.TETRIS:
                return self._aligned(fitting)
        found = next_start(self.candidates(), now_s, self._settings.most_over)
        return None if found is None else next(app for app in fitting if app.name == found.name)

    def _fits(self, app: StagedApp) -> bool:
        cpus = sum(run.app.cpus for run in self.running) + app.cpus
        return cpus <= CPUS and sum(run.app.memory_gib for run in self.running) + app.memory_gib <= MEMORY_GIB

    def _aligned(self, fitting: Sequence[StagedApp]) -> StagedApp | None:
        free = {
            name: most - sum(run.app.peak(name) for run in self.running)
            for name, most in self._capacities.items()
        }
        cpus = CPUS - sum(run.app.cpus for run in self.running)
        memory = MEMORY_GIB - sum(run.app.memory_gib for run in self.running)

        def score(app: StagedApp) -> float:
            devices = sum(app.peak(name) * free[name] / most**2 for name, most in self._capacities.items())
            return app.cpus * cpus / CPUS**2 + app.memory_gib * memory / MEMORY_GIB**2 + devices

        alone = not self.running
        packed = [
            app
            for app in fitting
            if alone or all(app.peak(name) <= free[name] + 1e-9 for name in self._capacities)
        ]
        return max(packed, key=score, default=None)

    # -- Prophet -----------------------------------------------------------------------------------------

    def candidates(self) -> list[StartCandidate]:
        """The candidates for ``next_start``: every waiting application and its fit."""
        lines = {
            name: availability(most, [_ahead(run, name) for run in self.running])
            for name, most in self._capacities.items()
        }
        average_s = max(STEP_S, sum(self._waits) / len(self._waits) if self._waits else 0.0)
        return [
            self._candidate(app, overdue_after(app.submitted_s, average_s), lines) for app in self.waiting
        ]

    def _candidate(
        self, app: StagedApp, overdue_s: float, lines: Mapping[str, Sequence[AvailableInterval]]
    ) -> StartCandidate:
        if not self._fits(app):
            return StartCandidate(app.name, app.submitted_s, overdue_s, False)
        length_s = sum(stage.length_s for stage in app.profile)
        fits = {name: fit(_staged(app.profile, name), line) for name, line in lines.items()}
        return StartCandidate(
            app.name,
            app.submitted_s,
            overdue_s,
            True,
            distance(fits, self._capacities, length_s),
            over_ratio(fits, self._capacities, length_s),
        )

    # -- time passes -------------------------------------------------------------------------------------

    def _step(self, now_s: float) -> None:
        limits = {
            (limit.name, name): limit.limit_ratio
            for name, state in self._devices.items()
            for limit in state.restrictions
        }
        speeds = dict.fromkeys((run.app.name for run in self.running), 1.0)
        for name, most in self._capacities.items():
            users = [
                (run.app.name, demand)
                for run in self.running
                if (demand := run.app.stages[run.stage].demands.get(name, 0.0)) > 0
            ]
            asked = sum(demand * limits.get((who, name), 1.0) for who, demand in users)
            over = asked / most
            moved = asked if over <= 1.0 else most / (1.0 + self._settings.kappa * (over - 1.0))
            for who, _ in users:
                share = limits.get((who, name), 1.0) * (moved / asked if over > 1.0 else 1.0)
                speeds[who] = min(speeds[who], share)
            self._busy_steps += bool(users)
            self._over_steps += over > 1.0
            if self._settings.backoff:
                contenders = [Contender(who, QosBand.COPPER, demand, True) for who, demand in users]
                sample = DeviceSample(now_s + STEP_S, min(1.0, over), moved)
                before = self._devices[name].round
                self._devices[name] = observed(self._devices[name], sample, contenders).state
                self._rounds += self._devices[name].round > before
        for run in list(self.running):
            self._advance(run, speeds[run.app.name], now_s)

    def _advance(self, run: _Run, speed: float, now_s: float) -> None:
        left_s = STEP_S
        while left_s > 0.0:
            needed_s = (run.app.stages[run.stage].length_s - run.done_s) / speed
            if needed_s > left_s:
                run.done_s += left_s * speed
                return
            left_s -= needed_s
            run.stage, run.done_s = run.stage + 1, 0.0
            if run.stage == len(run.app.stages):
                self.running.remove(run)
                self._ended[run.app.name] = (run.started_s, now_s + STEP_S - left_s)
                return


def _staged(
    stages: Sequence[AppStage], device: str, passed: int = 0, done_s: float = 0.0
) -> list[DemandStage]:
    found, at_s = [], 0.0
    for number, stage in enumerate(stages[passed:]):
        length_s = max(0.0, stage.length_s - (done_s if number == 0 else 0.0))
        found.append(DemandStage(at_s, at_s + length_s, stage.demands.get(device, 0.0)))
        at_s += length_s
    return found


def _ahead(run: _Run, device: str) -> list[DemandStage]:
    """The rest of a running application, according to its profile."""
    return _staged(run.app.profile, device, run.stage, run.done_s)


# -- the published workload --------------------------------------------------------------------------------

KINDS: Final = 10
CORES: Final = (1.0, 3.0, 5.0)
SIZES: Final = (0.25, 0.5, 1.0)
EXECUTORS_GIB: Final = (3.0, 5.0, 8.0)
SUBMITTED_S: Final = 1200.0
SOLO_S: Final = 900.0
START_ERROR: Final = 0.05
PEAK_ERROR: Final = 0.1
"""Relative standard errors of profiled stage starts and peaks, as published."""


def ninety_applications(seed: int) -> list[StagedApp]:
    """Ten kinds by three numbers of cores by three sizes, submitted evenly over 20 minutes in random order.

    Published: kinds, cores, sizes, submissions, 0 to 300 MB/s of disk, 0 to 160 of network, errors of
    profiles. Our own assumptions: lengths when alone (900 s for the largest size with five cores) and stages
    (a quarter reads the input; two to six iterations of computing and of disk or network follow).
    """
    rng = np.random.default_rng([seed, 5])
    apps = []
    kinds = [_kind(rng) for _ in range(KINDS)]
    for number, stages in enumerate(kinds):
        for cores in CORES:
            for place, size in enumerate(SIZES):
                solo_s = SOLO_S * size * math.sqrt(CORES[-1] / cores) * float(rng.uniform(0.7, 1.3))
                own = tuple(replace(stage, length_s=stage.length_s * solo_s) for stage in stages)
                apps.append((f"k{number}-{cores:g}-{size:g}", cores, EXECUTORS_GIB[place], own))
    order = rng.permutation(len(apps)).tolist()
    times = rng.uniform(0.0, SUBMITTED_S, len(apps)).tolist()
    found = []
    for place, at_s in zip(order, times, strict=True):
        name, cores, memory, own = apps[place]
        found.append(StagedApp(name, at_s, cores, memory, own, tuple(_profiled(rng, each) for each in own)))
    return found


def _kind(rng: np.random.Generator) -> list[AppStage]:
    """Draw the stages of one kind, with their shares of the length."""
    disk = float(rng.uniform(60.0, 300.0))
    net = 160.0 * float(rng.uniform(0.0, 1.0))
    stages = [AppStage(0.25, {DISK: disk})]
    iterations = int(rng.integers(2, 7))
    for _ in range(iterations):
        length = 0.75 / iterations
        kinds = {DISK: disk * float(rng.uniform(0.15, 0.5))}, {NET: net * float(rng.uniform(0.7, 1.0))}
        computing = float(rng.uniform(0.4, 0.8))
        stages.append(AppStage(length * computing, {}))
        stages.append(AppStage(length * (1.0 - computing), kinds[int(rng.integers(2))]))
    return stages


def _profiled(rng: np.random.Generator, stage: AppStage) -> AppStage:
    length, peak = (
        max(0.3, 1.0 + error * float(rng.standard_normal())) for error in (START_ERROR, PEAK_ERROR)
    )
    return AppStage(stage.length_s * length, {name: value * peak for name, value in stage.demands.items()})
