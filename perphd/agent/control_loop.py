"""One round: sample -> learn -> decide -> enforce -> record."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import replace

from perphd.admission.attention import advance
from perphd.agent import counting
from perphd.agent.forecasts import Message, set_limits
from perphd.agent.learning import START_S, ObservationMerger
from perphd.agent.modes import Modes
from perphd.agent.protections import Protections
from perphd.agent.state import State
from perphd.agent.wanted import wanted_settings
from perphd.agent.workload_registry import WorkloadRegistry
from perphd.domain import progress
from perphd.domain.decision import TROUBLED, Decision
from perphd.domain.event import Event, EventKind
from perphd.domain.policy import HostView, Snapshot, TargetState, WorkloadView
from perphd.domain.quick import changer, maker
from perphd.domain.reading import NOT_MEASURED, Reading
from perphd.domain.sample import Quality, Sample
from perphd.domain.workload import Kind, Mode, WorkloadSpec
from perphd.host.actuators import Actuators
from perphd.isolation import RestoreReport
from perphd.monitor.residence import NOWHERE
from perphd.sizing.shaping_state import ShapingStep
from perphd.trial.record import End

log = logging.getLogger("perphd")

RESYNC_S = 5.0
"""Longest time in seconds between two reads of the kernel's values, to notice other writers."""
RECORD_S = 5.0
"""Seconds between two records of undeclared groups' activity, for suggestions."""
_STEADY_KNOBS = ("memory_high_bytes", "memory_low_bytes", "memory.high")
"""Settings whose change does not disturb a sample's CPU readings."""

_NO_KNOBS: frozenset[str] = frozenset()

_make_view = maker(WorkloadView)
_with_mode = changer(Decision, "mode")


class ControlLoop:
    """Runs rounds, which never overlap."""

    def __init__(
        self, state: State, modes: Modes, registry: WorkloadRegistry, protections: Protections
    ) -> None:
        self._state, self._modes, self._registry, self._protections = state, modes, registry, protections
        self._conflicts: set[str] = set()
        self._noted: set[str] = set()
        self._recorded_s = -math.inf
        self._busy_cores: Reading = NOT_MEASURED
        self._network_pct: Reading = NOT_MEASURED
        self._lessons = ObservationMerger(START_S)

    async def tick(self, now_s: float, period_s: float | None = None) -> None:
        """Run one round at ``now_s`` (monotonic seconds). Failures of single workloads do not abort it.

        ``period_s``: the planned time since the previous round; by default the configured period.
        """
        period_s = self._state.config.daemon.period_s if period_s is None else period_s
        await self._registry.discover(now_s)
        await self._registry.give_back_left(now_s)
        async with self._state.lock:
            if not self._state.sli_followed:
                await self._state.parts.sli.follow(self._state.all_specs())
                self._state.sli_followed = True
            readings = await self._state.parts.sli.read(now_s)
            self._show_notes(now_s)
            now_s = self._state.time_s(now_s)
            waited = time.perf_counter()
            self._state.now_s = now_s
            self._state.began_s = now_s if self._state.began_s is None else self._state.began_s
            self._follow_processors(now_s)
            self._follow_pauses()
            await self._follow_trial()
            self._protections.look(now_s)
            specs = self._state.all_specs()
            self._state.parts.models.follow(specs, now_s, self._state.application)
            counted = self._state.parts.executor.counted
            samples = self._state.parts.monitor.sample(now_s, specs, readings, counted)
            self._state.parts.sli.worked(samples)
            self._busy_cores = self._state.parts.host_load.read(now_s)
            if self._state.parts.links is not None:
                self._network_pct = self._state.parts.links.read(now_s)
            self._take_samples(samples)
            self._state.account = self._state.parts.accounts.read(
                now_s, self._state.parts.host_load.times, specs, self._state.samples
            )
            await self._judge_trial(now_s)
            self._look_where_they_run(now_s)
            snapshot = self.snapshot(now_s, period_s)
            self.learn(snapshot)
            deciding = time.perf_counter()
            with self._state.parts.records.paused():
                target = self._state.parts.policy.decide(snapshot)
                self._state.memory, self._state.target = target.memory, target
                step = self._shape(snapshot, target)
                await self._enforce(target, now_s, deciding)
            self._end(step)
            await self._state.parts.executor.follow_counted(counting.asked(self._state, self._modes), now_s)
            self._record(target, tuple(self._state.samples.values()), now_s)
            self._state.parts.models.save_when_due(specs, now_s, self._state.config.daemon.model_save_s)
            self._attend(snapshot, target)
            self._follow_jobs(now_s)
            self._back_off(specs, now_s)
            if self._state.parts.queue is not None:
                self._state.parts.queue.step(now_s, self._state.samples, self._state.account)
            if self._state.parts.forecasts is not None:
                self._state.parts.forecasts.step(now_s, self._message)
            self._state.tick += 1
            # Time spent waiting for applications' answers does not count as the daemon's.
            took_s = time.perf_counter() - waited
            self._state.cost.tick(now_s, took_s)
            self._state.parts.tally.ticked(took_s)

    def _back_off(self, specs: Sequence[WorkloadSpec], now_s: float) -> None:
        """Evaluate contended devices, announce changes, and update the hints for batch."""
        backoff, hints = self._state.parts.backoff, self._state.parts.hints
        told = [] if backoff is None else backoff.step(now_s, specs, self._state.samples)
        contended = () if backoff is None else backoff.rows()
        for device, reason in told:
            held = [
                each.workload
                for row in contended
                if f"{row.kind} {row.device}" == device
                for each in row.restrictions
            ]
            seen = [name for name in held if self._modes.of(self._state.specs[name]) is not Mode.ENFORCE]
            only = f"; {', '.join(seen)} in mode observe: nothing is written" if seen else ""
            self._state.tell(EventKind.HOST, f"{device}: {reason}{only}")
        if hints is not None:
            takers = [spec for spec in specs if spec.takes_hints]
            enforced = {spec.name for spec in takers if self._modes.of(spec) is Mode.ENFORCE}
            problem = hints.write([spec.name for spec in takers], enforced, contended)
            self._state.parts.records.problem("hints", problem or None, now_s)

    def _follow_jobs(self, now_s: float) -> None:
        """Report starts and ends of batch runs to the job history."""
        if self._state.parts.jobs is not None:
            found = self._state.found
            queued = self._state.jobs  # the queue records its own jobs
            self._state.parts.jobs.follow(
                [spec for spec in self._state.all_specs() if spec.name not in queued],
                self._state.samples,
                lambda name: found[name].declaration if name in found else name,
                now_s,
            )

    def _message(self) -> Message:
        """The message to the forecast worker: the workloads, the jobs that have ended, the host."""
        in_force, jobs = self._state.parts.executor.in_force, self._state.parts.jobs
        listed = [
            (
                spec.name,
                spec.cgroup,
                spec.min_memory_bytes,
                set_limits(in_force(spec.name)),
                spec.reserved_memory_bytes,
                self._state.application(spec.name),
            )
            for spec in self._state.all_specs()
        ]
        return Message(listed, [] if jobs is None else jobs.take(), self._state.topology.most)

    def _show_notes(self, now_s: float) -> None:
        """Show the notes of indicator sources about their readings, and clear notes that no longer apply."""
        notes = {
            f"sli:{name}": f"{name}: {note}" for name, note in self._state.parts.sli.notes().items() if note
        }
        for key in self._noted - notes.keys():
            self._state.parts.records.problem(key, None, now_s)
        for key, text in notes.items():
            self._state.parts.records.problem(key, text, now_s)
        self._noted = set(notes)

    def _attend(self, snapshot: Snapshot, target: TargetState) -> None:
        """Determine the time to the next round, and the workloads that may request an earlier one."""
        daemon, early_ticks = self._state.config.daemon, self._state.parts.early_ticks
        self._state.attention = advance(
            self._state.attention,
            snapshot,
            target,
            daemon.attentive_period_s,
            daemon.attentive_for_s,
            started=early_ticks.started if early_ticks is not None else (),
        )
        self._listen(target)  # There is no await in between, so later requests count for the next round.

    def _listen(self, target: TargetState) -> None:
        """Subscribe present LRAs to early ticks, and report whether the last early tick found a problem."""
        early_ticks = self._state.parts.early_ticks
        if early_ticks is None:
            return
        lras = [s for s in self._state.specs.values() if s.kind is Kind.LRA]
        early_ticks.follow(
            {s.name: s.cgroup for s in lras if not self._state.samples[s.name].has(Quality.GONE)}
        )
        batch = {s.name: s.cgroup for s in self._state.specs.values() if s.kind is Kind.BATCH}
        gone = {name for name in batch if self._state.samples[name].has(Quality.GONE)}
        fresh = {n for n in batch if self._state.samples[n].has(Quality.FIRST, Quality.RESTARTED)}
        early_ticks.await_batch(batch, fresh, gone)
        early_ticks.answered(
            early_ticks.take(), {d.workload for d in target.decisions if d.verdict.health in TROUBLED}
        )

    def _follow_processors(self, now_s: float) -> None:
        """After CPU hotplug, discard earlier decisions, which refer to stale core numbers.

        Until the policy has decided again, no CPUs are restricted. Cache ways, bandwidth and memory do not depend on
        core numbers and stay in force. Values that the kernel refused before are retried.
        """
        found = self._state.parts.processors.look()
        if found is None:
            return
        text = f"online CPUs are now {found.online}, not {self._state.topology.online}: earlier decisions are discarded"
        self._state.topology = found
        self._state.memory = self._state.planned = self._state.target = None
        self._protections.without_cpus(now_s)
        self._state.enforceable.clear()
        self._state.parts.executor.forget_conflicts()
        self._state.parts.records.event(Event(now_s, EventKind.HOST, text))

    def _follow_pauses(self) -> None:
        """Announce pauses that began or ended automatically, and plan again."""
        for text in self._state.parts.pauses.look():
            self._state.planned = None
            self._state.tell(EventKind.PAUSE, text)

    async def _follow_trial(self) -> None:
        """Advance a trial to its next block when that is due; a pause invalidates the present block."""
        trials = self._state.parts.trials
        if text := trials.look(self._state.parts.pauses.all() if trials.mode is not None else ()):
            await self._after_trial(text)

    async def _judge_trial(self, now_s: float) -> None:
        """Pass the samples of this round to the running trial."""
        trials = self._state.parts.trials
        text = trials.take(self._state.all_specs(), self._state.samples)
        self._state.parts.records.problem("trial", trials.problem or None, now_s)
        if text:
            await self._after_trial(text)

    async def _after_trial(self, text: str) -> None:
        """Announce a block or the end of a trial. After harm, nothing is enforced until an operator requests it."""
        self._state.planned = None
        self._state.tell(EventKind.TRIAL, text)
        record = self._state.parts.trials.record
        if record is None or record.ending is None or record.ending.how is not End.HARM:
            return
        log.warning("%s", text, extra={"fields": {"event": EventKind.TRIAL}})
        if any(self._modes.of(spec) is Mode.ENFORCE for spec in self._state.all_specs()):
            self._state.parts.pauses.begin_now(text, "perphd").add_done_callback(_say_unstored)

    def _take_samples(self, samples: Sequence[Sample]) -> None:
        self._state.samples = {sample.workload: self._protections.flagged(sample) for sample in samples}
        self._state.full_samples = {
            name: sample if not sample.has(Quality.BETWEEN) else self._state.full_samples.get(name, sample)
            for name, sample in self._state.samples.items()
        }

        self._state.progress = {
            spec.name: progress.advance(
                self._state.progress.get(spec.name, progress.NO_PROGRESS), self._state.samples.get(spec.name)
            )
            for spec in self._state.specs.values()
            if spec.kind is Kind.BATCH
        }

    def _look_where_they_run(self, now_s: float) -> None:
        """Track the L3 domains that workloads use; needed only if there are several and resctrl can set something."""
        residence, topology = self._state.parts.residence, self._state.topology
        if residence is None:
            return
        asked = len(topology.l3_domains) > 1 and self._state.actuators != Actuators()
        specs = self._state.all_specs() if asked else ()
        here = {s.name: s.cgroup for s in specs if not self._state.samples[s.name].has(Quality.GONE)}
        lras = {s.name for s in specs if s.kind is Kind.LRA}
        residence.follow(here, lras, topology, now_s)

    def snapshot(self, now_s: float, period_s: float | None = None) -> Snapshot:
        """Everything that a policy may know at ``now_s``. ``period_s``: as in ``tick``."""
        yielded = self._protections.yielded()
        views = tuple([self._view(spec, now_s, yielded) for spec in self._state.all_specs()])
        return Snapshot(
            tick=self._state.tick,
            at_s=now_s,
            period_s=self._state.config.daemon.period_s if period_s is None else period_s,
            host=HostView(
                self._state.topology,
                busy_cores=self._busy_cores,
                llc_ways=self._state.actuators.llc_ways,
                min_cbm_bits=self._state.actuators.min_cbm_bits,
                llc_classes=self._state.actuators.llc_classes,
                mba_levels_pct=self._state.actuators.mba_levels_pct,
                llc_shareable=self._state.actuators.llc_shareable,
                mba_source=self._state.actuators.throttle.source,
                mba_curves=self._state.actuators.throttle.curves,
                network_pct=self._network_pct,
                account=self._state.account,
                window_open=self._state.parts.window.is_open(),
            ),
            workloads=views,
            memory=self._state.memory,
        )

    def _view(self, spec: WorkloadSpec, now_s: float, yielded: Mapping[str, Set[str]]) -> WorkloadView:
        sample = self._state.samples.get(spec.name)
        present = sample is not None and not sample.has(Quality.GONE)
        is_lra = spec.kind is Kind.LRA
        protection = self._state.protections.get(spec.name)
        residence = self._state.parts.residence
        home = NOWHERE if residence is None else residence.home(spec.name)
        knobs = self._protections.knobs(spec, present, now_s)
        paid = spec.kind is Kind.BATCH and not spec.gives_way  # the policy must not change its settings
        return _make_view(
            spec=spec,
            sample=sample if present else None,
            model=self._state.parts.models.model(spec.name) if is_lra else None,
            protection=protection.allocation if protection is not None else None,
            protected_since_s=protection.since_s if protection is not None else 0.0,
            enforceable=_NO_KNOBS if paid else knobs - yielded[spec.name] if spec.name in yielded else knobs,
            enforced=not paid and self._modes.of(spec) is Mode.ENFORCE,
            allowed=home.allowed,
            seen_domains=home.domains,
            waiting=self._state.parts.executor.waiting(spec.name),
        )

    def learn(self, snapshot: Snapshot) -> None:
        """Pass the observations to the models."""
        in_force = [protection.allocation for protection in self._state.protections.values()]
        for name, seen in self._lessons.of(snapshot, in_force, self._state.config.policy.batch_idle_cores):
            self._state.parts.models.model(name).observe(seen)

    def _shape(self, snapshot: Snapshot, target: TargetState) -> ShapingStep | None:
        """Run memory fits and the shaper for this round, and announce their notes."""
        shaping, fitting = self._state.parts.shaping, self._state.parts.fitting
        if fitting is not None:
            in_force = self._state.parts.executor.in_force
            for name, text in fitting.look(snapshot, target, in_force):
                self._state.tell(EventKind.SIZING, text, name)
            self._state.parts.executor.let_exact(fitting.names)
        if shaping is None or shaping.is_off:
            return None
        step = shaping.look(snapshot, target, frozenset() if fitting is None else fitting.sized)
        for name, text in step.notes:
            self._state.tell(EventKind.SIZING, text, name)
        return step

    def _end(self, step: ShapingStep | None) -> None:
        """End the workloads that the shaper ends, after everything else is in force."""
        if step is None or not step.ends or self._state.parts.shaping is None:
            return
        if self._state.parts.jobs is not None:
            self._state.parts.jobs.by_force([name for name, _ in step.ends])
        for name, text in self._state.parts.shaping.end(self._why_not_end):
            self._state.tell(EventKind.PROBLEM, text, name)

    def _why_not_end(self, name: str) -> str:
        """The reason not to end a workload, whose mode may have changed while limits were written; empty if none."""
        spec = self._state.specs.get(name)
        is_enforced = spec is not None and self._modes.of(spec) is Mode.ENFORCE
        return "" if is_enforced else "it is only observed now"

    async def _enforce(self, target: TargetState, now_s: float, deciding: float) -> None:
        wanted = wanted_settings(self._state, self._modes, target)
        # A cgroup that (re)appeared has the kernel's defaults, whatever was written to its predecessor.
        fresh = {s.workload for s in self._state.samples.values() if s.has(Quality.FIRST, Quality.RESTARTED)}
        new = bool(fresh) or self._state.planned is None or self._state.planned[0] != wanted
        if not new and self._state.planned is not None and now_s - self._state.planned[1] < RESYNC_S:
            self._protections.note(target, now_s, changed=False)
            return
        executor = self._state.parts.executor
        self._note_released(await executor.release_gone(), now_s)
        changes = executor.plan(wanted, self._state.all_specs(), now_s)
        self._state.planned = (wanted, now_s)
        if changes.reason:
            self._state.parts.records.problem("apply", changes.reason, now_s, about="nothing can be written")
            return
        if not changes:
            self._state.parts.records.problem("apply", None, now_s)
            self._protections.note(target, now_s, changed=False)
            return
        applied = await executor.apply(changes, settle=False)
        took_s = time.perf_counter() - deciding
        await executor.settle()
        self._state.cost.wrote(took_s)
        self._state.parts.tally.write_delays.add(took_s)
        if applied.ok:
            self._state.parts.records.change(now_s, changes, "written")
            self._state.parts.records.problem("apply", None, now_s)
            for about in ("nothing can be written", *(write.path for write in applied.written)):
                self._state.parts.records.healed(about)
            steady = all(write.knob in _STEADY_KNOBS for write in changes.writes)
            again = all(write.workload in fresh for write in changes.writes)
            self._protections.note(target, now_s, changed=not steady, again=again)
            if applied.more:
                self._state.planned = None
        else:
            self._state.planned = None
            result, text = "failed and undone", f"a change failed and was undone: {applied.failed}"
            if applied.kept:
                kept = ", ".join(dict.fromkeys(f"{write.knob} of {write.workload}" for write in applied.kept))
                result = f"failed in part: {kept} written and in force, the rest not written or undone"
                text = f"a change succeeded only in part ({kept} in force, the rest not): {applied.failed}"
            self._state.parts.records.change(now_s, changes, result)
            if applied.problems:
                text += "; not undone: " + "; ".join(applied.problems)
            about = applied.failed.path if applied.failed is not None else "apply"
            self._state.parts.records.problem("apply", text, now_s, about)
            self._protections.note(target, now_s, changed=bool(applied.kept))

    def _note_released(self, report: RestoreReport | None, now_s: float) -> None:
        if report is None:
            return
        left = report.failed or report.foreign
        text = f"some traffic classes of removed groups remain: {report}" if left else None
        self._state.parts.records.problem("released", text, now_s, about="released")
        if text is None:
            self._state.parts.records.healed("released")

    def _record(self, target: TargetState, samples: tuple[Sample, ...], now_s: float) -> None:
        records, tally = self._state.parts.records, self._state.parts.tally
        records.samples(samples)
        account = self._state.account
        records.host(account)
        if account is not None and account.at_s - self._recorded_s >= RECORD_S:
            since_s = min(account.at_s - self._recorded_s, 2.0 * RECORD_S)
            lately = replace(account, interval_s=since_s)
            self._state.undeclared = self._state.undeclared.after(lately, target.decisions)
            self._recorded_s = account.at_s
        tally.follow(self._state.all_specs())
        tally.sampled(samples)
        tally.host(self._state.account)
        for decision in target.decisions:
            spec = self._state.specs.get(decision.workload)
            mode = Mode.OBSERVE if spec is None else self._modes.of(spec)
            decided = _with_mode(decision, mode)
            records.decision(decided)
            if spec is not None:
                tally.decided(decided, spec, self._state.full_samples.get(decision.workload))
        for outcome in target.outcomes:
            records.outcome(outcome)
            tally.outcome(outcome)
        for name, spec in self._state.specs.items():
            missing = name not in self._state.samples or self._state.samples[name].has(Quality.GONE)
            text = None
            if missing:
                text = f"{spec.kind} {name!r}: cgroup {spec.cgroup} does not exist; waiting for it"
            records.problem(f"missing:{name}", text, now_s)
        yielded = [c for c in self._state.parts.executor.conflicts() if c.yielded]
        conflicts = {f"conflict:{c.path}": str(c) for c in yielded}
        for key in self._conflicts - conflicts.keys():
            records.problem(key, None, now_s)
        for key, text in conflicts.items():
            records.problem(key, text, now_s)
        self._conflicts = set(conflicts)
        tally.conflicts = tuple((c.workload, c.path, str(c)) for c in yielded)
        records.event(Event(now_s, EventKind.TICK, f"tick {self._state.tick}"))


def _say_unstored(pause: Future[None]) -> None:
    if (exc := pause.exception()) is not None:
        log.error("the pause after a trial is in force, but will end when perphd stops: %s", exc)
