"""What is wanted for every workload: the policy's settings, completed by sizing, bands, backoff and the queue."""

from __future__ import annotations

from perphd.agent.modes import Modes
from perphd.agent.state import State
from perphd.domain.allocation import UNTOUCHED, Settings
from perphd.domain.policy import TargetState
from perphd.domain.workload import Mode


def wanted_settings(state: State, modes: Modes, target: TargetState) -> dict[str, Settings]:
    """Settings by workload; workloads that are only observed keep their original ones."""
    return {
        name: _completed(state, name, target.settings.get(name, UNTOUCHED))
        if modes.of(spec) is Mode.ENFORCE
        else UNTOUCHED
        for name, spec in state.specs.items()
    }


def _completed(state: State, name: str, wanted: Settings) -> Settings:
    shaping, known = state.parts.shaping, state.enforceable.get(name)
    knobs = frozenset() if known is None else known.knobs
    wanted = wanted if shaping is None else shaping.over(name, wanted, knobs)
    fitting = state.parts.fitting
    wanted = wanted if fitting is None else fitting.over(name, wanted)
    spec = state.specs[name]
    if spec.band is not None and name not in state.jobs:  # a job's unit has the settings of its band
        from perphd.qos.band_settings import with_band  # a daemon without bands does not load their module

        wanted = with_band(spec, wanted, knobs)
    backoff = state.parts.backoff
    wanted = wanted if backoff is None else backoff.over(name, wanted)
    queue = state.parts.queue
    return wanted if queue is None or name not in state.jobs else queue.over(name, wanted)
