"""Memory: an LRA that stalls for it gets its working set protected, with a margin, as long as that can help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perphd.admission.rescue import Move
from perphd.admission.scene import Scene, stalls_for_memory
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Action
from perphd.domain.policy import WorkloadView
from perphd.domain.reading import available, value_or


def protect(scene: Scene, regretted: Sequence[Allocation]) -> Move | None:
    """The protection that the LRA's stalls call for; None: there are none, or more of it would not help.

    Args:
        scene: the LRA, which is short of its target.
        regretted: what has shown not to be enough, or could not be had.
    """
    sample, current = scene.view.sample, scene.current
    wanted = wanted_bytes(scene.view, current.memory_bytes, scene.settings)
    if sample is None or wanted is None:
        return None
    if any(a.cpu == current.cpu and a.memory_bytes > current.memory_bytes for a in regretted):
        return None  # it was asked for and could not be had: other dimensions may still help
    reason = f"memory stalls {value_or(sample.memory_some_pct, 0.0):.0f} %: its working set is protected"
    # Without any it did not do: that is not given back again soon.
    without = current if current.memory_bytes == 0 else None
    return Move(Action.GROW, replace(current, memory_bytes=wanted), reason, regret=without)


def wanted_bytes(view: WorkloadView, has_bytes: int, settings: PolicySettings) -> int | None:
    """What is to be protected of an LRA that is short and stalls for memory; None: no more than it has."""
    sample = view.sample
    if sample is None or "memory_low_bytes" not in view.enforceable:
        return None
    working_set = sample.memory_working_set_bytes
    if not available(working_set) or not stalls_for_memory(sample, settings):
        return None
    margin = 1.0 + settings.memory_margin_pct / 100.0
    wanted = max(int(working_set * margin), int(has_bytes * margin))
    # What it does not use needs no protection; stalls beyond that come from elsewhere (its own limit, say).
    used = value_or(sample.memory_current_bytes, working_set)
    wanted = min(wanted, int(max(used, working_set) * margin))
    return wanted if wanted > has_bytes else None
