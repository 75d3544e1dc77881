"""Decisions without the model: there is no score, or no reference of the LRA's undisturbed performance.

Without a score, the controller waits and then probes: it restricts batch to the minimum for a few seconds to
learn the reference.

A missed absolute objective needs no reference. The controller suspects the present batch and relieves the LRA
in steps: it restricts first batch's CPU, then also its cache and bandwidth. Only the effect of such a step is
evidence. If a step does not help, the controller takes the next one. If no step helps, batch is not the cause: the
controller gives everything back, and does not repeat the same steps during a cooldown that doubles. A step
that helped is given back one rung at a time, each evaluated like any change.

Pure functions of the context; the controller remembers the time since which nothing could be judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perphd.admission.detector.judge import Target
from perphd.admission.moves.rescue import Move
from perphd.admission.review.lra_context import LraContext
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Action

UNREFERENCED: Final = "its undisturbed performance is not known yet"
LESSONS: Final = 2
"""Number of samples that a probe takes for each reference sample needed, because a protected sample counts half."""


def when_unknown(
    lra: LraContext, reason: str, waited_s: float, may_probe: bool, regretted: Sequence[Allocation]
) -> Move:
    """The move when there is no score.

    Args:
        lra: context of the decision.
        reason: why there is no score.
        waited_s: seconds without a score.
        may_probe: True if only the reference is missing and a probe could teach it.
        regretted: allocations in cooldown.
    """
    settings, probe = lra.settings, lra.shield_allocation()
    if lra.current != lra.nothing:
        if waited_s < settings.unknown_release_s:
            return Move(Action.HOLD, lra.current, reason)
        text = f"no score for {waited_s:.0f} s: giving everything back; {reason}"
        return Move(Action.RELEASE, lra.nothing, text, cooldown=probe)
    if not (may_probe and settings.probe_reference) or probe in regretted:
        return Move(Action.HOLD, lra.current, reason)
    if waited_s < settings.probe_after_s:
        text = f"{reason}; a probe follows once this has lasted {settings.probe_after_s:g} s"
        return Move(Action.HOLD, lra.current, text)
    return _tried(lra, probe, "batch was running before any undisturbed sample", regretted)


def relieve(
    lra: LraContext, target: Target, scores: Sequence[float], regretted: Sequence[Allocation]
) -> Move | None:
    """The move for an LRA without a reference that misses its objective; None if only the ladder is left.

    Args:
        lra: context of the decision.
        target: the LRA's target.
        scores: clean scores since the last change.
        regretted: allocations in cooldown.
    """
    if target.has_reference:
        return None
    why, shield = f"below its objective, and {UNREFERENCED}", lra.shield_allocation()
    if lra.current == lra.nothing:
        probe = lra.probe_allocation()
        gentle = probe != lra.nothing and not {probe, shield} & set(regretted)
        return _tried(lra, probe if gentle else shield, why, regretted)
    if lra.current == lra.probe_allocation() != shield and shield not in regretted:
        text = f"{why}: restricting batch's CPU was not enough, so its cache and bandwidth are restricted too"
        return Move(Action.GROW, shield, text, unproven=True)
    if lra.current == shield and len(scores) < LESSONS * lra.settings.min_reference_samples:
        return Move(Action.HOLD, lra.current, f"{why}: the reference is being learned")
    return None


def _tried(lra: LraContext, wanted: Allocation, why: str, regretted: Sequence[Allocation]) -> Move:
    """Strong protection for a few seconds to learn the reference; HOLD if it cannot be set or is in cooldown."""
    if wanted == lra.nothing:
        text = f"{why}; no probe: neither CPUs nor weight of batch can be set here"
        return Move(Action.HOLD, lra.current, text)
    if wanted in regretted:
        text = f"{why}; the last probe yielded no reference; the next one waits for its cooldown"
        return Move(Action.HOLD, lra.current, text)
    text = f"{why}: protecting strongly to learn its undisturbed performance"
    return Move(Action.EXPLORE, wanted, text, unproven=True)
