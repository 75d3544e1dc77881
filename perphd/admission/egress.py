"""What batch may send: a ceiling that the operator gives, always or while a link is full. Around any other policy.

A full link is the one contention that no cgroup controller answers: what is queued in the device's one queue delays
everybody. The link is not divided; who is to be protected passes first and unshaped (``perphd.host.tc``), batch as a
whole is bounded. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from perphd.domain.allocation import UNTOUCHED, Settings
from perphd.domain.policy import Policy, Snapshot, TargetState
from perphd.domain.reading import available
from perphd.domain.workload import Kind

KNOB = "egress_max"


@dataclass(frozen=True, slots=True)
class EgressRule:
    """``devices``: where; ``ceiling_bytes``: per second, for all batch together on each of them.

    ``when`` saturated: from ``saturated_pct`` of the fullest link's speed on, until it was below ``release_pct`` for
    ``release_s``.
    """

    devices: tuple[str, ...]
    ceiling_bytes: int
    when: Literal["always", "saturated"] = "always"
    saturated_pct: float = 85.0
    release_pct: float = 60.0
    release_s: float = 30.0


@dataclass(frozen=True, slots=True)
class _Memory:
    inner: Any = None
    holds: bool = False
    below_since_s: float | None = None


def memory_within(memory: object) -> object:
    """What the policy below a ceiling remembers; a memory that is no ceiling's as it is."""
    return memory.inner if isinstance(memory, _Memory) else memory


class EgressCeiling:
    """``policy`` with the rule on top: what it wants for batch also says what batch may send."""

    def __init__(self, policy: Policy, rule: EgressRule) -> None:
        self._policy, self._rule = policy, rule

    @property
    def name(self) -> str:
        """As the policy within."""
        return self._policy.name

    def decide(self, snapshot: Snapshot) -> TargetState:
        """As the policy within, and the ceiling for all batch that can have one, if the rule says so."""
        memory = snapshot.memory if isinstance(snapshot.memory, _Memory) else _Memory()
        target = self._policy.decide(replace(snapshot, memory=memory.inner))
        memory = self._judge(snapshot, memory)
        settings = dict(target.settings)
        if memory.holds:
            ceilings = tuple((device, self._rule.ceiling_bytes) for device in self._rule.devices)
            for view in snapshot.workloads:
                if view.spec.kind is Kind.BATCH and KNOB in view.enforceable:
                    wanted: Settings = settings.get(view.spec.name, UNTOUCHED)
                    settings[view.spec.name] = replace(wanted, egress_max=ceilings)
        return replace(target, settings=settings, memory=replace(memory, inner=target.memory))

    def _judge(self, snapshot: Snapshot, before: _Memory) -> _Memory:
        """Whether the ceiling holds from now on."""
        rule = self._rule
        if not any(view.spec.kind is Kind.LRA and view.sample is not None for view in snapshot.workloads):
            return _Memory()  # nobody is there to be protected
        if rule.when == "always":
            return _Memory(holds=True)
        full_pct = snapshot.host.network_pct
        if not available(full_pct):
            return before  # what is not known changes nothing
        if full_pct >= rule.saturated_pct:
            return _Memory(holds=True)
        if not before.holds or full_pct >= rule.release_pct:
            return _Memory(holds=before.holds)
        since_s = snapshot.at_s if before.below_since_s is None else before.below_since_s
        return _Memory(holds=snapshot.at_s - since_s < rule.release_s, below_since_s=since_s)
