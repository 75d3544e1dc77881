"""The parts of an agent that open something on the host or read the configuration at start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from perphd.agent.fitting import Fitting
from perphd.agent.forecasts import ForecastProcess
from perphd.agent.jobs import Jobs
from perphd.agent.models import Models
from perphd.agent.oom_order import OomOrder
from perphd.agent.pauses import Pauses
from perphd.agent.records import Records
from perphd.agent.rounds import RoundTap
from perphd.agent.shaping import Shaping
from perphd.agent.sli import SliBoard
from perphd.agent.tally import Tally
from perphd.agent.trials import Trials
from perphd.agent.triggers import EarlyTicks
from perphd.config.discovery import Discovery
from perphd.domain.capability import Capabilities
from perphd.domain.policy import Policy
from perphd.domain.topology import Topology
from perphd.domain.window import Window
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


class Closable(Protocol):
    """An object that holds descriptors, threads or locks."""

    def close(self) -> None:
        """Release them."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of which ``perphd.agent.assembly`` makes an agent. No class of the agent keeps this record.

    ``bounds``: resctrl's controls as found at start; ``actuators`` reads them again. ``capabilities_now``: the
    capability report with the present state of what can change at run time (resctrl's mount). ``owned`` is closed, in
    order, when the agent stops.
    """

    topology: Topology
    processors: Processors
    capabilities_now: Callable[[], Capabilities]
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
    rounds: RoundTap
    bounds: Actuators
    actuators: Callable[[], Actuators]
    links: LinkLoad
    discovery: Discovery
    residence: Residence
    shaping: Shaping
    fitting: Fitting
    hints: Hints
    oom_order: OomOrder
    disk_latency: DiskLatency
    early_ticks: EarlyTicks | None = None
    forecasts: ForecastProcess | None = None
    jobs: Jobs | None = None
    queue: BatchQueue | None = None
    backoff: DeviceBackoff | None = None
    owned: tuple[Closable, ...] = ()
