"""Connects the parts of an agent: each object receives what it uses, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import cached_property

from perphd.agent.agent import Agent
from perphd.agent.announcer import Announcer
from perphd.agent.band_lines import BandLines, BesideGold
from perphd.agent.bands import Bands
from perphd.agent.control_loop import ControlLoop
from perphd.agent.counting import MeasuredWorkloads
from perphd.agent.detector_check import DetectorCheck
from perphd.agent.enforceable import EnforceableKnobs
from perphd.agent.enforcement import Enforcement
from perphd.agent.hardware import HostHardware
from perphd.agent.hardware_changes import HardwareChanges
from perphd.agent.host_report import HostReport
from perphd.agent.indicators import Indicators
from perphd.agent.leftovers import Leftovers
from perphd.agent.measurements import Measurements
from perphd.agent.model_control import ModelControl
from perphd.agent.modes import Modes
from perphd.agent.pacing import TickPace
from perphd.agent.parts import Parts
from perphd.agent.pause_control import PauseControl
from perphd.agent.planned import PlannedSettings
from perphd.agent.protections import Protections
from perphd.agent.queue.room import QueueRoom
from perphd.agent.round_clock import RoundClock
from perphd.agent.round_consumers import RoundConsumers
from perphd.agent.round_recorder import RoundRecorder
from perphd.agent.running_config import RunningConfig
from perphd.agent.sampling import Sampling
from perphd.agent.selfcost import CostMeter
from perphd.agent.shutdown import Shutdown
from perphd.agent.sizing_control import SizingControl
from perphd.agent.snapshots import PolicyState, Snapshots
from perphd.agent.status import StatusReport, WorkloadRows
from perphd.agent.trial_control import TrialControl
from perphd.agent.wanted import WantedSettings
from perphd.agent.workload_list import WorkloadList
from perphd.agent.workload_registry import WorkloadRegistry
from perphd.agent.workload_traces import WorkloadTraces
from perphd.config.file import Config


def assemble(config: Config, parts: Parts, clock: Callable[[], float] | None = None) -> Agent:
    """An agent that is ready for its first tick.

    Args:
        config: the checked configuration.
        parts: the opened parts.
        clock: monotonic clock for readings that take time; None: ticks bring the time (virtual time).
    """
    assembly = _Assembly(config, parts, clock)
    if parts.queue is not None:
        parts.queue.attach(assembly.queue_room)
    return assembly.agent


class _Assembly:
    """One object of each kind, made when another one needs it."""

    def __init__(self, config: Config, parts: Parts, clock: Callable[[], float] | None) -> None:
        self.parts, self.executor, self.records = parts, parts.executor, parts.records
        self.lock = asyncio.Lock()  # held during a round, and by operations that must not overlap one
        self.config, self.clock = RunningConfig(config), RoundClock(clock)
        self.workloads = WorkloadList(config.workloads, config.matches)
        self.hardware = HostHardware(parts.topology, parts.processors, parts.bounds, parts.actuators)
        self.measurements, self.policy_state, self.planned = Measurements(), PolicyState(), PlannedSettings()
        self.bands, self.cost, self.detector = Bands(), CostMeter(), DetectorCheck(self.config)
        self.announcer = Announcer(self.records, self.clock)
        self.enforceable = EnforceableKnobs(self.executor, self.hardware)
        self.leftovers = Leftovers(self.lock, self.workloads, self.executor, self.records)

    @cached_property
    def agent(self) -> Agent:
        return Agent(
            config=self.config,
            loop=self.loop,
            pace=self.pace,
            early_ticks=self.parts.early_ticks,
            workloads=self.workloads,
            registry=self.registry,
            indicators=self.indicators,
            measurements=self.measurements,
            snapshots=self.snapshots,
            modes=self.modes,
            pauses=self.pause_control,
            trials=self.trial_control,
            models=self.model_control,
            sizing=self.sizing,
            queue=self.parts.queue,
            host=self.host,
            status=self.status,
            detector=self.detector,
            recorder=self.recorder,
            records=self.records,
            tally=self.parts.tally,
            cost=self.cost,
            rounds=self.parts.rounds,
            shutdown=self.shutdown,
        )

    @cached_property
    def loop(self) -> ControlLoop:
        return ControlLoop(
            lock=self.lock,
            config=self.config,
            clock=self.clock,
            pace=self.pace,
            workloads=self.workloads,
            registry=self.registry,
            indicators=self.indicators,
            hardware_changes=self.hardware_changes,
            pauses=self.pause_control,
            trials=self.trial_control,
            sampling=self.sampling,
            snapshots=self.snapshots,
            protections=self.protections,
            models=self.parts.models,
            policy=self.parts.policy,
            policy_state=self.policy_state,
            sizing=self.sizing,
            enforcement=self.enforcement,
            counting=self.counting,
            recorder=self.recorder,
            records=self.records,
            consumers=self.consumers,
        )

    @cached_property
    def registry(self) -> WorkloadRegistry:
        return WorkloadRegistry(
            lock=self.lock,
            config=self.config,
            clock=self.clock,
            workloads=self.workloads,
            discovery=self.parts.discovery,
            modes=self.modes,
            models=self.parts.models,
            trials=self.parts.trials,
            executor=self.executor,
            leftovers=self.leftovers,
            indicators=self.indicators,
            traces=self.traces,
            planned=self.planned,
            records=self.records,
            announcer=self.announcer,
        )

    @cached_property
    def traces(self) -> WorkloadTraces:
        return WorkloadTraces(
            protections=self.protections,
            enforceable=self.enforceable,
            measurements=self.measurements,
            indicators=self.indicators,
            planned=self.planned,
        )

    @cached_property
    def indicators(self) -> Indicators:
        return Indicators(
            sli=self.parts.sli,
            clock=self.clock,
            workloads=self.workloads,
            early_ticks=self.parts.early_ticks,
            records=self.records,
        )

    @cached_property
    def modes(self) -> Modes:
        return Modes(
            self.config.now.daemon.mode,
            workloads=self.workloads,
            pauses=self.parts.pauses,
            trials=self.parts.trials,
            executor=self.executor,
            planned=self.planned,
            announcer=self.announcer,
        )

    @cached_property
    def protections(self) -> Protections:
        return Protections(
            config=self.config,
            clock=self.clock,
            workloads=self.workloads,
            modes=self.modes,
            hardware=self.hardware,
            executor=self.executor,
            enforceable=self.enforceable,
        )

    @cached_property
    def hardware_changes(self) -> HardwareChanges:
        return HardwareChanges(
            hardware=self.hardware,
            policy_state=self.policy_state,
            protections=self.protections,
            enforceable=self.enforceable,
            planned=self.planned,
            executor=self.executor,
            records=self.records,
        )

    @cached_property
    def sampling(self) -> Sampling:
        return Sampling(
            monitor=self.parts.monitor,
            host_load=self.parts.host_load,
            accounts=self.parts.accounts,
            links=self.parts.links,
            residence=self.parts.residence,
            sli=self.parts.sli,
            executor=self.executor,
            protections=self.protections,
            hardware=self.hardware,
            measurements=self.measurements,
        )

    @cached_property
    def snapshots(self) -> Snapshots:
        return Snapshots(
            config=self.config,
            clock=self.clock,
            workloads=self.workloads,
            modes=self.modes,
            hardware=self.hardware,
            measurements=self.measurements,
            policy_state=self.policy_state,
            protections=self.protections,
            enforceable=self.enforceable,
            executor=self.executor,
            models=self.parts.models,
            window=self.parts.window,
            residence=self.parts.residence,
        )

    @cached_property
    def wanted(self) -> WantedSettings:
        return WantedSettings(
            clock=self.clock,
            workloads=self.workloads,
            modes=self.modes,
            hardware=self.hardware,
            enforceable=self.enforceable,
            bands=self.bands,
            shaping=self.parts.shaping,
            fitting=self.parts.fitting,
            disk_latency=self.parts.disk_latency,
            backoff=self.parts.backoff,
            queue=self.parts.queue,
        )

    @cached_property
    def enforcement(self) -> Enforcement:
        return Enforcement(
            workloads=self.workloads,
            measurements=self.measurements,
            wanted=self.wanted,
            planned=self.planned,
            executor=self.executor,
            protections=self.protections,
            records=self.records,
            tally=self.parts.tally,
            cost=self.cost,
        )

    @cached_property
    def sizing(self) -> SizingControl:
        return SizingControl(
            workloads=self.workloads,
            modes=self.modes,
            snapshots=self.snapshots,
            shaping=self.parts.shaping,
            fitting=self.parts.fitting,
            jobs=self.parts.jobs,
            executor=self.executor,
            announcer=self.announcer,
        )

    @cached_property
    def pause_control(self) -> PauseControl:
        return PauseControl(
            lock=self.lock,
            workloads=self.workloads,
            modes=self.modes,
            pauses=self.parts.pauses,
            executor=self.executor,
            protections=self.protections,
            planned=self.planned,
            announcer=self.announcer,
        )

    @cached_property
    def trial_control(self) -> TrialControl:
        return TrialControl(
            lock=self.lock,
            config=self.config,
            policy_name=self.parts.policy.name,
            workloads=self.workloads,
            measurements=self.measurements,
            modes=self.modes,
            pauses=self.parts.pauses,
            trials=self.parts.trials,
            planned=self.planned,
            records=self.records,
            announcer=self.announcer,
        )

    @cached_property
    def counting(self) -> MeasuredWorkloads:
        return MeasuredWorkloads(
            config=self.config,
            workloads=self.workloads,
            modes=self.modes,
            measurements=self.measurements,
            executor=self.executor,
        )

    @cached_property
    def recorder(self) -> RoundRecorder:
        return RoundRecorder(
            clock=self.clock,
            workloads=self.workloads,
            modes=self.modes,
            measurements=self.measurements,
            executor=self.executor,
            records=self.records,
            tally=self.parts.tally,
            cost=self.cost,
        )

    @cached_property
    def pace(self) -> TickPace:
        return TickPace(
            config=self.config,
            clock=self.clock,
            workloads=self.workloads,
            measurements=self.measurements,
            early_ticks=self.parts.early_ticks,
        )

    @cached_property
    def consumers(self) -> RoundConsumers:
        return RoundConsumers(
            workloads=self.workloads,
            modes=self.modes,
            hardware=self.hardware,
            measurements=self.measurements,
            executor=self.executor,
            records=self.records,
            announcer=self.announcer,
            jobs=self.parts.jobs,
            backoff=self.parts.backoff,
            hints=self.parts.hints,
            queue=self.parts.queue,
            forecasts=self.parts.forecasts,
        )

    @cached_property
    def queue_room(self) -> QueueRoom:
        return QueueRoom(
            lock=self.lock,
            clock=self.clock,
            workloads=self.workloads,
            registry=self.registry,
            modes=self.modes,
            bands=self.bands,
            policy_state=self.policy_state,
            wanted=self.wanted,
            planned=self.planned,
            executor=self.executor,
            records=self.records,
            announcer=self.announcer,
        )

    @cached_property
    def model_control(self) -> ModelControl:
        return ModelControl(
            lock=self.lock,
            config=self.config,
            clock=self.clock,
            workloads=self.workloads,
            snapshots=self.snapshots,
            models=self.parts.models,
            forecasts=self.parts.forecasts,
            announcer=self.announcer,
        )

    @cached_property
    def host(self) -> HostReport:
        return HostReport(
            capabilities=self.parts.capabilities_now,
            workloads=self.workloads,
            hardware=self.hardware,
            counting=self.counting,
            executor=self.executor,
            sli=self.parts.sli,
            band_lines=self.band_lines,
            oom_order=self.parts.oom_order,
            backoff=self.parts.backoff,
        )

    @cached_property
    def band_lines(self) -> BandLines:
        return BandLines(
            config=self.config,
            clock=self.clock,
            workloads=self.workloads,
            modes=self.modes,
            hardware=self.hardware,
            executor=self.executor,
            enforceable=self.enforceable,
            bands=self.bands,
            beside_gold=self.beside_gold,
            disk_latency=self.parts.disk_latency,
        )

    @cached_property
    def beside_gold(self) -> BesideGold:
        return BesideGold(self.modes, self.bands, self.policy_state, self.enforceable)

    @cached_property
    def status(self) -> StatusReport:
        return StatusReport(
            config=self.config,
            clock=self.clock,
            pace=self.pace,
            policy_name=self.parts.policy.name,
            workloads=self.workloads,
            rows=self.rows,
            modes=self.modes,
            hardware=self.hardware,
            measurements=self.measurements,
            counting=self.counting,
            executor=self.executor,
            records=self.records,
            cost=self.cost,
            detector=self.detector,
            window=self.parts.window,
            pauses=self.parts.pauses,
            trials=self.parts.trials,
            early_ticks=self.parts.early_ticks,
            forecasts=self.parts.forecasts,
            queue=self.parts.queue,
        )

    @cached_property
    def rows(self) -> WorkloadRows:
        return WorkloadRows(
            config=self.config,
            clock=self.clock,
            modes=self.modes,
            measurements=self.measurements,
            policy_state=self.policy_state,
            protections=self.protections,
            enforceable=self.enforceable,
            executor=self.executor,
            records=self.records,
            sli=self.parts.sli,
            beside_gold=self.beside_gold,
        )

    @cached_property
    def shutdown(self) -> Shutdown:
        return Shutdown(
            lock=self.lock,
            closing=_closing(self.parts),
            config=self.config,
            clock=self.clock,
            workloads=self.workloads,
            executor=self.executor,
            models=self.parts.models,
        )


def _closing(parts: Parts) -> AsyncExitStack:
    """A stack that closes every part, even if closing another one fails. The part pushed last is closed first."""
    closing = AsyncExitStack()
    for part in reversed(parts.owned):
        closing.callback(part.close)
    closing.callback(parts.executor.close)
    if parts.early_ticks is not None:
        closing.callback(parts.early_ticks.close)
    closing.callback(parts.monitor.close)
    closing.push_async_callback(parts.sli.close)
    closing.callback(parts.rounds.end)
    closing.callback(parts.records.end_subscriptions)
    return closing
