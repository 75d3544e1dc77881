"""Cache and bandwidth settings that were decided but not yet written.

Either the write is slow, or another program holds resctrl's lock. Such settings are neither in force nor refused. They
stay wanted. Meanwhile the controller requests no other cache or bandwidth settings, and it evaluates the waiting ones
once they are in force. It decides and evaluates CPUs as usual. Pure.
"""

from __future__ import annotations

from perphd.admission.controller.lra_state import LraState
from perphd.admission.moves.rescue import Move
from perphd.admission.review.lra_context import LraContext
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Action
from perphd.domain.quick import replace

WAITS = "cache and bandwidth settings are still being written; "


def follow(lra: LraContext, state: LraState) -> LraState:
    """The state at the next tick.

    If a wait begins or ends, the change under evaluation is dropped, because its samples would show two changes. The
    evaluation of the waiting change itself starts when it is in force, unless something else was decided
    meanwhile.
    """
    wanted = state.chosen
    waits = wanted is not None and not _alike(wanted, lra.current) and lra.cache_waits()
    awaited = wanted if waits else None
    if (awaited is None) == (state.awaited is None):
        return replace(state, awaited=awaited)
    held, pending = state.pending, None
    if awaited is None:
        held, pending = None, state.unwritten
        if pending is not None and pending.after != lra.current:
            pending = None
    elif held is not None and held.after != awaited:
        held = None
    return replace(
        state, awaited=awaited, unwritten=held, pending=pending, scores=(), rooms=(), slack_since_s=None
    )


def of_cpus(lra: LraContext, awaited: Allocation | None, move: Move) -> Move:
    """The move without its cache and bandwidth parts, while earlier cache and bandwidth settings are unwritten."""
    if awaited is None or _alike(move.chosen, lra.current):
        return move
    chosen = _with_cache(move.chosen, lra.current)
    if chosen == lra.current:
        return Move(Action.HOLD, chosen, WAITS + move.reason, move.candidates)
    return replace(move, chosen=chosen)


def still_wanted(awaited: Allocation | None, move: Move) -> Move:
    """The move with the unwritten settings added, unless it releases everything."""
    if awaited is None or move.action is Action.RELEASE:
        return move
    return replace(move, chosen=_with_cache(move.chosen, awaited))


def _alike(a: Allocation, b: Allocation) -> bool:
    return (a.llc_ways, a.mbw_pct) == (b.llc_ways, b.mbw_pct)


def _with_cache(allocation: Allocation, other: Allocation) -> Allocation:
    return replace(allocation, llc_ways=other.llc_ways, mbw_pct=other.mbw_pct)
