"""Decisions where a model cannot help: no score, or no knowledge of what the LRA does undisturbed.

Without a score it is waited, then probed: batch is kept to the least for a few seconds, which teaches the reference.

An absolute objective that is missed needs no reference. Batch is suspected while it is there, and the LRA is relieved
step by step: batch's CPU first, then its cache and its bandwidth as well. Only what comes of such a step can speak for
it. One that does not help leads to the next. If none has helped, batch is innocent: everything is given back, and the
same is not tried again for a while that doubles. What has helped is given back one rung at a time, each judged like any
other change.

Pure functions of the scene; since when nothing could be judged is the turn's to remember.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perphd.admission.detector import Target
from perphd.admission.rescue import Move
from perphd.admission.scene import Scene
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Action

UNREFERENCED: Final = "what it does undisturbed is not known yet"
LESSONS: Final = 2
"""A protected sample counts half as much as an undisturbed one: a probe takes so many times more of them."""


def when_unknown(
    scene: Scene, reason: str, waited_s: float, may_probe: bool, regretted: Sequence[Allocation]
) -> Move:
    """The move where there is no score.

    Args:
        scene: the LRA now.
        reason: why there is none.
        waited_s: for how long that has been so.
        may_probe: its reference is what is missing, and a probe could teach it.
        regretted: what is not to be tried now.
    """
    settings, probe = scene.settings, scene.shield_allocation()
    if scene.current != scene.nothing:
        if waited_s < settings.unknown_release_s:
            return Move(Action.HOLD, scene.current, reason)
        text = f"nothing could be judged for {waited_s:.0f} s: everything is given back; {reason}"
        return Move(Action.RELEASE, scene.nothing, text, regret=probe)
    if not (may_probe and settings.probe_reference) or probe in regretted:
        return Move(Action.HOLD, scene.current, reason)
    if waited_s < settings.probe_after_s:
        text = f"{reason}; a probe follows if it stays so for {settings.probe_after_s:g} s"
        return Move(Action.HOLD, scene.current, text)
    return _tried(scene, probe, "batch was there first", regretted)


def relieve(
    scene: Scene, target: Target, scores: Sequence[float], regretted: Sequence[Allocation]
) -> Move | None:
    """The move for an LRA without a reference that is short; None where only the ladder is left.

    Args:
        scene: the LRA now.
        target: of the LRA.
        scores: clean ones since the last change.
        regretted: what is not to be tried now.
    """
    if target.has_reference:
        return None
    why, shield = f"below its objective, and {UNREFERENCED}", scene.shield_allocation()
    if scene.current == scene.nothing:
        probe = scene.probe_allocation()
        gentle = probe != scene.nothing and not {probe, shield} & set(regretted)
        return _tried(scene, probe if gentle else shield, why, regretted)
    if scene.current == scene.probe_allocation() != shield and shield not in regretted:
        text = f"{why}: less of batch's CPU is not enough, so it gets less cache and bandwidth as well"
        return Move(Action.GROW, shield, text, unproven=True)
    if scene.current == shield and len(scores) < LESSONS * scene.settings.min_reference_samples:
        return Move(Action.HOLD, scene.current, f"{why}: it is being learned")
    return None


def _tried(scene: Scene, wanted: Allocation, why: str, regretted: Sequence[Allocation]) -> Move:
    """Strong protection for a few seconds, which also relieves; HOLD where it cannot be had, or taught nothing."""
    if wanted == scene.nothing:
        text = f"{why}; no probe: neither the CPUs nor the weight of batch can be set here"
        return Move(Action.HOLD, scene.current, text)
    if wanted in regretted:
        text = f"{why}; a probe has taught nothing and is not repeated yet"
        return Move(Action.HOLD, scene.current, text)
    text = f"{why}: protecting strongly to learn what undisturbed performance is"
    return Move(Action.EXPLORE, wanted, text, unproven=True)
