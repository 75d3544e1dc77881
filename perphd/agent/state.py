"""State shared by the agent's modules: its parts, and the values that persist from one tick to the next."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from perphd.admission.attention import Attention, next_in_s
from perphd.admission.declaring import UndeclaredRecord
from perphd.agent.bands import Bands
from perphd.agent.fitting import Fitting
from perphd.agent.forecasts import ForecastProcess
from perphd.agent.jobs import Jobs
from perphd.agent.models import Models
from perphd.agent.oom_order import OomOrder
from perphd.agent.pauses import Pauses
from perphd.agent.records import Records
from perphd.agent.rounds import RoundTap
from perphd.agent.selfcost import CostMeter
from perphd.agent.shaping import Shaping
from perphd.agent.sli import SliBoard
from perphd.agent.tally import Tally
from perphd.agent.trials import Trials
from perphd.agent.triggers import EarlyTicks
from perphd.config.discovery import Discovery
from perphd.config.file import Config
from perphd.config.opt_in import DECLARATION
from perphd.domain.allocation import Allocation, Settings
from perphd.domain.capability import Capabilities
from perphd.domain.control import Actor
from perphd.domain.errors import ConfigError
from perphd.domain.event import Event, EventKind
from perphd.domain.host_account import HostAccount
from perphd.domain.plan import NotEnforceable
from perphd.domain.policy import Policy, TargetState
from perphd.domain.progress import Progress
from perphd.domain.sample import Sample
from perphd.domain.status import DetectorTest
from perphd.domain.topology import Topology
from perphd.domain.window import Window
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.actuators import Actuators
from perphd.host.topology import Processors
from perphd.isolation.executor import Executor
from perphd.monitor.host_account import HostAccounts
from perphd.monitor.hostload import HostLoad
from perphd.monitor.links import LinkLoad
from perphd.monitor.residence import Residence
from perphd.monitor.sampler import Monitor

if TYPE_CHECKING:
    from perphd.agent.devices.backoff import DeviceBackoff
    from perphd.agent.devices.hints import Hints
    from perphd.agent.devices.latency import DiskLatency
    from perphd.agent.queue.batch_queue import BatchQueue

log = logging.getLogger("perphd")


class Closable(Protocol):
    """An object that holds descriptors, threads or locks."""

    def close(self) -> None:
        """Release them."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts from the composition root; ``owned`` is closed, in order, when the agent stops.

    ``bounds``: resctrl's controls as found at start; ``actuators`` reads them again. ``capabilities_now``:
    the report with the present state of what can change at run time (resctrl's mount).
    """

    topology: Topology
    processors: Processors
    capabilities: Capabilities
    monitor: Monitor
    host_load: HostLoad
    accounts: HostAccounts
    executor: Executor
    policy: Policy
    sli: SliBoard
    records: Records
    models: Models
    pauses: Pauses
    tally: Tally
    window: Window
    trials: Trials
    bounds: Actuators = Actuators()
    actuators: Callable[[], Actuators] = Actuators
    capabilities_now: Callable[[], Capabilities] | None = None
    rounds: RoundTap | None = None
    early_ticks: EarlyTicks | None = None
    links: LinkLoad | None = None
    discovery: Discovery | None = None
    residence: Residence | None = None
    shaping: Shaping | None = None
    fitting: Fitting | None = None
    forecasts: ForecastProcess | None = None
    jobs: Jobs | None = None
    queue: BatchQueue | None = None
    backoff: DeviceBackoff | None = None
    hints: Hints | None = None
    oom_order: OomOrder | None = None
    disk_latency: DiskLatency | None = None
    owned: tuple[Closable, ...] = ()


@dataclass(slots=True)
class Protection:
    """The settings in force for an LRA, and the time since which they are in force.

    ``disturbed_s``: time at which it last started to settle again because (re)appeared groups got their
    settings.
    """

    allocation: Allocation
    since_s: float
    disturbed_s: float = -math.inf


@dataclass(slots=True)
class FoundAs:
    """A found workload: its declaration, and the time at which it was last present."""

    declaration: str
    seen_s: float


@dataclass(slots=True)
class Enforceable:
    """The knobs that can be set on a workload, and those that cannot, with reasons.

    ``looked_s``: time of the check. ``present``: the workload's control group existed then.
    """

    knobs: frozenset[str]
    missing: tuple[NotEnforceable, ...]
    looked_s: float
    present: bool


@dataclass(slots=True)
class State:
    """The mutable state that several modules share. Everything runs on one event loop.

    ``specs``: the workloads on the list, by name; ``declared``: declarations by match; ``found``: workloads on the list
    that were found for them. ``planned``: the last wanted settings, and the time at which the kernel's values were
    last read back; None: read them back at once. ``detector_test``: the result of the check at the start.
    ``sli_followed``: True if the open sources of indicators match the list. ``account``: the host account of
    the last round; ``undeclared``: activity of undeclared groups. ``progress``: recent work of batch.
    ``jobs``: workloads on the list that the batch queue started. ``target``: the policy's last target state,
    for the present CPUs. ``full_samples``: each workload's last sample with a new report of its indicators.
    ``now_s``: time of the last round. ``attention``: decides whether the next round starts sooner. ``lock``: held
    during a round, and by operations that must not overlap one.
    """

    config: Config
    parts: Parts
    clock: Callable[[], float] | None
    topology: Topology
    actuators: Actuators
    specs: dict[str, WorkloadSpec]
    declared: dict[str, WorkloadSpec]
    found: dict[str, FoundAs] = field(default_factory=dict)
    jobs: dict[str, WorkloadSpec] = field(default_factory=dict)
    samples: dict[str, Sample] = field(default_factory=dict)
    account: HostAccount | None = None
    undeclared: UndeclaredRecord = UndeclaredRecord()
    full_samples: dict[str, Sample] = field(default_factory=dict)
    progress: dict[str, Progress] = field(default_factory=dict)
    protections: dict[str, Protection] = field(default_factory=dict)
    enforceable: dict[str, Enforceable] = field(default_factory=dict)
    bands: Bands = field(default_factory=Bands)
    planned: tuple[dict[str, Settings], float] | None = None
    memory: object = None
    target: TargetState | None = None
    detector_test: DetectorTest | None = None
    cost: CostMeter = field(default_factory=CostMeter)
    tick: int = 0
    began_s: float | None = None
    now_s: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    sli_followed: bool = False
    attention: Attention = Attention()

    @property
    def pace_s(self) -> float:
        """Planned seconds between the last tick and the next one."""
        daemon = self.config.daemon
        return next_in_s(self.attention, self.now_s, daemon.period_s, daemon.attentive_period_s)

    @classmethod
    def at_start(cls, config: Config, parts: Parts, clock: Callable[[], float] | None) -> State:
        """The state before the first tick."""
        specs = {spec.name: spec for spec in config.workloads}
        declared = {spec.name: spec for spec in config.matches}
        return cls(config, parts, clock, parts.topology, parts.bounds, specs, declared)

    def all_specs(self) -> tuple[WorkloadSpec, ...]:
        """All workloads."""
        return tuple(self.specs.values())

    def not_found(self) -> list[WorkloadSpec]:
        """Declarations without any workload."""
        there = {known.declaration for known in self.found.values()}
        return [spec for name, spec in self.declared.items() if name not in there]

    def workload(self, name: str) -> WorkloadSpec:
        """The workload of this name. Raises ConfigError if there is none."""
        if (spec := self.specs.get(name)) is None:
            raise unknown_workload(name, self.specs)
        return spec

    def lra(self, name: str) -> WorkloadSpec:
        """The LRA of this name. Raises ConfigError if there is none."""
        spec = self.specs.get(name)
        if spec is None or spec.kind is not Kind.LRA:
            lras_here = ", ".join(s.name for s in self.specs.values() if s.kind is Kind.LRA)
            raise ConfigError("request", "workload", f"no LRA is named {name!r}", lras_here)
        return spec

    def time_s(self, otherwise_s: float) -> float:
        """The present time by the clock; ``otherwise_s`` if ticks bring the time."""
        return self.clock() if self.clock is not None else otherwise_s

    def application(self, name: str) -> str:
        """The name by which other hosts know a workload: that of the declaration for which it was found, if any."""
        known = self.found.get(name)
        return name if known is None or known.declaration == DECLARATION else known.declaration

    def forget(self, name: str) -> None:
        """Forget measurements of a workload whose control group was replaced or removed."""
        for kept in (self.protections, self.enforceable, self.samples, self.progress):
            kept.pop(name, None)
        self.planned = None
        self.sli_followed = False

    def tell(self, kind: EventKind, text: str, workload: str = "", by: Actor | None = None) -> None:
        """Announce an event that happens now; a requested one is also logged, with the requester."""
        event = Event(self.now_s, kind, text, workload, by="" if by is None else str(by))
        self.parts.records.event(event)
        if by is not None:
            fields = {"event": kind, "workload": workload, "by_uid": by.uid, "by_pid": by.pid}
            log.info("%s; by %s", text, by, extra={"fields": fields})


def unknown_workload(name: str, known: Iterable[str]) -> ConfigError:
    """The refusal of a name that no workload has. ``known``: the names that are allowed."""
    return ConfigError("request", "workload", f"no workload is named {name!r}", ", ".join(known))
