"""Gates that filter a plan.

Each holds back writes that must wait, with the reason; all share one signature. ``Executor`` lists them in order;
``Refusals``, ``ConflictWatch`` and ``TransactionSize`` provide gates too.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from perphd.domain.allocation import KEEP, UNTOUCHED, Settings
from perphd.domain.plan import ChangeSet, Key, NotEnforceable, Stage, Write
from perphd.host.cgroup.group import Knob
from perphd.host.cgroup.knobs import LIST_SETTINGS, Value
from perphd.isolation.knob_states import KnobStates

BURST: Final = 20
"""Capacity of a knob's token bucket: changes that are not rate-limited at first, or after a quiet time."""


@dataclass(frozen=True, slots=True)
class PlanContext:
    """Facts about a plan that the gates need.

    ``planned``: every knob with its target. ``unattainable``: knobs for which the planner found no write. ``lras``:
    names of all LRAs. ``stuck``: LRAs on CPUs or memory nodes assigned by perphd that cannot be changed now.
    ``is_bound``: True for a knob with such CPUs or nodes. ``now_s``: the plan's time, which paces steps. ``clock_s``:
    the clock's time, which paces retries of the journal.
    """

    targets: Mapping[str, Settings]
    planned: Mapping[Key, tuple[Knob, Value]]
    unattainable: Container[Key]
    lras: Container[str]
    stuck: Sequence[str]
    is_bound: Callable[[Key], bool]
    now_s: float
    clock_s: float

    def is_wanted(self, key: Key) -> bool:
        """False if this knob is only to be restored."""
        return getattr(self.targets.get(key[0], UNTOUCHED), key[1]) is not KEEP


Gate: TypeAlias = Callable[[ChangeSet, PlanContext], ChangeSet]
"""Returns the change set without the writes that have to wait."""


def hold_unpaired(changes: ChangeSet, plan: PlanContext) -> ChangeSet:
    """Hold CPU changes whose counterpart fails, so that exclusive CPUs are never half applied.

    No workload gains CPUs while an LRA cannot leave CPUs that perphd assigned to it. No LRA is narrowed while another
    workload cannot be confined, because they would share the LRA's CPUs.
    """
    left_out = [left for left in changes.skipped if left.key not in plan.unattainable]
    loose = [
        left
        for left in left_out
        if left.knob == "cpus" and left.workload not in plan.lras and plan.is_wanted(left.key)
    ]
    stuck = dict.fromkeys((*plan.stuck, *(left.workload for left in left_out if plan.is_bound(left.key))))
    waits_for = ", ".join(stuck)
    reasons: dict[Write, str] = {}
    for write in changes.writes:
        if write.knob not in LIST_SETTINGS:
            continue
        if stuck and write.stage is Stage.GROW and write.workload not in stuck:
            reasons[write] = f"waits for {waits_for}: its CPUs or memory nodes cannot be changed now"
        elif loose and write.stage is Stage.SHRINK and write.workload in plan.lras:
            reasons[write] = f"not confined while {loose[0].workload} is not: {loose[0].reason}"
    if not reasons:
        return changes
    told = dict.fromkeys(NotEnforceable(*write.key, why) for write, why in reasons.items())
    kept = tuple(write for write in changes.writes if write not in reasons)
    return ChangeSet(kept, (*changes.skipped, *told), changes.reason)


class RateLimiter:
    """A token bucket per knob. Its tokens suffice for every urgent reaction, but not for an oscillating controller.

    Args:
        per_s: tokens added per second; None: no limit.
    """

    def __init__(self, knobs: KnobStates, per_s: float | None) -> None:
        self._knobs, self._per_s = knobs, per_s

    def hold(self, changes: ChangeSet, plan: PlanContext) -> ChangeSet:
        """Hold knobs that have changed too often; restores are never held.

        A knob waits for all workloads together, because a loss for one is a gain for another.
        """
        if self._per_s is None:
            return changes
        wanted = [key for key in dict.fromkeys(write.key for write in changes.writes) if plan.is_wanted(key)]
        waits = {key[1]: why for key in wanted if (why := self.wait(key, plan.now_s))}
        held = {key: waits[key[1]] for key in wanted if key[1] in waits}
        return changes.without([NotEnforceable(*key, why) for key, why in held.items()])

    def wait(self, key: Key, now_s: float) -> str:
        """The reason why this knob may not change now; empty if it may."""
        if self._per_s is None or self._left(key, now_s) >= 1.0:
            return ""
        return (
            f"rate limit: changed {BURST} times in a short time, now at most {self._per_s:g} times a second"
        )

    def changed(self, key: Key, now_s: float) -> None:
        """Count a change of the knob."""
        if self._per_s is not None:
            self._knobs.of(key).tokens = max(0.0, self._left(key, now_s) - 1.0), now_s

    def _left(self, key: Key, now_s: float) -> float:
        state = self._knobs.find(key)
        if state is None or state.tokens is None or self._per_s is None:
            return float(BURST)
        left, at_s = state.tokens
        return min(float(BURST), left + max(0.0, now_s - at_s) * self._per_s)


class TransactionSize:
    """Splits a plan that exceeded the deadline into smaller transactions.

    The order of a plan's writes makes this safe: stopping after any write leaves no LRA worse off. The remaining writes
    are planned again from values that are read again.

    Args:
        deadline_s: time for the writes of one transaction.
        is_apart: True for writes that are not part of the transaction.
    """

    def __init__(self, deadline_s: float, is_apart: Callable[[Write], bool]) -> None:
        self._deadline_s, self._is_apart = deadline_s, is_apart
        self._most: int | None = None
        self.more = False
        """True if the last plan was split."""
        self.unfinished = False
        """True if a plan was split and no complete plan has followed."""

    def hold(self, changes: ChangeSet, plan: PlanContext) -> ChangeSet:
        """Hold all writes beyond those that fit the deadline."""
        writes, most = changes.writes, self._most
        if most is not None and len(writes) > most:
            writes = tuple(write for write in writes if not self._is_apart(write))
        self.more = most is not None and len(writes) > most
        self.unfinished = self.more or (self.unfinished and bool(changes.writes))
        if most is None or not self.more:
            return changes
        end = most
        while end and writes[end].key == writes[end - 1].key:
            end -= 1  # keep the writes of one knob together if any remain
        end = end or most
        why = f"deferred to the next transaction: together the writes took longer than {self._deadline_s:g} s"
        left = dict.fromkeys(write.key for write in writes[end:])
        told = tuple(NotEnforceable(*key, why) for key in left)
        apart = filter(self._is_apart, changes.writes)
        return ChangeSet((*writes[:end], *apart), (*changes.skipped, *told), changes.reason)

    def too_slow(self, made: int) -> None:
        """Record that the deadline passed after this many writes."""
        self._most = max(1, made // 2)

    def in_time(self, made: int, took_s: float) -> None:
        """Record that this many writes took ``took_s``, so that the next transaction of a split plan may be larger."""
        self.unfinished = self.more
        if self._most is None or not self.more:
            return
        if took_s <= 0 or (fit := int(made * self._deadline_s / (2 * took_s))) > 1_000_000:
            self._most = None
        else:
            self._most = max(self._most, fit)
