"""Writes a target state to the kernel, and records what is in force afterwards."""

from __future__ import annotations

import time
from collections.abc import Set

from perphd.agent.measurements import Measurements
from perphd.agent.planned import PlannedSettings
from perphd.agent.protections import Protections
from perphd.agent.records import Records
from perphd.agent.selfcost import CostMeter
from perphd.agent.tally import Tally
from perphd.agent.wanted import WantedSettings
from perphd.agent.workload_list import WorkloadList
from perphd.domain.plan import ChangeSet
from perphd.domain.policy import TargetState
from perphd.domain.sample import Quality
from perphd.isolation.executor import Executor
from perphd.isolation.knob_states import Applied
from perphd.isolation.restore_report import RestoreReport

_STEADY_KNOBS = ("memory_high_bytes", "memory_low_bytes", "memory.high")
"""Settings whose change does not disturb a sample's CPU readings."""


class Enforcement:
    """Plans and applies the wanted settings when they change, and reads the kernel's values back periodically."""

    def __init__(
        self,
        *,
        workloads: WorkloadList,
        measurements: Measurements,
        wanted: WantedSettings,
        planned: PlannedSettings,
        executor: Executor,
        protections: Protections,
        records: Records,
        tally: Tally,
        cost: CostMeter,
    ) -> None:
        self._workloads, self._measured, self._wanted, self._planned = (
            workloads,
            measurements,
            wanted,
            planned,
        )
        self._executor, self._protections = executor, protections
        self._records, self._tally, self._cost = records, tally, cost

    async def enforce(self, target: TargetState, now_s: float, deciding: float) -> None:
        """Put a target state in force. ``deciding``: when the decision began, by ``time.perf_counter``."""
        wanted = self._wanted.by_workload(target)
        # A cgroup that (re)appeared has the kernel's defaults, whatever was written to its predecessor.
        samples = self._measured.samples.values()
        fresh = {s.workload for s in samples if s.has(Quality.FIRST, Quality.RESTARTED)}
        if not fresh and not self._planned.is_due(wanted, now_s):
            self._protections.note(target, now_s, changed=False)
            return
        executor = self._executor
        self._note_released(await executor.release_gone(), now_s)
        changes = executor.plan(wanted, self._workloads.all_specs(), now_s)
        self._planned.note(wanted, now_s)
        if changes.reason:
            self._records.problem("apply", changes.reason, now_s, about="nothing can be written")
            return
        if not changes:
            self._records.problem("apply", None, now_s)
            self._protections.note(target, now_s, changed=False)
            return
        applied = await executor.apply(changes, settle=False)
        took_s = time.perf_counter() - deciding
        await executor.settle()
        self._cost.wrote(took_s)
        self._tally.write_delays.add(took_s)
        if applied.ok:
            self._note_written(applied, changes, target, fresh, now_s)
        else:
            self._note_failed(applied, changes, target, now_s)

    def _note_written(
        self, applied: Applied, changes: ChangeSet, target: TargetState, fresh: Set[str], now_s: float
    ) -> None:
        self._records.change(now_s, changes, "written")
        self._records.problem("apply", None, now_s)
        for about in ("nothing can be written", *(write.path for write in applied.written)):
            self._records.healed(about)
        steady = all(write.knob in _STEADY_KNOBS for write in changes.writes)
        again = all(write.workload in fresh for write in changes.writes)
        self._protections.note(target, now_s, changed=not steady, again=again)
        if applied.more:
            self._planned.discard()

    def _note_failed(self, applied: Applied, changes: ChangeSet, target: TargetState, now_s: float) -> None:
        self._planned.discard()
        result, text = "failed and undone", f"a change failed and was undone: {applied.failed}"
        if applied.kept:
            kept = ", ".join(dict.fromkeys(f"{write.knob} of {write.workload}" for write in applied.kept))
            result = f"failed in part: {kept} written and in force, the rest not written or undone"
            text = f"a change succeeded only in part ({kept} in force, the rest not): {applied.failed}"
        self._records.change(now_s, changes, result)
        if applied.problems:
            text += "; not undone: " + "; ".join(applied.problems)
        about = applied.failed.path if applied.failed is not None else "apply"
        self._records.problem("apply", text, now_s, about)
        self._protections.note(target, now_s, changed=bool(applied.kept))

    def _note_released(self, report: RestoreReport | None, now_s: float) -> None:
        if report is None:
            return
        left = report.failed or report.foreign
        text = f"some traffic classes of removed groups remain: {report}" if left else None
        self._records.problem("released", text, now_s, about="released")
        if text is None:
            self._records.healed("released")
