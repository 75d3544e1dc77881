"""Runs a randomised trial of observe and enforce: requests of operators, and its steps in each round."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future

from perphd.agent.announcer import Announcer
from perphd.agent.measurements import Measurements
from perphd.agent.modes import Modes
from perphd.agent.pauses import Pauses
from perphd.agent.planned import PlannedSettings
from perphd.agent.records import Records
from perphd.agent.running_config import RunningConfig
from perphd.agent.trials import Population, Trials, by_text, configured_modes
from perphd.agent.workload_list import WorkloadList
from perphd.domain.control import Actor
from perphd.domain.errors import ConfigError
from perphd.domain.event import EventKind
from perphd.domain.workload import Mode
from perphd.trial.design import Request
from perphd.trial.record import End, TrialRecord

log = logging.getLogger("perphd")


class TrialControl:
    """Starts, advances and ends the trial.

    ``lock``: held during a round, and by operations that must not overlap one. ``policy_name``: the policy on trial.
    """

    def __init__(
        self,
        *,
        lock: asyncio.Lock,
        config: RunningConfig,
        policy_name: str,
        workloads: WorkloadList,
        measurements: Measurements,
        modes: Modes,
        pauses: Pauses,
        trials: Trials,
        planned: PlannedSettings,
        records: Records,
        announcer: Announcer,
    ) -> None:
        self._lock, self._config, self._policy_name = lock, config, policy_name
        self._workloads, self._measured, self._modes = workloads, measurements, modes
        self._pauses, self._trials, self._planned = pauses, trials, planned
        self._records, self._announcer = records, announcer

    # -- requests of operators --------------------------------------------------------------------------

    @property
    def record(self) -> TrialRecord | None:
        """The running trial, else the last one."""
        return self._trials.record

    async def start(self, request: Request, by: Actor | None = None) -> TrialRecord:
        """See ``Agent.start_trial``."""
        async with self._lock:
            specs = self._workloads.all_specs()
            left_out = tuple(spec.name for spec in specs if self._modes.own(spec) is Mode.OBSERVE)
            samples = {**self._measured.samples, **self._measured.full_samples}
            configured = configured_modes(self._config.now)
            people = Population(specs, samples, left_out, self._policy_name, configured)
        record = await self._trials.start(request, people, self._pauses.all(), by_text(by))
        self._planned.discard()
        text = f"trial {record.plan.trial} began: {record.plan.blocks} blocks of {record.plan.block_s:g} s"
        self._announcer.tell(EventKind.TRIAL, f"{text}, seed {record.plan.seed}", by=by)
        return record

    def stop(self, by: Actor | None = None) -> TrialRecord:
        """See ``Agent.stop_trial``."""
        record = self._trials.end(End.STOPPED, "stopped by hand", by_text(by))
        if record is None:
            raise ConfigError("request", "trial", "no trial is running", "perphctl trial start begins one")
        self._planned.discard()
        self._announcer.tell(EventKind.TRIAL, f"trial {record.plan.trial} ended: stopped by hand", by=by)
        return record

    def workload_removed(self, name: str, by: Actor | None = None) -> None:
        """End a trial that measures this LRA."""
        if self._trials.names_lra(name):
            self._modes.end_trial(f"{name} was removed from the list of workloads", by)

    # -- steps of a round -------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Advance a trial to its next block when that is due; a pause invalidates the present block."""
        trials = self._trials
        if text := trials.look(self._pauses.all() if trials.mode is not None else ()):
            await self._after(text)

    async def judge(self, now_s: float) -> None:
        """Pass the samples of this round to the running trial."""
        trials = self._trials
        text = trials.take(self._workloads.all_specs(), self._measured.samples)
        self._records.problem("trial", trials.problem or None, now_s)
        if text:
            await self._after(text)

    async def _after(self, text: str) -> None:
        """Announce a block or the end of a trial. After harm, nothing is enforced until an operator requests it."""
        self._planned.discard()
        self._announcer.tell(EventKind.TRIAL, text)
        record = self._trials.record
        if record is None or record.ending is None or record.ending.how is not End.HARM:
            return
        log.warning("%s", text, extra={"fields": {"event": EventKind.TRIAL}})
        if any(self._modes.of(spec) is Mode.ENFORCE for spec in self._workloads.all_specs()):
            self._pauses.begin_now(text, "perphd").add_done_callback(_say_unstored)


def _say_unstored(pause: Future[None]) -> None:
    if (exc := pause.exception()) is not None:
        log.error("the pause after a trial is in force, but will end when perphd stops: %s", exc)
