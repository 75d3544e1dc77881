"""The interface of every policy: ``Policy.decide(Snapshot) -> TargetState``, a pure function.

State that a policy carries from tick to tick travels in the snapshot (``memory``) and returns in the target
state, so that a recorded run replays bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from perphd.domain.allocation import UNTOUCHED, Allocation, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import Decision, Outcome
from perphd.domain.host_account import HostAccount
from perphd.domain.reading import NOT_MEASURED, Reading
from perphd.domain.sample import Sample
from perphd.domain.throttle import ThrottleCurve, ThrottleSource
from perphd.domain.topology import Topology
from perphd.domain.workload import WorkloadSpec


class ResPerfModel(Protocol):
    """The Res-Perf model of one LRA as a policy sees it: it predicts and does not learn.

    The reference allocation is "nothing enforced, no batch". A work ratio of 0.8 means 80 % of the work rate that the
    same load would reach there; a delay ratio of 2 means twice the delay.
    """

    def reference(self, signal: str, load: Reading) -> Band | None:
        """Expected value of a signal at the reference allocation; None while it is unknown.

        Signals: ``work:SOURCE`` and ``delay:SOURCE`` (values of different sources are never compared, see
        ``domain.signals``), ``cpu_usage_cores``, ``in_flight``, and stall shares plus 1 (``cpu_some_pct``
        ...).
        """

    @property
    def is_closed(self) -> bool:
        """True once contention has shown a closed-loop load: its work rate falls when it has to wait."""

    def predict_work(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Band, ...]:
        """Work rate under each allocation, as a ratio to the reference."""

    def predict_delay(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Band, ...]:
        """Delay under each allocation, as a ratio to the reference."""

    def batch_cores(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Band, ...]:
        """CPU that batch is predicted to use under each allocation, in cores."""


RESEMBLING: Final = 4.0
"""Consecutive samples of an LRA on a contended host that tell as much about its mean as one independent sample."""


@dataclass(frozen=True, slots=True)
class Band:
    """A predicted positive quantity: its value, and ``sd``, the standard deviation of its logarithm.

    ``support``: effective number of samples near this point. ``provisional``: the value is based on a reference
    that was learned while the host was contended; its ``sd`` is then wider.
    """

    value: float
    sd: float
    support: float
    provisional: bool = False

    def at(self, z: float) -> float:
        """The quantile that lies ``z`` standard deviations above the median (negative ``z``: below)."""
        return self.value * math.exp(z * self.sd)

    def level(self, z: float) -> float:
        """The value to judge against; a provisional one is moved by ``z`` standard deviations of its mean.

        The mean of ``support`` samples is more certain than one sample. Consecutive samples resemble each other, so
        ``RESEMBLING`` of them count as one.
        """
        if not self.provisional:
            return self.value
        return self.at(z * math.sqrt(min(1.0, RESEMBLING / max(self.support, 1.0))))


@dataclass(frozen=True, slots=True)
class ModelContext:
    """Covariates of a prediction: circumstances that no policy controls.

    - ``lra_demand_cores``: CPU that the LRA would use if it were alone.
    - ``batch_demand_cores``: CPU that batch would use if it could (its runnable demand, capped at the host's
      CPUs).
    - ``total_cores``: usable CPUs; ``other_cores``: CPU that everything else on the host uses.
    - ``threads_per_core``: hardware threads per physical core; more than 1 with SMT.
    """

    lra_demand_cores: float
    batch_demand_cores: float
    total_cores: float
    other_cores: float = 0.0
    threads_per_core: float = 1.0


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """One workload as a policy sees it.

    - ``sample``: None while the workload's cgroup does not exist.
    - ``model``, ``protection`` (the allocation in force), ``protected_since_s`` (monotonic): LRAs only.
    - ``enforceable``: knobs (fields of Settings) that can be written for this workload.
    - ``enforced``: the operator lets perphd write its settings; otherwise it is only observed.
    - ``allowed``: CPUs that its cgroup may use; None: unknown.
    - ``seen_domains``: L3 domains in which its threads ran lately; empty: unknown.
    - ``waiting``: knobs whose last wanted value is not written yet.
    """

    spec: WorkloadSpec
    sample: Sample | None
    model: ResPerfModel | None = None
    protection: Allocation | None = None
    protected_since_s: float = 0.0
    enforceable: frozenset[str] = frozenset()
    enforced: bool = False
    allowed: CpuSet | None = None
    seen_domains: tuple[int, ...] = ()
    waiting: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class HostView:
    """The host: its topology, total CPU use, and the bounds of its actuators.

    - ``busy_cores``: CPU use of everything together.
    - ``llc_ways`` 0, ``mba_levels_pct`` empty: that actuator is absent.
    - ``llc_classes``: number of CLOSIDs, the default group's included; 0: unknown.
    - ``llc_shareable``: mask of the ways that devices fill as well.
    - ``mba_source``: origin of the levels; ``mba_curves``: their measured bandwidth, empty if unmeasured.
    - ``network_pct``: utilisation of the busiest link, in its busier direction.
    - ``account``: CPU use by owner; None: unknown.
    - ``window_open``: the operator allows changes of LRAs' own settings, and trials.
    """

    topology: Topology
    busy_cores: Reading = NOT_MEASURED
    llc_ways: int = 0
    min_cbm_bits: int = 1
    mba_levels_pct: tuple[int, ...] = ()
    network_pct: Reading = NOT_MEASURED
    llc_classes: int = 0
    llc_shareable: int = 0
    mba_source: ThrottleSource = ThrottleSource.NOMINAL
    mba_curves: tuple[ThrottleCurve, ...] = ()
    account: HostAccount | None = None
    window_open: bool = True


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The input of a policy at one tick. ``at_s``: monotonic time. ``tick``: number of the tick, from 0."""

    tick: int
    at_s: float
    period_s: float
    host: HostView
    workloads: tuple[WorkloadView, ...]
    memory: Any = None


@dataclass(frozen=True, slots=True)
class TargetState:
    """The settings that should be in force. Workloads absent from ``settings`` get their original settings.

    ``decisions``: one per LRA and tick. ``outcomes``: evaluations of earlier decisions that fell due. ``newcomer``:
    settings of a batch workload that starts before the next tick.
    """

    settings: Mapping[str, Settings]
    decisions: tuple[Decision, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    memory: Any = None
    newcomer: Settings = UNTOUCHED


class Policy(Protocol):
    """A rule that divides the host. Implementations are pure: the same snapshot gives the same target state."""

    @property
    def name(self) -> str:
        """Name of the policy in configuration, command line, metrics and records."""

    def decide(self, snapshot: Snapshot) -> TargetState:
        """The state to enforce after this tick."""
