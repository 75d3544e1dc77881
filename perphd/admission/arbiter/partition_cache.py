"""Cache and bandwidth of the LRAs of one L3 domain, by trial on the ladder of restrictions on batch.

An LRA that is short of cache or bandwidth gets more at batch's expense. A step that did not help is reverted at
once. If all LRAs have slack, batch gets a step back, and loses it again if an LRA needs it. A failed step is not
repeated during a cooldown that doubles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from perphd.admission.arbiter.member import Look, Member, is_short
from perphd.admission.detector.scatter import mean
from perphd.admission.inference import ladder
from perphd.admission.inference.bandwidth import delivered_pct
from perphd.admission.settings import PolicySettings
from perphd.admission.thresholds import HELPED_RATIO
from perphd.domain.allocation import Allocation, CpuGrant
from perphd.domain.backoff import doubled_s
from perphd.domain.decision import Cause
from perphd.domain.policy import Snapshot, WorkloadView
from perphd.domain.reading import available

BEGIN_MBW_PCT: Final = 60
"""Minimum share of bandwidth (%) that the first throttle leaves to batch. Hardly any single program can use more."""
ROOM: Final = 1.10
"""Room (``Member.room``) that every LRA must have before batch gets back a step of cache or bandwidth."""
STILL_ROOM: Final = 1.03
"""Room that every LRA must have at the end of the trial of a step given back; below it, the step is reverted."""
MUCH_ROOM: Final = 1.18
"""Room of every LRA from which more than one step is given back at once."""
SLIGHT: Final = 0.96
"""Score above which cache and bandwidth are taken from batch in single units."""
RECENT: Final = 3
"""Number of latest samples that show the present state, because caches fill and empty over seconds."""
FAR_BELOW: Final = 0.7
"""Score below which one sample reverts the last step given back."""
_ENOUGH_SAMPLES: Final = 3
_MOST_BANS: Final = 8


@dataclass(frozen=True, slots=True)
class Ban:
    """A cooldown of a protection that was not enough. Its length doubles each time that it is extended."""

    ways: int
    pct: int
    until_s: float
    times: int


@dataclass(frozen=True, slots=True)
class Tightened:
    """Restriction of batch that is on trial for an LRA. ``ways``, ``pct`` and ``score``: values before the
    restriction.
    """

    name: str
    ways: int
    pct: int
    score: float


@dataclass(frozen=True, slots=True)
class CacheState:
    """Restrictions in force and on trial. ``ways``: ways closed to batch. ``pct``: throttle of its bandwidth in %.

    ``loosened``: (ways, pct) before the reduction at ``loosened_s`` that is on trial; None: no trial.
    """

    ways: int = 0
    pct: int = 100
    loosened: tuple[int, int] | None = None
    loosened_s: float = 0.0
    tightened: Tightened | None = None
    bans: tuple[Ban, ...] = ()


class CacheTick:
    """Determines cache and bandwidth of one tick; ``state`` holds the result."""

    def __init__(
        self, settings: PolicySettings, snapshot: Snapshot, before: CacheState, giving: Sequence[WorkloadView]
    ) -> None:
        self.settings, self.host, self.now_s = settings, snapshot.host, snapshot.at_s
        self.before, self.state = before, before
        self.giving = tuple(giving)

    @property
    def moved(self) -> bool:
        """True if something changes in this tick."""
        return (self.state.ways, self.state.pct) != (self.before.ways, self.before.pct)

    def begin(self) -> None:
        """Start with half of the cache and a mild throttle; unneeded parts are given back later."""
        host = self.host
        ways = host.llc_ways // 2 if ladder.can_protect_llc(host, self.giving) else 0
        cores = max(1, len(host.topology.usable_cores))
        levels = [
            level for level in host.mba_levels_pct if delivered_pct(host, level, cores) >= BEGIN_MBW_PCT
        ]
        pct = min(levels, default=100) if ladder.can_protect_mbw(host, self.giving) else 100
        self.state = CacheState(ways, pct)

    def end(self) -> None:
        """Lift all restrictions, because there is no batch."""
        self.state = CacheState(bans=self.state.bans)

    # -- taking ---------------------------------------------------------------------------------------

    def tighten(self, member: Member, look: Look) -> bool:
        """Take cache or bandwidth from batch for this LRA if possible; returns True if it took any."""
        to = self._tighter(member, look)
        if to is None:
            return False
        state = self.state
        tightened = Tightened(look.name, state.ways, state.pct, member.now)
        self.state = replace(
            state, ways=max(state.ways, to[0]), pct=min(state.pct, to[1]), tightened=tightened
        )
        return True

    def _tighter(self, member: Member, look: Look) -> tuple[int, int] | None:
        state = self.state
        if state.tightened is not None or member.idle_cache_until_s > self.now_s:
            return None
        found = look.judged.hierarchy
        cause = found if found in (Cause.LLC, Cause.MBW) else Cause.LLC
        if member.level >= SLIGHT:
            return self._unit(cause)
        for rung in ladder.stronger(self._allocation(), cause, self.host, self.giving):
            return rung.llc_ways, rung.mbw_pct
        return None

    def _unit(self, cause: Cause) -> tuple[int, int] | None:
        """Ways and throttle with one unit less of cache or bandwidth for batch; None if there is no further unit."""
        host, ways, pct = self.host, self.state.ways, self.state.pct
        lower = [level for level in host.mba_levels_pct if level < pct]
        steps: list[tuple[int, int]] = []
        if ladder.can_protect_llc(host, self.giving) and host.llc_ways - ways > host.min_cbm_bits:
            steps.append((ways + 1, pct))
        if ladder.can_protect_mbw(host, self.giving) and lower:
            steps.append((ways, max(lower)))
        if cause is Cause.MBW:
            steps.reverse()
        return steps[0] if steps else None

    def judge_tightened(self, members: Mapping[str, Member], looks: Mapping[str, Look]) -> str | None:
        """Evaluate the restriction on trial; if it did not help, revert it and return its LRA."""
        trial = self.state.tightened
        if trial is None:
            return None
        member, look = members.get(trial.name), looks.get(trial.name)
        if member is None or look is None:
            self.state = replace(self.state, tightened=None)
            return None
        if not look.clean or len(member.scores) < max(self.settings.evaluate_ticks, _ENOUGH_SAMPLES):
            return None
        self.state = replace(self.state, tightened=None)
        if member.level >= 1.0 or math.isnan(trial.score) or member.level >= trial.score * HELPED_RATIO:
            self._ban(trial.ways, trial.pct)
            return None
        self.state = replace(self.state, ways=trial.ways, pct=trial.pct)
        return trial.name

    # -- restoring ------------------------------------------------------------------------------------

    def judge_loosened(self, members: Mapping[str, Member], looks: Mapping[str, Look]) -> tuple[str, ...]:
        """Evaluate the step last given back to batch; if it leaves LRAs short, revert it and return these LRAs."""
        before = self.state.loosened
        if before is None:
            return ()
        due = self.now_s - self.state.loosened_s >= self.settings.shrink_after_s
        # At the end of the trial require some slack, because just enough now may soon be too little.
        short = tuple(
            n
            for n, m in members.items()
            if m.cores
            and (is_short(m, looks[n]) or (due and m.scores and mean(m.rooms[-RECENT:]) < STILL_ROOM))
        )
        far = any(available(look.score) and look.score < FAR_BELOW for look in looks.values())
        if short or far:
            self._ban(self.state.ways, self.state.pct)
            self.state = replace(self.state, ways=before[0], pct=before[1], loosened=None)
        elif due:
            self.state = replace(self.state, loosened=None)
        return short

    def loosen(self, members: Mapping[str, Member]) -> bool:
        """Give batch a step back if all LRAs have had slack for a while. Returns True if a step was given back."""
        state = self.state
        if self.moved or state.loosened is not None or not members:
            return False
        judged = [m for m in members.values() if m.unknown_since_s is None] or list(members.values())
        # Caches fill over seconds, so the latest samples show the present state.
        rooms = [min(m.room, mean(m.rooms[-RECENT:])) if m.rooms else math.nan for m in judged]
        calm = [m.calm_since_s if r >= ROOM else None for m, r in zip(judged, rooms, strict=True)]
        if any(since_s is None or self.now_s - since_s < self.settings.shrink_after_s for since_s in calm):
            return False
        steps = [(s.llc_ways, s.mbw_pct) for s in ladder.weaker(self._allocation(), self.host)]
        if min(rooms) >= MUCH_ROOM:
            steps = [(state.ways, 100), (state.ways // 2, state.pct), *steps]
        for ways, pct in steps:
            banned = any(b.until_s > self.now_s and ways <= b.ways and pct >= b.pct for b in state.bans)
            if (ways, pct) != (state.ways, state.pct) and not banned:
                loosened = state.ways, state.pct
                self.state = replace(state, ways=ways, pct=pct, loosened=loosened, loosened_s=self.now_s)
                return True
        return False

    def _ban(self, ways: int, pct: int) -> None:
        """Start or extend the cooldown of this protection."""
        alike = [b for b in self.state.bans if (b.ways, b.pct) == (ways, pct)]
        times = 1 + max((b.times for b in alike), default=0)
        until_s = self.now_s + doubled_s(self.settings.regret_s, times - 1)
        others = tuple(b for b in self.state.bans if b not in alike)[-_MOST_BANS:]
        self.state = replace(self.state, bans=(*others, Ban(ways, pct, until_s, times)))

    def _allocation(self) -> Allocation:
        cores = max(1, len(self.host.topology.usable_cores))
        return Allocation(CpuGrant(cores, cores), 0, self.state.ways, self.state.pct)
