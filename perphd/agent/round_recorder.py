"""Records a complete round: samples, decisions, outcomes, missing workloads, conflicts."""

from __future__ import annotations

import math
from dataclasses import replace

from perphd.admission.declaring import UndeclaredRecord
from perphd.agent.measurements import Measurements
from perphd.agent.modes import Modes
from perphd.agent.records import Records
from perphd.agent.round_clock import RoundClock
from perphd.agent.selfcost import CostMeter
from perphd.agent.tally import Tally
from perphd.agent.workload_list import WorkloadList
from perphd.domain.decision import Decision
from perphd.domain.event import Event, EventKind
from perphd.domain.policy import TargetState
from perphd.domain.quick import changer
from perphd.domain.sample import Quality
from perphd.domain.workload import Mode
from perphd.isolation.executor import Executor

RECORD_S = 5.0
"""Seconds between two records of undeclared groups' activity, for suggestions."""

_with_mode = changer(Decision, "mode")


class RoundRecorder:
    """Passes a round to the records and the counters. ``undeclared``: activity of undeclared groups."""

    def __init__(
        self,
        *,
        clock: RoundClock,
        workloads: WorkloadList,
        modes: Modes,
        measurements: Measurements,
        executor: Executor,
        records: Records,
        tally: Tally,
        cost: CostMeter,
    ) -> None:
        self._clock, self._workloads, self._modes, self._measured = clock, workloads, modes, measurements
        self._executor, self._records, self._tally, self._cost = executor, records, tally, cost
        self._recorded_s = -math.inf
        self._conflicts: set[str] = set()
        self.undeclared = UndeclaredRecord()

    def record(self, target: TargetState, now_s: float) -> None:
        """Record the last samples and these decisions."""
        self._record_samples(target)
        self._record_decisions(target)
        self._show_missing(now_s)
        self._show_conflicts(now_s)
        self._records.event(Event(now_s, EventKind.TICK, f"tick {self._clock.rounds}"))

    def took(self, seconds: float, now_s: float) -> None:
        """Count a complete round and its duration."""
        self._cost.tick(now_s, seconds)
        self._tally.ticked(seconds)

    def _record_samples(self, target: TargetState) -> None:
        samples, account = tuple(self._measured.samples.values()), self._measured.account
        self._records.samples(samples)
        self._records.host(account)
        if account is not None and account.at_s - self._recorded_s >= RECORD_S:
            since_s = min(account.at_s - self._recorded_s, 2.0 * RECORD_S)
            lately = replace(account, interval_s=since_s)
            self.undeclared = self.undeclared.after(lately, target.decisions)
            self._recorded_s = account.at_s
        self._tally.follow(self._workloads.all_specs())
        self._tally.sampled(samples)
        self._tally.host(account)

    def _record_decisions(self, target: TargetState) -> None:
        records, tally = self._records, self._tally
        for decision in target.decisions:
            spec = self._workloads.specs.get(decision.workload)
            mode = Mode.OBSERVE if spec is None else self._modes.of(spec)
            decided = _with_mode(decision, mode)
            records.decision(decided)
            if spec is not None:
                tally.decided(decided, spec, self._measured.full_samples.get(decision.workload))
        for outcome in target.outcomes:
            records.outcome(outcome)
            tally.outcome(outcome)

    def _show_missing(self, now_s: float) -> None:
        samples = self._measured.samples
        for name, spec in self._workloads.specs.items():
            missing = name not in samples or samples[name].has(Quality.GONE)
            text = None
            if missing:
                text = f"{spec.kind} {name!r}: cgroup {spec.cgroup} does not exist; waiting for it"
            self._records.problem(f"missing:{name}", text, now_s)

    def _show_conflicts(self, now_s: float) -> None:
        yielded = [c for c in self._executor.conflicts() if c.yielded]
        conflicts = {f"conflict:{c.path}": str(c) for c in yielded}
        for key in self._conflicts - conflicts.keys():
            self._records.problem(key, None, now_s)
        for key, text in conflicts.items():
            self._records.problem(key, text, now_s)
        self._conflicts = set(conflicts)
        self._tally.conflicts = tuple((c.workload, c.path, str(c)) for c in yielded)
