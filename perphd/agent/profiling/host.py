"""An application on a host as the subject of exploring: granted through the agent's own loop.

Sampling, indicators, writing, journal and restoring are those of the daemon: a profile that is killed leaves what
``perphd restore`` gives back.
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
"""Axis -> the setting that grants it."""
MOST_CORE_STEPS = 16
FEW_CORES = 4
"""Where the host has no more cores than this, CPU time is dialled instead of whole cores."""
QUOTA_STEPS = 24
"""Steps of CPU time at least: as many as a model of this axis alone needs."""
QUOTA_GRAINS = (0.1, 0.05, 0.02, 0.01)
"""Distances between two steps (CPUs): the first one that makes enough steps. The kernel takes no less than .01."""
LEAST_OF_USE, MOST_OF_USE = 0.6, 1.25
"""Range of CPU time that is tried, in parts of what the application uses with everything: below it loses more work than
the guard allows by default, above it nothing holds it back.
"""
MEMORY_STEPS = 6
MEMORY_MARGIN = 1.1
"""Memory is never granted below this multiple of the known use (perphd never makes an application swap)."""

_STUCK = 13
"""Looks after which a ceiling that has not moved will not move soon (a step is made every five seconds)."""
_NEARLY = 1.03
_MOST_AWAITED = 60
"""Looks after which indicators that are never due are shown as they are."""

Step = Callable[[], Awaitable[float]]
"""Lets one period pass; answers the time (monotonic seconds)."""


class ProfilePolicy:
    """Wants whatever the explorer says, for one application; everybody else is left as found."""

    def __init__(self, lra: str) -> None:
        self._lra = lra
        self.settings = UNTOUCHED

    @property
    def name(self) -> str:
        """``profile``."""
        return "profile"

    def decide(self, snapshot: Snapshot) -> TargetState:
        """The settings at hand."""
        return TargetState({self._lra: self.settings})


class HostSubject:
    """One LRA of an agent whose policy is a ``ProfilePolicy``. ``close`` gives everything back."""

    def __init__(self, agent: Agent, policy: ProfilePolicy, spec: WorkloadSpec, step: Step) -> None:
        self._agent, self._policy, self._spec, self._step = agent, policy, spec, step
        self._lattice: Lattice | None = None
        self._high: Limit | Keep = KEEP
        self._still = 0
        self._looks, self._first_s, self._last_s = 0, 0.0, 0.0

    @property
    def look_s(self) -> float:
        """Seconds that a look has taken so far: a period, or as long as indicators need."""
        return (self._last_s - self._first_s) / max(self._looks - 1, 1)

    @property
    def actuators(self) -> Actuators:
        """What resctrl can set on this host."""
        return self._agent.actuators()

    async def look(self) -> Sample:
        """See ``Subject``."""
        sample = await self._sampled()
        for _ in range(_MOST_AWAITED):
            if sample is None or not sample.has(Quality.BETWEEN):
                break
            sample = await self._sampled()  # until its indicators are due there is nothing to see
        if sample is None or sample.has(Quality.GONE):
            raise PerphError(f"{self._spec.name}: nothing runs in {self._spec.cgroup}")
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
        """See ``Subject``. Memory comes down step by step, and no further than the application bears."""
        if self._agent.blocked(self._spec.name):
            return False
        wanted, high = self._policy.settings.memory_high_bytes, self._high
        if not isinstance(wanted, int) or self._still >= _STUCK:
            return True
        return isinstance(high, int) and high <= _NEARLY * wanted

    def in_force(self, point: Point) -> tuple[float, ...]:
        """See ``Subject``."""
        assert self._lattice is not None
        wanted = self._policy.settings.memory_high_bytes
        return tuple(
            float(self._high)
            if axis.name == MEMORY and wanted is not KEEP and isinstance(self._high, int)
            else value
            for axis, value in zip(self._lattice.axes, self._lattice.values(point), strict=True)
        )

    async def grant(self, point: Point | None) -> None:
        """See ``Subject``."""
        if point is None or self._lattice is None:
            self._policy.settings = UNTOUCHED
        else:
            self._policy.settings = settings_of(self._lattice, point, self._agent.topology)

    async def lattice(
        self, actuators: Actuators, memory_floor_bytes: float | None = None, keep: Lattice | None = None
    ) -> tuple[Lattice, tuple[str, ...]]:
        """What can be explored here, and what cannot, each with the reason; ``keep``: an earlier run's.

        Raises:
            PerphError: nothing can be set, or what the earlier run explored no longer can.
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
                    f"an earlier run explored {', '.join(lost)}, which cannot be set any more; --fresh starts over"
                )
            found = keep
        if not found.axes:
            raise PerphError(f"nothing of {self._spec.name} can be set here: {'; '.join(said)}")
        self._lattice = found
        return found, said

    async def close(self) -> None:
        """Give everything back and let go of the host.

        Raises:
            PerphError: not everything could be given back; says what.
        """
        self._policy.settings = UNTOUCHED
        report = await self._agent.stop(restore=True)
        if report is not None and report.failed:
            raise PerphError(f"not everything was given back: {report}; perphd restore tries again")


def lattice_of(
    sample: Sample,
    topology: Topology,
    actuators: Actuators,
    knobs: frozenset[str],
    memory_floor_bytes: float | None = None,
) -> tuple[Lattice, dict[str, str]]:
    """The axes that can be explored, and for the others why not. Pure.

    The bounds are the host's own: whole usable cores, or CPU time where they are few, ways from the least mask on, the
    throttle levels that the hardware has, and memory from what is in use (times ``MEMORY_MARGIN``) up to all that is
    held now.
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
    """The settings that grant a cell; what is granted in full is left as found."""
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
    """An agent of its own around one LRA; nothing is written yet.

    Raises:
        PerphError: the journal is held by a running daemon, or the state directory cannot be used.
    """
    policy = ProfilePolicy(spec.name)
    own = replace(
        config,
        daemon=replace(config.daemon, model_save_s=0.0, mode=Mode.ENFORCE),
        isolation=replace(config.isolation, changes_per_s=100.0, adopt_s=0.0),
        workloads=(replace(spec, mode=Mode.ENFORCE),),
        matches=(),  # whoever else is found would be taken in
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
    """CPU time from less than the application uses to a little more, in tenths of a CPU or finer; then no limit."""
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
