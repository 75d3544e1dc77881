"""The composition root: opens the parts of an agent on this machine or on a simulated one."""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from perphd.admission.baselines import NonePolicy, StaticPolicy
from perphd.admission.features.egress import EgressCeiling, EgressRule
from perphd.admission.features.windowed import Windowed
from perphd.admission.perph import PerphPolicy
from perphd.agent.agent import Agent
from perphd.agent.assembly import assemble
from perphd.agent.devices.hints import HINTS, Hints
from perphd.agent.devices.latency import DiskLatency
from perphd.agent.fitting import Fitting
from perphd.agent.forecasts import ForecastProcess
from perphd.agent.jobs import Jobs
from perphd.agent.memory_forecasts import MemoryForecasts
from perphd.agent.model_setup import forecast_reader, open_models
from perphd.agent.oom_order import OomOrder
from perphd.agent.optional_parts import batch_queue, device_backoff, runtime_folder
from perphd.agent.parts import Parts
from perphd.agent.pauses import Pauses
from perphd.agent.records import Records
from perphd.agent.rounds import RoundTap
from perphd.agent.shaping import Shaping
from perphd.agent.sli import SliBoard, SliOpener
from perphd.agent.tally import Tally
from perphd.agent.trials import Trials, configured_modes
from perphd.agent.triggers import EarlyTicks
from perphd.config.discovery import Discovery
from perphd.config.file import Config
from perphd.domain.capability import Capabilities
from perphd.domain.errors import KernelError, Unsupported
from perphd.domain.plan import Write
from perphd.domain.policy import Policy
from perphd.domain.throttle import whole_bandwidth
from perphd.domain.topology import Topology
from perphd.domain.window import Window
from perphd.domain.workload import Mode
from perphd.host.actuators import Actuators, actuators
from perphd.host.app_version import AppVersions
from perphd.host.capabilities import look_again, probe
from perphd.host.cgroup import Hierarchies, discover
from perphd.host.egress_fs import EgressFs, with_egress
from perphd.host.event_files import EVENT_FILES, EventFiles
from perphd.host.fs import KernelFs, RealFs
from perphd.host.job_facts import JobFacts
from perphd.host.kubelet import Kubelet
from perphd.host.lookup import Lookup
from perphd.host.perf_event_types import EventOpener, EventSupport, PerfEventKind
from perphd.host.perf_events import PerfOpener
from perphd.host.pmu import read_event_codes
from perphd.host.resctrl import open_groups
from perphd.host.schedstat import ProcessDelays, RunDelayReader
from perphd.host.systemd_dbus import open_bus
from perphd.host.systemd_fs import asks_systemd, refusal, unit_files
from perphd.host.taskstats import TaskStats, open_taskstats
from perphd.host.tc_netlink import open_tc
from perphd.host.throttle import throttle_of
from perphd.host.topology import Processors, read_topology
from perphd.isolation.ending import Ender
from perphd.isolation.executor import Executor
from perphd.isolation.instances import OtherInstances
from perphd.isolation.journal import Journal
from perphd.monitor.host_account import HostAccounts
from perphd.monitor.hostload import HostLoad
from perphd.monitor.links import LinkLoad
from perphd.monitor.memory_facts import MemoryFacts
from perphd.monitor.residence import Residence
from perphd.monitor.sampler import Monitor
from perphd.monitor.sli import open_source
from perphd.monitor.store import Store

if TYPE_CHECKING:
    from perphd.batch.runner import JobRunner

log = logging.getLogger("perphd")

SLI_TIMEOUT_SHARE = 0.3
"""Share of the period for which a tick waits for the applications' SLIs. It then continues without them."""

POLICIES: dict[str, Callable[[Config], Policy]] = {
    "perph": lambda config: PerphPolicy(config.policy),
    "none": lambda _: NonePolicy(),
    "static": lambda _: StaticPolicy(),
}


class PartOptions(TypedDict, total=False):
    """The optional arguments of ``build_parts``."""

    fs: KernelFs | None
    opener: EventOpener | None
    sli_opener: SliOpener | None
    clock: Callable[[], float] | None
    wall_clock: Callable[[], float]
    capabilities: Capabilities | None
    store: bool
    policy: Policy | None
    delays: ProcessDelays | None
    runner: JobRunner | None


def build_agent(config: Config, **options: Unpack[PartOptions]) -> Agent:
    """Build an agent that is ready for its first tick, without writing to the kernel.

    Args:
        config: the checked configuration.
        options: see ``build_parts``, which opens what the agent needs.

    Raises:
        PerphError: the state directory cannot be used, or another daemon holds its journal.
    """
    return assemble(config, build_parts(config, **options), options.get("clock"))


def build_parts(
    config: Config,
    *,
    fs: KernelFs | None = None,
    opener: EventOpener | None = None,
    sli_opener: SliOpener | None = None,
    clock: Callable[[], float] | None = None,
    wall_clock: Callable[[], float] = time.time,
    capabilities: Capabilities | None = None,
    store: bool = True,
    policy: Policy | None = None,
    delays: ProcessDelays | None = None,
    runner: JobRunner | None = None,
) -> Parts:
    """Open the parts of an agent, without writing to the kernel.

    Args:
        config: the checked configuration.
        fs: the kernel's files; None: those below ``host.root``, by default this machine's. A simulated host
            passes its own.
        opener: opens perf event groups; None: this kernel's, as far as the capabilities allow.
        sli_opener: opens the applications' indicators; None: this host's. A simulated host passes its own.
        clock: monotonic clock for readings that take time; None: ticks bring the time (virtual time).
        wall_clock: time of day for the store, in seconds since 1970.
        capabilities: the capability report, if there is one already.
        store: False: keep no time series, even if the configuration enables the store.
        policy: replaces the configured policy.
        delays: a simulated host's source of run-queue delays, in place of the kernel's taskstats.
        runner: starts jobs of the batch queue; None: this machine's systemd or control groups. A simulated
            host passes its own, or has no queue.

    Raises:
        PerphError: the state directory cannot be used, or another daemon holds its journal.
    """
    real = fs is None and not config.host.root
    elsewhere = fs is None and bool(config.host.root)
    fs = fs if fs is not None else RealFs(config.host.root)
    if elsewhere and opener is None and fs.exists(EVENT_FILES):
        opener = EventFiles(fs)
    hierarchies = discover(fs)
    topology = read_topology(fs)
    if capabilities is None:
        if elsewhere:
            capabilities = probe_elsewhere(fs, hierarchies, opener)
        else:
            capabilities = probe(fs, hierarchies) if real else probe_simulated(fs, hierarchies)
    taskstats: TaskStats | None = None
    if real:
        opener = opener if opener is not None else PerfOpener(read_event_codes(fs))
        found = open_taskstats(os.getpid())
        taskstats = found if isinstance(found, TaskStats) else None
    kept = _store(config) if store and config.store.enabled else None
    tally = Tally(wall_clock)
    records = Records(kept, wall_clock)
    pauses = Pauses(Path(config.daemon.state_dir), wall_clock, config.daemon.pause_file)
    pauses.look()
    trials = Trials(Path(config.daemon.state_dir), wall_clock, configured_modes(config))
    through_systemd = real and config.isolation.units == "systemd" and asks_systemd(fs, hierarchies)
    units = open_bus() if through_systemd else None
    written = fs if units is None else unit_files(fs, hierarchies, units)
    egress = EgressFs(written, hierarchies, config.network.names, tc=open_tc, kernel=fs) if real else None
    executed = written if egress is None else egress
    settable = hierarchies if egress is None else with_egress(hierarchies)
    instances = OtherInstances(config.daemon.state_dir, executed, settable) if real else None
    journal = _journal(config, instances)

    def refuse(cgroup: str) -> str | None:
        reason = refusal(written, hierarchies, cgroup)
        return reason or (None if instances is None else instances.refusal(cgroup))

    def on_write(write: Write, result: str) -> None:
        tally.wrote(write, result)
        if kept is not None:
            kept.add_writes(wall_clock(), (write,), result)

    def refuse_now(cgroup: str) -> str | None:
        if instances is not None:
            instances.look()
        return refuse(cgroup)

    ender = Ender(fs, hierarchies, refuse_now, on_write, os.kill if real else None)
    executor = Executor(
        executed,
        settable,
        journal,
        refuse=refuse,
        on_plan=None if instances is None else instances.look,
        kubelet=Kubelet(fs),
        deadline_s=config.isolation.deadline_s,
        changes_per_s=config.isolation.changes_per_s,
        adopt_s=0.0 if pauses.all() else config.isolation.adopt_s,
        background=clock is not None,
        on_write=on_write,
    )
    monitor = Monitor(
        fs,
        hierarchies,
        cpus=topology.online | topology.offline,
        opener=opener,
        run_delay=lambda: RunDelayReader(fs, delays if taskstats is None else taskstats),
        expected_period_s=config.daemon.period_s,
        clock=clock,
    )
    host_load = HostLoad(fs, (topology.online | topology.offline) - topology.isolated)
    accounts = HostAccounts(fs, hierarchies)
    processors = Processors(fs)
    links = LinkLoad(fs)
    tap = RoundTap(policy if policy is not None else POLICIES[config.daemon.policy](config))
    bounds = _actuators(fs, config.daemon.state_dir)
    reader = forecast_reader(config, fs, topology) if clock is not None else ""
    forecasts = _forecasts(config, records, clock, wall_clock, kept, reader) if clock is not None else None
    # A simulated host keeps its own files: those beside the socket may belong to this machine's daemon.
    hinting = (runtime_folder(config) if real else Path(config.daemon.state_dir).absolute()) / HINTS
    hints = Hints(hinting)
    wanted = real or runner is not None
    measured = _with_bandwidth(config, topology, bounds)
    queue = (
        batch_queue(measured, fs, hierarchies, units, topology, wall_clock, runner, hinting)
        if wanted
        else None
    )
    parts = Parts(
        topology=topology,
        processors=processors,
        capabilities_now=lambda: look_again(fs, capabilities),
        monitor=monitor,
        host_load=host_load,
        accounts=accounts,
        window=Window(config.window.allow, wall_clock),
        links=links,
        executor=executor,
        policy=tap if policy is not None else _policy(config, _windowed(config, tap)),
        rounds=tap,
        sli=SliBoard(
            sli_opener or (lambda spec, cgroup: open_source(spec, cgroup, hierarchies)),
            SLI_TIMEOUT_SHARE * config.daemon.period_s,
            late_s=config.daemon.period_s,
        ),
        records=records,
        pauses=pauses,
        tally=tally,
        trials=trials,
        models=open_models(
            config,
            fs,
            topology,
            records,
            wall_clock,
            bounds.llc_ways,
            virtual=clock is None,
            versions=AppVersions(fs, hierarchies, os.stat if real and not elsewhere else None),
        ),
        bounds=bounds,
        actuators=lambda: _actuators(fs, config.daemon.state_dir),
        discovery=Discovery(fs, Lookup(fs, hierarchies)),
        residence=Residence(fs, hierarchies),
        oom_order=OomOrder(fs, hierarchies),
        shaping=Shaping(
            config.sizing,
            MemoryFacts(fs, hierarchies),
            ender,
            None if forecasts is None else MemoryForecasts(_forecast_folder(config), wall_clock),
        ),
        fitting=Fitting(fs, hierarchies),
        forecasts=forecasts,
        jobs=Jobs(JobFacts(fs, hierarchies), wall_clock, _way_bytes(topology, bounds))
        if forecasts is not None and config.forecast.history_rows > 0
        else None,
        early_ticks=EarlyTicks(
            config.wake, lambda cgroup: _pressure_directory(hierarchies, cgroup), time.monotonic
        )
        if real and clock is not None
        else None,
        queue=queue,
        backoff=device_backoff(config, fs, hierarchies, bounds),
        hints=hints,
        disk_latency=DiskLatency(fs),
        owned=(
            *(() if queue is None else (queue,)),
            hints,
            *(() if forecasts is None else (forecasts,)),
            host_load,
            accounts,
            processors,
            links,
            pauses,
            trials,
            *(() if instances is None else (instances,)),
            journal,
            *(() if taskstats is None else (taskstats,)),
            *(() if kept is None else (kept,)),
            *(() if units is None else (units,)),
            *(() if egress is None else (egress,)),
        ),
    )
    if kept is not None:
        kept.start()
    return parts


def _with_bandwidth(config: Config, topology: Topology, bounds: Actuators) -> Config:
    """``config`` with the calibrated memory bandwidth, if the operator states none."""
    if config.queue.memory_bandwidth_bytes:
        return config
    cores = {
        domain.domain: sum(bool(core.cpus & domain.cpus) for core in topology.cores)
        for domain in topology.l3_domains
    }
    whole = whole_bandwidth(bounds.throttle.curves, cores)
    if whole is None:
        return config
    return replace(config, queue=replace(config.queue, memory_bandwidth_bytes=int(whole)))


def _journal(config: Config, instances: OtherInstances | None) -> Journal:
    """The opened journal, registered so that instances with other state directories know each other."""
    state_dir = Path(config.daemon.state_dir)
    if instances is None:
        return Journal(state_dir)
    journal = Journal(state_dir, guard=instances.recording)
    try:
        for hidden in instances.enter(config.sources[0] if config.sources else ""):
            log.warning(
                "another perphd is running with the state directory %s, which cannot be seen from here (PrivateTmp=, "
                "ProtectHome=): the groups that it has changed are unknown; make sure that the two share no group",
                hidden,
            )
    except KernelError as exc:
        modes = {config.daemon.mode, *(spec.mode for spec in (*config.workloads, *config.matches))}
        log.log(logging.WARNING if Mode.ENFORCE in modes else logging.INFO, "%s", exc)
    return journal


def _pressure_directory(hierarchies: Hierarchies, cgroup: str) -> str | None:
    """The folder of a cgroup's pressure files; None without a cgroup2 tree."""
    return None if hierarchies.unified is None else hierarchies.unified.path(cgroup)


def _policy(config: Config, policy: Policy) -> Policy:
    network = config.network
    if not network.names or not network.batch_egress_max_bytes:
        return policy
    rule = EgressRule(
        network.names,
        network.batch_egress_max_bytes,
        network.batch_egress_when,
        network.saturated_pct,
        network.release_pct,
        network.release_s,
    )
    return EgressCeiling(policy, rule)


def _windowed(config: Config, policy: Policy) -> Policy:
    return Windowed(policy) if config.window.allow else policy


def probe_simulated(fs: KernelFs, hierarchies: Hierarchies) -> Capabilities:
    """Capabilities of a simulated host; this machine's kernel and environment are not probed."""
    return probe(
        fs,
        hierarchies,
        events=lambda _: EventSupport(tuple(PerfEventKind), {}),
        taskstats=lambda: "a simulated host has no netlink",
        egress=lambda: "a simulated host has no network devices",
        tcp=lambda: "a simulated host has no sockets",
        environment={},
    )


def probe_elsewhere(
    fs: KernelFs, hierarchies: Hierarchies, opener: EventOpener | None = None
) -> Capabilities:
    """Capabilities of a host whose files alone are available (``host.root``); system calls cannot probe it."""
    reason = "only this host's files are available, below tuning.host.root"

    def events(directory: str) -> EventSupport:
        if opener is not None:
            return EventSupport(tuple(PerfEventKind), {})
        refusal = Unsupported(directory, "perf_event_open", errno.EOPNOTSUPP, detail=reason)
        return EventSupport((), dict.fromkeys(PerfEventKind, refusal))

    return probe(
        fs,
        hierarchies,
        events=events,
        taskstats=lambda: reason,
        egress=lambda: reason,
        tcp=lambda: reason,
        environment=os.environ,
    )


def _way_bytes(topology: Topology, bounds: Actuators) -> float:
    """Size of one way of a last-level cache in bytes; 0 if unknown."""
    sizes = [domain.size_bytes for domain in topology.l3_domains]
    return min(sizes) / bounds.llc_ways if sizes and bounds.llc_ways else 0.0


def _actuators(fs: KernelFs, state_dir: str) -> Actuators:
    """The controls that resctrl offers; none if it is not mounted."""
    groups = open_groups(fs)
    if isinstance(groups, str):
        return Actuators()
    info = groups.resctrl.info
    return actuators(info, throttle_of(groups.resctrl.access.fs, info, state_dir))


def _forecasts(
    config: Config,
    records: Records,
    clock: Callable[[], float],
    wall_clock: Callable[[], float],
    kept: Store | None,
    reader: str,
) -> ForecastProcess | None:
    if not config.forecast.enabled:
        return None
    if kept is None:
        text = "no forecasts: they need the store; set enabled = true in [store] and restart perphd"
        records.problem("forecast", text, clock())
        return None
    folder, store = _forecast_folder(config), str(Path(config.store_path).absolute())
    arguments = (
        store,
        str(folder),
        socket.gethostname(),
        config.host.root,
        str(config.forecast.history_rows),
        reader,
    )
    return ForecastProcess(folder, arguments, records, wall_clock=wall_clock)


def _forecast_folder(config: Config) -> Path:
    return Path(config.daemon.state_dir).absolute() / "forecast"


def _store(config: Config) -> Store:
    return Store(Path(config.store_path), config.store.retention_h * 3600.0, config.store.max_size_bytes)
