"""Cache and bandwidth that were decided and wait for their write: somebody holds resctrl's lock, or writing takes long.

What waits is neither in force nor refused. It stays wanted, so that it comes into force as soon as it can, and nothing
more of its kind is asked for meanwhile. Nor is it judged: what comes of it cannot be seen yet. CPUs are decided on and
judged as usual, by what is in force. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from perphd.admission.lra_state import LraState
from perphd.admission.rescue import Move
from perphd.admission.scene import Scene
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Action

WAITS = "cache and bandwidth wait for their write; "


def follow(scene: Scene, state: LraState) -> LraState:
    """The state at the next tick: what was in hand is void when a wait begins, or ends."""
    wanted = state.chosen
    waits = wanted is not None and not _alike(wanted, scene.current) and scene.cache_waits()
    awaited = wanted if waits else None
    if (awaited is None) == (state.awaited is None):
        return replace(state, awaited=awaited)
    return replace(state, awaited=awaited, pending=None, scores=(), slack_since_s=None)


def of_cpus(scene: Scene, awaited: Allocation | None, move: Move) -> Move:
    """The move without what it asks of cache and bandwidth while these wait."""
    if awaited is None or _alike(move.chosen, scene.current):
        return move
    chosen = _with_cache(move.chosen, scene.current)
    if chosen == scene.current:
        return Move(Action.HOLD, chosen, WAITS + move.reason, move.candidates)
    return replace(move, chosen=chosen)


def still_wanted(awaited: Allocation | None, move: Move) -> Move:
    """The move with what waits, which is given up only with everything."""
    if awaited is None or move.action is Action.RELEASE:
        return move
    return replace(move, chosen=_with_cache(move.chosen, awaited))


def _alike(a: Allocation, b: Allocation) -> bool:
    return (a.llc_ways, a.mbw_pct) == (b.llc_ways, b.mbw_pct)


def _with_cache(allocation: Allocation, other: Allocation) -> Allocation:
    return replace(allocation, llc_ways=other.llc_ways, mbw_pct=other.mbw_pct)
