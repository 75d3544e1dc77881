"""The target settings of every workload: the policy's, completed by sizing, bands, backoff and the queue."""

from __future__ import annotations

from perphd.agent.bands import asks_for_a_share
from perphd.agent.modes import Modes
from perphd.agent.state import State
from perphd.domain.allocation import UNTOUCHED, Settings
from perphd.domain.policy import TargetState
from perphd.domain.workload import Kind, Mode, WorkloadSpec

_OF_A_NEW_JOB = frozenset({"cpus", "llc_masks"})


def wanted_settings(state: State, modes: Modes, target: TargetState) -> dict[str, Settings]:
    """Settings by workload; workloads that are only observed keep their original ones."""
    enforced = {name for name, spec in state.specs.items() if modes.of(spec) is Mode.ENFORCE}
    _divide(state, enforced)
    return {
        name: _completed(state, name, target.settings.get(name, UNTOUCHED)) if name in enforced else UNTOUCHED
        for name in state.specs
    }


def _divide(state: State, enforced: set[str]) -> None:
    """Divide CPUs and cache among the bands of the present workloads."""
    known = state.enforceable
    if state.bands.division is None and not any(map(asks_for_a_share, state.specs.values())):
        return
    there = [state.specs[name] for name in state.specs if name in enforced and _is_there(state, name)]
    state.bands.divide(
        state.topology, state.actuators, there, {name: each.knobs for name, each in known.items()}
    )


def _is_there(state: State, name: str) -> bool:
    known = state.enforceable.get(name)
    return known is not None and known.present


def _completed(state: State, name: str, wanted: Settings) -> Settings:
    shaping, known = state.parts.shaping, state.enforceable.get(name)
    knobs = frozenset() if known is None else known.knobs
    spec = state.specs[name]
    if spec.kind is Kind.BATCH and not spec.gives_way:
        wanted = UNTOUCHED  # silver is never restricted for another workload
    wanted = wanted if shaping is None else shaping.over(name, wanted, knobs)
    fitting = state.parts.fitting
    wanted = wanted if fitting is None else fitting.over(name, wanted)
    wanted = _banded(state, spec, wanted, knobs)
    latency = state.parts.disk_latency
    wanted = wanted if latency is None else latency.over(spec, wanted, state.now_s)
    backoff = state.parts.backoff
    wanted = wanted if backoff is None else backoff.over(name, wanted)
    queue = state.parts.queue
    return wanted if queue is None or name not in state.jobs else queue.over(name, wanted)


def _banded(state: State, spec: WorkloadSpec, wanted: Settings, knobs: frozenset[str]) -> Settings:
    """``wanted``, adapted to the bands of all workloads."""
    if spec.band is not None and spec.name not in state.jobs:  # a job's unit has the settings of its band
        from perphd.qos.band_settings import with_band  # a daemon without bands does not load their module

        guaranteed = state.bands.guarantees(spec.name)
        wanted = with_band(spec, wanted, knobs, state.topology.memory_bytes, guaranteed=guaranteed)
    if not knobs and spec.name in state.jobs:
        knobs = _OF_A_NEW_JOB  # the next round checks which knobs the job's group really has
    return state.bands.over(spec, wanted, knobs)
