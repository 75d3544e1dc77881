"""The agent's state for display."""

from __future__ import annotations

from perphd import __version__
from perphd.admission import calibration
from perphd.admission.settings import settings_for
from perphd.agent import counting
from perphd.agent.band_lines import beside_gold
from perphd.agent.modes import Modes
from perphd.agent.state import Enforceable, State
from perphd.domain.allocation import Settings
from perphd.domain.condition import batch_condition, lra_condition
from perphd.domain.decision import Decision
from perphd.domain.plan import NotEnforceable
from perphd.domain.progress import NO_PROGRESS
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable
from perphd.domain.sample import Quality, Sample
from perphd.domain.status import AgentStatus, DetectorTest, WorkloadStatus
from perphd.domain.workload import Kind, Mode, WorkloadSpec

SHOWN_CHANGES = 5
"""Number of latest changes in the status."""
_BATCH = Unavailable("batch is not judged")


def status_of(state: State, modes: Modes) -> AgentStatus:
    """The complete present state."""
    records = state.parts.records
    return AgentStatus(
        version=__version__,
        mode=modes.general,
        policy=state.parts.policy.name,
        period_s=state.config.daemon.period_s,
        pace_s=state.pace_s,
        attentive=state.attention.why if state.pace_s < state.config.daemon.period_s else "",
        tick=state.tick,
        extra_ticks=state.parts.early_ticks.extra_ticks if state.parts.early_ticks is not None else 0,
        uptime_s=state.now_s - state.began_s if state.began_s is not None else 0.0,
        workloads=(
            *(_of(state, modes, spec) for spec in state.all_specs()),
            *(_of(state, modes, spec) for spec in state.not_found()),
        ),
        journal_entries=state.parts.executor.journal_entries,
        cost=state.cost.cost(),
        problems=(*state.config.warnings, *records.problems, *_untrue(state.detector_test)),
        notes=(*counting.notes(state, modes),),
        detector_test=state.detector_test,
        changes=records.changes(SHOWN_CHANGES),
        window="" if state.parts.window.is_open() else state.config.window.allow,
        configured_mode=state.config.daemon.mode,
        pauses=state.parts.pauses.all(),
        host=state.account,
        forecast=None if state.parts.forecasts is None else state.parts.forecasts.summary(),
        trial=state.parts.trials.status(),
        llc_ways=state.actuators.llc_ways,
        llc_shareable=state.actuators.llc_shareable,
        queue=None if state.parts.queue is None else state.parts.queue.summary(),
    )


def _untrue(test: DetectorTest | None) -> tuple[str, ...]:
    text = calibration.failure(test) if test is not None else ""
    return (text,) if text else ()


def _of(state: State, modes: Modes, spec: WorkloadSpec) -> WorkloadStatus:
    sample = state.samples.get(spec.name)
    present = sample is not None and not sample.has(Quality.GONE)
    protection = state.protections.get(spec.name)
    known, executor = state.enforceable.get(spec.name), state.parts.executor
    decision, in_force = state.parts.records.last_decision(spec.name), executor.in_force(spec.name)
    done = state.progress.get(spec.name, NO_PROGRESS)
    full_sample = state.full_samples.get(spec.name)
    return WorkloadStatus(
        spec=spec,
        present=present,
        mode=modes.of(spec),
        sample=sample,
        decision=decision,
        outcome=state.parts.records.last_outcome(spec.name),
        protection=protection.allocation if protection is not None else None,
        in_force=in_force,
        not_enforceable=known.missing if known is not None else (),
        limited=(
            *executor.not_enforceable(spec.name),
            *executor.limited(spec.name),
            *_ceiling_missing(state, modes, spec, known),
            *_left_to_gold(state, modes, spec),
        ),
        expected_false_alarms_per_day=_false_alarms(state, spec),
        pause=modes.pause_of(spec),
        full_sample=full_sample,
        condition=_condition(spec, sample, full_sample, decision, in_force),
        starved_s=done.starved_s(state.now_s),
        recent_cores=done.cores(state.now_s) if spec.kind is Kind.BATCH else NOT_MEASURED,
        sli_resolution=state.parts.sli.resolution(spec.name),
        would=state.parts.records.would(spec.name),
        problem="" if present else f"waiting for {f'cgroup {spec.cgroup}' if spec.cgroup else spec.match}",
    )


def _condition(
    spec: WorkloadSpec,
    sample: Sample | None,
    full_sample: Sample | None,
    decision: Decision | None,
    in_force: Settings,
) -> str:
    if spec.kind is Kind.BATCH:
        return batch_condition(sample, in_force)
    return lra_condition(full_sample, decision, spec.objective.latency_percentile) or ""


def _false_alarms(state: State, spec: WorkloadSpec) -> Reading:
    if spec.kind is not Kind.LRA:
        return _BATCH
    config = state.config
    settings = settings_for(config.policy, spec)
    return calibration.expected(state.memory, spec.name, settings, config.daemon.period_s)


def _left_to_gold(state: State, modes: Modes, spec: WorkloadSpec) -> tuple[NotEnforceable, ...]:
    text = beside_gold(state, modes, spec)
    return (NotEnforceable(spec.name, "cpus", text),) if text else ()


def _ceiling_missing(
    state: State, modes: Modes, spec: WorkloadSpec, known: Enforceable | None
) -> tuple[NotEnforceable, ...]:
    """Reason why batch lacks the configured egress ceiling, because policies request only available settings."""
    network = state.config.network
    asked = network.names and network.batch_egress_max_bytes and modes.of(spec) is Mode.ENFORCE
    if known is None or not asked or not spec.gives_way:
        return ()
    return tuple(left for left in known.missing if left.knob == "egress_max")
