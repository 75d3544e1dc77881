"""The shaper's state as text and numbers."""

from __future__ import annotations

from collections.abc import Sequence

from perphd.domain.reading import Reading, Unavailable, value_or
from perphd.sizing.shaper import Preemption
from perphd.sizing.shaper_view import ShapedWorkload, ShaperView
from perphd.sizing.shaping_state import ShapedMember, ShapedSubject, ShapingRules, ShapingState, is_there


def view(
    state: ShapingState, subjects: Sequence[ShapedSubject], capacity: Reading, rules: ShapingRules
) -> ShaperView:
    """The state as text and numbers."""
    rows = []
    for subject in subjects:
        member = state.members.get(subject.name) or ShapedMember(0.0)
        target: Reading = Unavailable(member.reason) if member.target_bytes is None else member.target_bytes
        rows.append(
            ShapedWorkload(
                subject.name,
                subject.role.value,
                subject.application,
                subject.shaped,
                subject.reserved_bytes,
                subject.used_bytes,
                target,
                member.reason,
                member.crashes,
                member.rung.value if member.rung else "",
                member.model,
            )
        )
    reclaimable = _reclaimable(state, subjects, capacity)
    actions = [action for member in state.members.values() for action in member.proposed]
    actions.sort(key=lambda action: not isinstance(action, Preemption))
    proposed = tuple(words for action in actions if (words := _worded(action)))
    return ShaperView(rules.mode.value, rules.interval_s, capacity, reclaimable, tuple(rows), proposed)


def _reclaimable(state: ShapingState, subjects: Sequence[ShapedSubject], capacity: Reading) -> Reading:
    """Capacity less the size of every present workload: its target, or its reservation before there is one."""
    if isinstance(capacity, Unavailable):
        return capacity
    held = 0.0
    for subject in subjects:
        member = state.members.get(subject.name)
        if member is None or not is_there(subject, member):
            continue
        target = subject.reserved_bytes if member.target_bytes is None else member.target_bytes
        held += max(target, value_or(subject.used_bytes, 0.0))
    return capacity - held


def _worded(action: object) -> str:
    """Description of an action; empty for a new size too close to the old one to matter."""
    if isinstance(action, Preemption):
        return f"{action.component}: {action.rung.value} ({action.reason})"
    component = getattr(action, "component", "")
    before, after = getattr(action, "before", None), getattr(action, "after", None)
    if before is None or after is None:
        return f"{component}: resume"
    was, will = f"{before / (1 << 20):.0f} MiB", f"{after / (1 << 20):.0f} MiB"
    return "" if was == will else f"{component}: {was} -> {will}"
