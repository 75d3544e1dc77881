"""An application on a host as the subject of profiling, controlled through the agent's own loop.

Sampling, indicators, writing, journal and restoring are those of the daemon: after a killed profile, ``perphd
restore`` restores everything.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np

from perphd.agent.agent import Agent
from perphd.agent.composition import build_agent
from perphd.agent.sli import SliOpener
from perphd.config.file import Config
from perphd.config.tables import NOBODY
from perphd.domain.allocation import KEEP, UNTOUCHED, Keep, Limit, Settings
from perphd.domain.errors import PerphError
from perphd.domain.policy import Policy, Snapshot, TargetState
from perphd.domain.reading import available
from perphd.domain.sample import Quality, Sample
from perphd.domain.topology import Topology
from perphd.domain.workload import Mode, WorkloadSpec
from perphd.host.actuators import Actuators
from perphd.host.fs import KernelFs
from perphd.host.perf_event_types import EventOpener
from perphd.predictor.profile.lattice import Axis, Lattice, Point

CPUS, QUOTA, MEMORY, WAYS, MBW = "cpus", "cpu_max", "memory_bytes", "llc_ways", "mbw_pct"
KNOBS = {
    CPUS: "cpus",
    QUOTA: "cpu_max_cores",
    MEMORY: "memory_high_bytes",
    WAYS: "llc_masks",
    MBW: "mba_pct",
}
"""The setting that implements each axis."""
MOST_CORE_STEPS = 16
FEW_CORES = 4
"""On hosts with at most this number of cores, CPU time is varied instead of whole cores."""
QUOTA_STEPS = 24
"""Minimum number of steps of CPU time. With fewer, this axis alone has too few points for a model."""
QUOTA_GRAINS = (0.1, 0.05, 0.02, 0.01)
"""Candidate distances between two steps, in CPUs. The first that gives enough steps is used. The kernel's minimum is
0.01.
"""
LEAST_OF_USE, MOST_OF_USE = 0.6, 1.25
"""Range of CPU time to try, relative to unrestricted use. Below it, the loss exceeds the guard's default;
above it, nothing is restricted."""
MEMORY_STEPS = 6
MEMORY_MARGIN = 1.1
"""The granted memory is at least this multiple of the known use (perphd never makes an application swap)."""

_STUCK = 13
"""Number of samples after which a ceiling that has not moved counts as final (one step takes five seconds)."""
_NEARLY = 1.03
_MOST_AWAITED = 60
"""Number of samples after which a sample is accepted although its indicators are still not due."""

Step = Callable[[], Awaitable[float]]
"""Waits for one period; returns the time (monotonic seconds)."""


class ProfilePolicy:
    """Applies the explorer's settings to one application and leaves all others unchanged."""

    def __init__(self, lra: str) -> None:
        self._lra = lra
        self.settings = UNTOUCHED

    @property
    def name(self) -> str:
        """``profile``."""
        return "profile"

    def decide(self, snapshot: Snapshot) -> TargetState:
        """The explorer's present settings, as a target state."""
        return TargetState({self._lra: self.settings})


class HostSubject:
    """One LRA of an agent whose policy is a ``ProfilePolicy``. ``close`` restores everything."""

    def __init__(self, agent: Agent, policy: ProfilePolicy, spec: WorkloadSpec, step: Step) -> None:
        self._agent, self._policy, self._spec, self._step = agent, policy, spec, step
        self._lattice: Lattice | None = None
        self._high: Limit | Keep = KEEP
        self._still = 0
        self._looks, self._first_s, self._last_s = 0, 0.0, 0.0

    @property
    def look_s(self) -> float:
        """Mean seconds per sample so far: a period, or the time that indicators need."""
        return (self._last_s - self._first_s) / max(self._looks - 1, 1)

    @property
    def actuators(self) -> Actuators:
        """The controls that resctrl offers on this host."""
        return self._agent.actuators()

    async def look(self) -> Sample:
        """See ``ExploredSubject``."""
        sample = await self._sampled()
        for _ in range(_MOST_AWAITED):
            if sample is None or not sample.has(Quality.BETWEEN):
                break
            sample = await self._sampled()  # the indicators are not due yet
        if sample is None or sample.has(Quality.GONE):
            raise PerphError(
                f"{self._spec.name}: its cgroup {self._spec.cgroup} does not exist or was not sampled"
            )
        self._looks += 1
        self._first_s = self._first_s if self._looks > 1 else sample.at_s
        self._last_s = sample.at_s
        high = self._agent.in_force(self._spec.name).memory_high_bytes
        self._still = self._still + 1 if high == self._high else 0
        self._high = high
        return sample

    async def _sampled(self) -> Sample | None:
        await self._agent.tick(await self._step())
        return self._agent.samples.get(self._spec.name)

    def ready(self) -> bool:
        """See ``ExploredSubject``. Memory is reduced step by step, and no further than the application tolerates."""
        if self._agent.blocked(self._spec.name):
            return False
        wanted, high = self._policy.settings.memory_high_bytes, self._high
        if not isinstance(wanted, int) or self._still >= _STUCK:
            return True
        return isinstance(high, int) and high <= _NEARLY * wanted

    def in_force(self, point: Point) -> tuple[float, ...]:
        """See ``ExploredSubject``."""
        assert self._lattice is not None
        wanted = self._policy.settings.memory_high_bytes
        return tuple(
            float(self._high)
            if axis.name == MEMORY and wanted is not KEEP and isinstance(self._high, int)
            else value
            for axis, value in zip(self._lattice.axes, self._lattice.values(point), strict=True)
        )

    async def grant(self, point: Point | None) -> None:
        """See ``ExploredSubject``."""
        if point is None or self._lattice is None:
            self._policy.settings = UNTOUCHED
        else:
            self._policy.settings = settings_of(self._lattice, point, self._agent.topology)

    async def lattice(
        self, actuators: Actuators, memory_floor_bytes: float | None = None, keep: Lattice | None = None
    ) -> tuple[Lattice, tuple[str, ...]]:
        """The axes that can be explored here, and those that cannot, with reasons; ``keep``: an earlier run's lattice.

        Raises:
            PerphError: nothing can be set, or an axis of the earlier run can no longer be set.
        """
        await self.look()
        await self.look()
        sample = await self.look()
        knobs, missing = self._agent.enforceable(self._spec)
        found, left_out = lattice_of(sample, self._agent.topology, actuators, knobs, memory_floor_bytes)
        reasons = {item.knob: item.reason for item in missing}
        said = tuple(f"{axis}: {reasons.get(KNOBS[axis]) or why}" for axis, why in left_out.items())
        if keep is not None:
            now = {axis.name for axis in found.axes}
            if lost := [axis.name for axis in keep.axes if axis.name not in now]:
                raise PerphError(
                    f"an earlier run explored {', '.join(lost)}, which can no longer be set; --fresh starts over"
                )
            found = keep
        if not found.axes:
            raise PerphError(f"nothing can be set for {self._spec.name} here: {'; '.join(said)}")
        self._lattice = found
        return found, said

    async def close(self) -> None:
        """Restore everything and release the host.

        Raises:
            PerphError: names what could not be restored.
        """
        self._policy.settings = UNTOUCHED
        report = await self._agent.stop(restore=True)
        if report is not None and report.failed:
            raise PerphError(f"not everything was restored: {report}; run perphd restore to try again")


def lattice_of(
    sample: Sample,
    topology: Topology,
    actuators: Actuators,
    knobs: frozenset[str],
    memory_floor_bytes: float | None = None,
) -> tuple[Lattice, dict[str, str]]:
    """The axes that can be explored, and the reasons why others cannot. Pure.

    The bounds are the host's: whole usable cores, or CPU time where there are few cores; ways from the
    narrowest mask up; the hardware's throttle levels; and memory from present use (times ``MEMORY_MARGIN``)
    up to all that the application holds now.
    """
    axes: list[Axis] = []
    left_out: dict[str, str] = {}
    cores = len(topology.usable_cores)
    quota = _quota(sample, topology)
    by_time = cores <= FEW_CORES and KNOBS[QUOTA] in knobs and len(quota) > 1
    wanted: dict[str, tuple[str, tuple[float, ...], str]] = {
        **(
            {QUOTA: ("CPUs", quota, "")}
            if by_time
            else {CPUS: ("cores", _spread(1, cores, MOST_CORE_STEPS), "the host has one core")}
        ),
        WAYS: (
            "ways",
            tuple(float(w) for w in range(max(actuators.min_cbm_bits, 1), actuators.llc_ways + 1)),
            "the cache cannot be divided here",
        ),
        MBW: (
            "%",
            tuple(float(p) for p in actuators.mba_levels_pct),
            "memory bandwidth cannot be throttled here",
        ),
        MEMORY: ("bytes", _memory(sample, memory_floor_bytes), "it holds no more memory than it uses"),
    }
    for name, (unit, steps, otherwise) in wanted.items():
        if KNOBS[name] not in knobs:
            left_out[name] = "cannot be set here"
        elif len(steps) < 2:
            left_out[name] = otherwise
        else:
            axes.append(Axis(name, unit, steps, slow=name == MEMORY))
    return Lattice(tuple(axes)), left_out


def settings_of(lattice: Lattice, point: Point, topology: Topology) -> Settings:
    """The settings that grant an allocation. A setting whose axis is at its maximum stays unchanged."""
    settings = UNTOUCHED
    domains = [cache.domain for cache in topology.l3_domains]
    for axis, step, value in zip(lattice.axes, point, lattice.values(point), strict=True):
        if step == len(axis.steps) - 1:
            continue
        if axis.name == CPUS:
            settings = replace(settings, cpus=topology.cpus_of(topology.usable_cores[: round(value)]))
        elif axis.name == QUOTA:
            settings = replace(settings, cpu_max_cores=value)
        elif axis.name == MEMORY:
            settings = replace(settings, memory_high_bytes=int(value))
        elif axis.name == WAYS:
            mask = (1 << round(value)) - 1
            settings = replace(settings, llc_masks=tuple((domain, mask) for domain in domains))
        elif axis.name == MBW:
            settings = replace(settings, mba_pct=tuple((domain, round(value)) for domain in domains))
    return settings


def open_subject(
    config: Config,
    spec: WorkloadSpec,
    step: Step,
    *,
    fs: KernelFs | None = None,
    opener: EventOpener | None = None,
    sli_opener: SliOpener | None = None,
    clock: Callable[[], float] | None = None,
) -> HostSubject:
    """Build a separate agent for one LRA, without writing anything.

    Raises:
        PerphError: a running daemon holds the journal, or the state directory cannot be used.
    """
    policy = ProfilePolicy(spec.name)
    own = replace(
        config,
        daemon=replace(config.daemon, model_save_s=0.0, mode=Mode.ENFORCE),
        isolation=replace(config.isolation, changes_per_s=100.0, adopt_s=0.0),
        workloads=(replace(spec, mode=Mode.ENFORCE),),
        matches=(),  # otherwise the agent would find and add further workloads
        opt_in=NOBODY,
    )
    seam: Policy = policy
    agent = build_agent(
        own,
        fs=fs,
        opener=opener,
        clock=clock,
        sli_opener=sli_opener,
        store=False,
        policy=seam,
    )
    return HostSubject(agent, policy, own.workloads[0], step)


def _quota(sample: Sample, topology: Topology) -> tuple[float, ...]:
    """The values of CPU time to try: from below the application's use to slightly above it, then no limit."""
    most = float(len(topology.cpus_of(topology.usable_cores)))
    used = sample.cpu_usage_cores
    if not available(used) or used <= 0.0:
        return ()
    low, high = LEAST_OF_USE * used, min(MOST_OF_USE * used, most)
    steps: list[float] = []
    for grain in QUOTA_GRAINS:
        first = max(1, math.ceil(low / grain - 1e-9))
        steps = [round(n * grain, 2) for n in range(first, math.floor(high / grain + 1e-9) + 1)]
        if len(steps) >= QUOTA_STEPS:
            break
    return (*(step for step in steps if step < most), most)


def _spread(low: int, high: int, most: int) -> tuple[float, ...]:
    count = min(high - low + 1, most)
    return tuple(sorted({float(round(v)) for v in np.linspace(low, high, max(count, 1))}))


def _memory(sample: Sample, floor_bytes: float | None) -> tuple[float, ...]:
    used, held = sample.memory_working_set_bytes, sample.memory_current_bytes
    if not available(held):
        return ()
    if floor_bytes is None:
        if not available(used):
            return ()
        floor_bytes = MEMORY_MARGIN * used
    top = held * 1.02
    if floor_bytes >= held:
        return ()
    return tuple(float(int(v)) for v in np.linspace(floor_bytes, top, MEMORY_STEPS))
