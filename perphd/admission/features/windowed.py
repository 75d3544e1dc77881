"""Restricts riskier changes of a policy to the operator's change window. Wraps any other policy. Pure.

Outside the window, no setting of an LRA itself changes, and there are no trials: no exploration, no probe of
an LRA's reference, no cache trial. Batch can still be restricted at any time, which relieves LRAs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from perphd.admission.settings import TRIALS_OFF
from perphd.domain.allocation import KEEP, UNTOUCHED, Settings
from perphd.domain.policy import Policy, Snapshot, TargetState, WorkloadView
from perphd.domain.workload import Kind, Touch


@dataclass(frozen=True, slots=True)
class _Memory:
    """Memory of ``Windowed``. ``own``: the LRAs' own settings when the window was last open."""

    inner: Any = None
    own: Mapping[str, Settings] = field(default_factory=dict)


class Windowed:
    """Applies the window to ``policy``: outside it the LRAs' own settings are held.

    The policy itself refrains from trials, since it sees ``HostView.window_open``.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    @property
    def name(self) -> str:
        """The wrapped policy's name."""
        return self._policy.name

    def decide(self, snapshot: Snapshot) -> TargetState:
        """The wrapped policy's decision; outside the window the LRAs' own settings are held."""
        memory = snapshot.memory if isinstance(snapshot.memory, _Memory) else _Memory()
        names = {view.spec.name for view in snapshot.workloads if view.spec.kind is Kind.LRA}
        if snapshot.host.window_open:
            target = self._policy.decide(replace(snapshot, memory=memory.inner))
            own = {name: target.settings.get(name, UNTOUCHED) for name in names}
            return replace(target, memory=_Memory(target.memory, own))
        held = {
            view.spec.name: _still_allowed(view, memory.own.get(view.spec.name, UNTOUCHED))
            for view in snapshot.workloads
            if view.spec.name in names
        }
        views = tuple(_held(view, held) if view.spec.name in held else view for view in snapshot.workloads)
        target = self._policy.decide(replace(snapshot, workloads=views, memory=memory.inner))
        return replace(target, settings={**target.settings, **held}, memory=_Memory(target.memory, held))


def _still_allowed(view: WorkloadView, own: Settings) -> Settings:
    """The held settings, without those that the LRA's owner has forbidden since then.

    The owner's restriction takes effect at once, even outside the window.
    """
    return own if view.spec.touch is Touch.ALL else replace(own, cpus=KEEP, llc_masks=KEEP, mba_pct=KEEP)


def _held(view: WorkloadView, held: Mapping[str, Settings]) -> WorkloadView:
    """The view of an LRA whose own settings are held. If no settings are held, the policy plans with batch alone."""
    policy = tuple(pair for pair in view.spec.policy if pair[0] not in TRIALS_OFF)
    knobs = frozenset() if held[view.spec.name].is_untouched() else view.enforceable
    return replace(view, spec=replace(view.spec, policy=policy), enforceable=knobs)


def memory_within(memory: object) -> object:
    """The wrapped policy's memory; any other memory is returned unchanged."""
    return memory.inner if isinstance(memory, _Memory) else memory
