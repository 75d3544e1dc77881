"""A ceiling on batch's network egress, permanent or while a link is full. Wraps any other policy.

No cgroup controller handles a full link: packets in the device's single queue delay all workloads. perphd
does not divide the link: protected workloads send first and unshaped (``perphd.host.tc``), and batch as a
whole is limited. Pure.
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
    """The configured ceiling.

    ``devices``: network devices; ``ceiling_bytes``: bytes per second for all batch on each device.

    ``when``: "always", or "saturated": the ceiling then starts at ``saturated_pct`` of the fullest link's speed and
    ends after ``release_s`` below ``release_pct``.
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
    """The wrapped policy's memory; any other memory is returned unchanged."""
    return memory.inner if isinstance(memory, _Memory) else memory


class EgressCeiling:
    """Adds the ceiling of the rule to the decisions of ``policy``."""

    def __init__(self, policy: Policy, rule: EgressRule) -> None:
        self._policy, self._rule = policy, rule

    @property
    def name(self) -> str:
        """The wrapped policy's name."""
        return self._policy.name

    def decide(self, snapshot: Snapshot) -> TargetState:
        """The wrapped policy's decision. While the rule applies, all copper that supports a ceiling gets it."""
        memory = snapshot.memory if isinstance(snapshot.memory, _Memory) else _Memory()
        target = self._policy.decide(replace(snapshot, memory=memory.inner))
        memory = self._judge(snapshot, memory)
        settings = dict(target.settings)
        if memory.holds:
            ceilings = tuple((device, self._rule.ceiling_bytes) for device in self._rule.devices)
            for view in snapshot.workloads:
                if view.spec.gives_way and KNOB in view.enforceable:
                    wanted: Settings = settings.get(view.spec.name, UNTOUCHED)
                    settings[view.spec.name] = replace(wanted, egress_max=ceilings)
        return replace(target, settings=settings, memory=replace(memory, inner=target.memory))

    def _judge(self, snapshot: Snapshot, before: _Memory) -> _Memory:
        """The state after this tick, with whether the ceiling applies."""
        rule = self._rule
        if not any(view.spec.kind is Kind.LRA and view.sample is not None for view in snapshot.workloads):
            return _Memory()  # no LRA to protect
        if rule.when == "always":
            return _Memory(holds=True)
        full_pct = snapshot.host.network_pct
        if not available(full_pct):
            return before  # the state stays while the link's use is unknown
        if full_pct >= rule.saturated_pct:
            return _Memory(holds=True)
        if not before.holds or full_pct >= rule.release_pct:
            return _Memory(holds=before.holds)
        since_s = snapshot.at_s if before.below_since_s is None else before.below_since_s
        return _Memory(holds=snapshot.at_s - since_s < rule.release_s, below_since_s=since_s)
