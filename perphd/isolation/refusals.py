"""Decides which values that the kernel refused are retried, and when."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from perphd.domain.allocation import KEEP
from perphd.domain.errors import Broken, Busy, Full, KernelError
from perphd.domain.plan import ChangeSet, Key, NotEnforceable
from perphd.host.cgroup.group import Knob
from perphd.host.cgroup.knobs import Value
from perphd.isolation.gates import PlanContext
from perphd.isolation.knob_states import KnobStates, Refusal
from perphd.isolation.watch import RETRY

TRIES_AT_ONCE: Final = 3
"""Failures in a row after which a value waits between retries."""
KEPT: Final = 32
"""Number of refused values remembered per knob; the oldest is dropped first."""


class Refusals:
    """Remembers the refused targets of each knob. KEEP, which restores, is retried without limit.

    A value that is wrong in principle is not retried. Transient failures are retried immediately a few times, then with
    exponential backoff. A failed write rolls back its whole transaction, so repeatedly failing writes are retried one
    at a time under a shared backoff until one succeeds: they usually have one cause, such as a hanging systemd.
    """

    def __init__(self, knobs: KnobStates) -> None:
        self._knobs = knobs
        self._pause_s = 0.0
        self._paused_s = 0.0
        self._retried: frozenset[Key] = frozenset()

    def why_not(self, key: Key, target: Value, now_s: float) -> str:
        """The reason why this target is not retried now; empty if it is."""
        refusal = self._of(key, target)
        return str(refusal) if refusal is not None and refusal.waits(now_s) else ""

    def hold(self, changes: ChangeSet, plan: PlanContext) -> ChangeSet:
        """Hold the knobs whose target was refused and is not due for a retry; knobs without a target pass."""
        planned, now_s = plan.planned, plan.now_s
        held: dict[Key, str] = {}
        due: dict[Key, Refusal] = {}
        for key in dict.fromkeys(write.key for write in changes.writes):
            refusal = self._of(key, planned[key][1]) if key in planned else None
            if refusal is None or refusal.wait_s == 0:
                continue
            if refusal.waits(now_s):
                held[key] = str(refusal)
            else:
                due[key] = refusal
        held |= self._one_at_a_time(due, now_s)
        self._retried = frozenset(due.keys() - held.keys())
        return changes.without(
            [
                NotEnforceable(*key, f"not restored, {why}" if planned[key][1] is KEEP else why)
                for key, why in held.items()
            ]
        )

    def _one_at_a_time(self, due: Mapping[Key, Refusal], now_s: float) -> dict[Key, str]:
        """The due retries that the shared backoff still holds, with reasons."""
        if not due or not self._pause_s:
            return {}
        turn = (
            () if 0 <= now_s - self._paused_s < self._pause_s else (min(due, key=lambda key: due[key].at_s),)
        )
        why = f"retried within {RETRY.longest_s:g} s, one at a time with other failing writes"
        return {key: f"{why}: {refusal.reason}" for key, refusal in due.items() if key not in turn}

    def _of(self, key: Key, target: Value) -> Refusal | None:
        state = self._knobs.find(key)
        return None if state is None else state.refused.get(target)

    def failed(self, key: Key, target: Value, error: KernelError, now_s: float) -> None:
        """Record that the kernel refused this target."""
        refusals = self._knobs.of(key).refused
        before = refusals.pop(target, None)
        failures = 1 if before is None else before.failures + 1
        may_pass = isinstance(error, Busy | Full | Broken)
        if may_pass and failures < TRIES_AT_ONCE:
            wait_s = 0.0
        elif may_pass or target is KEEP:
            wait_s = RETRY.after(0.0 if before is None else before.wait_s)
        else:
            wait_s = math.inf
        refusals[target] = Refusal(failures, now_s, wait_s, str(error))
        if len(refusals) > KEPT:
            del refusals[next(iter(refusals))]
        if key in self._retried and not (self._pause_s and self._paused_s == now_s):  # count once per try
            self._pause_s, self._paused_s = RETRY.after(self._pause_s), now_s

    def took(self, key: Key, target: Value) -> None:
        """Record that the kernel accepted this target."""
        if (state := self._knobs.find(key)) is not None:
            state.refused.pop(target, None)

    def succeeded(self, keys: Iterable[Key], planned: Mapping[Key, tuple[Knob, Value]]) -> None:
        """Record that the kernel accepted the targets planned for these knobs."""
        for key in keys:
            if key in planned:
                self.took(key, planned[key][1])
            if key in self._retried:
                self._pause_s = 0.0

    def reset(self, workload: str | None = None) -> None:
        """Forget refusals of one workload (None: of all), so that everything is retried at once."""
        self._pause_s = 0.0
        for state in self._knobs.all(workload):
            state.refused.clear()
