"""Memory protection for an LRA that stalls on memory: its working set with a margin, while that can help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perphd.admission.moves.rescue import Move
from perphd.admission.review.lra_context import LraContext, stalls_for_memory
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Action
from perphd.domain.policy import WorkloadView
from perphd.domain.reading import available, value_or


def protect(lra: LraContext, regretted: Sequence[Allocation]) -> Move | None:
    """The protection for an LRA that stalls on memory; None if it does not stall, or if more would not help.

    Args:
        lra: the LRA, which is below its target.
        regretted: allocations that were not enough or not possible.
    """
    sample, current = lra.view.sample, lra.current
    wanted = wanted_bytes(lra.view, current.memory_bytes, lra.settings)
    if sample is None or wanted is None:
        return None
    if any(a.cpu == current.cpu and a.memory_bytes > current.memory_bytes for a in regretted):
        return None  # it was refused before; other resources may still help
    reason = f"memory stalls {value_or(sample.memory_some_pct, 0.0):.0f} %: protecting its working set"
    # The allocation without protection was not enough, so it enters a cooldown.
    without = current if current.memory_bytes == 0 else None
    return Move(Action.GROW, replace(current, memory_bytes=wanted), reason, cooldown=without)


def wanted_bytes(view: WorkloadView, has_bytes: int, settings: PolicySettings) -> int | None:
    """Bytes to protect for an LRA that stalls on memory; None if it needs no more than ``has_bytes``."""
    sample = view.sample
    if sample is None or "memory_low_bytes" not in view.enforceable:
        return None
    working_set = sample.memory_working_set_bytes
    if not available(working_set) or not stalls_for_memory(sample, settings):
        return None
    margin = 1.0 + settings.memory_margin_pct / 100.0
    wanted = max(int(working_set * margin), int(has_bytes * margin))
    # Unused memory needs no protection; further stalls have another cause (such as its own limit).
    used = value_or(sample.memory_current_bytes, working_set)
    wanted = min(wanted, int(max(used, working_set) * margin))
    return wanted if wanted > has_bytes else None
