"""What is done where an LRA cannot be judged: waiting, a probe that is to teach what it does undisturbed, giving up.

Pure functions of the scene; since when nothing could be judged is the turn's to remember.
"""

from __future__ import annotations

from collections.abc import Sequence

from perphd.admission.rescue import Move
from perphd.admission.scene import Scene
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Action


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
    settings = scene.settings
    if scene.current != scene.nothing:
        if waited_s < settings.unknown_release_s:
            return Move(Action.HOLD, scene.current, reason)
        text = f"nothing could be judged for {waited_s:.0f} s: everything is given back; {reason}"
        return Move(Action.RELEASE, scene.nothing, text, regret=scene.probe_allocation())
    if not (may_probe and settings.probe_reference) or scene.probe_allocation() in regretted:
        return Move(Action.HOLD, scene.current, reason)
    if waited_s < settings.probe_after_s:
        text = f"{reason}; a probe follows if it stays so for {settings.probe_after_s:g} s"
        return Move(Action.HOLD, scene.current, text)
    return probe(scene, "batch was there first", regretted)


def probe(scene: Scene, why: str, regretted: Sequence[Allocation]) -> Move:
    """Strong protection for a few seconds, which also relieves; HOLD where it cannot be had, or taught nothing."""
    wanted = scene.probe_allocation()
    if wanted == scene.nothing:
        text = f"{why}; no probe: neither the CPUs nor the weight of batch can be set here"
        return Move(Action.HOLD, scene.current, text)
    if wanted in regretted:
        text = f"{why}; a probe has taught nothing and is not repeated yet"
        return Move(Action.HOLD, scene.current, text)
    text = f"{why}: protecting strongly to learn what undisturbed performance is"
    return Move(Action.EXPLORE, wanted, text)


def give_up(scene: Scene, waited_s: float) -> Move | None:
    """The end of a probe that has taught nothing for too long; None while it may still teach."""
    if waited_s < scene.settings.unknown_release_s:
        return None
    text = f"what it does undisturbed could not be learned in {waited_s:.0f} s: everything is given back"
    return Move(Action.RELEASE, scene.nothing, text, regret=scene.current)
