"""Cache and bandwidth of the LRAs of one L3 domain: what batch may not use there, by the ladder and by what came of it.

For who is short more is taken from batch, and given back at once if that did not help; where everybody has room, batch
gets a step back, and loses it again if somebody misses it. What was missed is not tried again for a while that doubles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from perphd.admission import ladder
from perphd.admission.backoff import doubled_s
from perphd.admission.bandwidth import delivered_pct
from perphd.admission.member import Look, Member, is_short
from perphd.admission.scatter import mean
from perphd.admission.settings import PolicySettings
from perphd.admission.thresholds import HELPED_RATIO
from perphd.domain.allocation import Allocation, CpuGrant
from perphd.domain.decision import Cause
from perphd.domain.policy import Snapshot, WorkloadView
from perphd.domain.reading import available

BEGIN_MBW_PCT: Final = 60
"""Throttle to begin with: it keeps batch from what hardly any program can use alone."""
ROOM: Final = 1.10
"""Everybody must be this far above target before a step of cache or bandwidth is given back."""
STILL_ROOM: Final = 1.03
"""What everybody must keep above target for such a step to stand."""
MUCH_ROOM: Final = 1.18
"""And so far for more than a step at once."""
SLIGHT: Final = 0.96
"""From this score on cache and bandwidth are taken from batch by single units."""
RECENT: Final = 3
"""Samples that tell how it is by now: caches fill and empty for seconds."""
FAR_BELOW: Final = 0.7
"""One sample below this is enough to take back what was given back last."""
_ENOUGH_SAMPLES: Final = 3
_MOST_BANS: Final = 8


@dataclass(frozen=True, slots=True)
class Ban:
    """A protection of cache and bandwidth that was too little: not again until then; twice as long each time."""

    ways: int
    pct: int
    until_s: float
    times: int


@dataclass(frozen=True, slots=True)
class Tightened:
    """Cache or bandwidth was taken from batch for an LRA; ``ways``, ``pct`` and its ``score`` before that."""

    name: str
    ways: int
    pct: int
    score: float


@dataclass(frozen=True, slots=True)
class CacheState:
    """What is in force and on trial. ``ways``: those that batch may not use; ``pct``: throttle of its bandwidth.

    ``loosened``: (ways, pct) before batch got something back at ``loosened_s``, while that is on trial.
    """

    ways: int = 0
    pct: int = 100
    loosened: tuple[int, int] | None = None
    loosened_s: float = 0.0
    tightened: Tightened | None = None
    bans: tuple[Ban, ...] = ()


class CacheTurn:
    """Works out the cache and bandwidth of one tick; ``state`` is what it came to."""

    def __init__(
        self, settings: PolicySettings, snapshot: Snapshot, before: CacheState, giving: Sequence[WorkloadView]
    ) -> None:
        self.settings, self.host, self.now_s = settings, snapshot.host, snapshot.at_s
        self.before, self.state = before, before
        self.giving = tuple(giving)

    @property
    def moved(self) -> bool:
        """True if something changes this tick."""
        return (self.state.ways, self.state.pct) != (self.before.ways, self.before.pct)

    def begin(self) -> None:
        """Half of the cache, and what throttles hardly anybody: what of it is not needed is given back."""
        host = self.host
        ways = host.llc_ways // 2 if ladder.can_protect_llc(host, self.giving) else 0
        cores = max(1, len(host.topology.usable_cores))
        levels = [
            level for level in host.mba_levels_pct if delivered_pct(host, level, cores) >= BEGIN_MBW_PCT
        ]
        pct = min(levels, default=100) if ladder.can_protect_mbw(host, self.giving) else 100
        self.state = CacheState(ways, pct)

    def end(self) -> None:
        """There is no batch: nothing is to be held back."""
        self.state = CacheState(bans=self.state.bans)

    # -- taking ---------------------------------------------------------------------------------------

    def tighten(self, member: Member, look: Look) -> bool:
        """Take cache or bandwidth from batch for this LRA, if there is something to take; True if it was done."""
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
        """One unit of cache or bandwidth less for batch."""
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
        """What was taken and did not help goes back at once: the name of the LRA that it did not help."""
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

    # -- giving back ----------------------------------------------------------------------------------

    def judge_loosened(self, members: Mapping[str, Member], looks: Mapping[str, Look]) -> tuple[str, ...]:
        """What was given back and is missed is taken again: the names of those who miss it."""
        before = self.state.loosened
        if before is None:
            return ()
        due = self.now_s - self.state.loosened_s >= self.settings.shrink_after_s
        # At the end of the trial everybody must have a little left: what is just enough is too little the next moment.
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
        """A step back to batch where everybody has had room for a while; True if there is one."""
        state = self.state
        if self.moved or state.loosened is not None or not members:
            return False
        judged = [m for m in members.values() if m.unknown_since_s is None] or list(members.values())
        # Caches fill for seconds: the latest samples tell how it is by now.
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
        """So little protection was not enough."""
        alike = [b for b in self.state.bans if (b.ways, b.pct) == (ways, pct)]
        times = 1 + max((b.times for b in alike), default=0)
        until_s = self.now_s + doubled_s(self.settings.regret_s, times - 1)
        others = tuple(b for b in self.state.bans if b not in alike)[-_MOST_BANS:]
        self.state = replace(self.state, bans=(*others, Ban(ways, pct, until_s, times)))

    def _allocation(self) -> Allocation:
        cores = max(1, len(self.host.topology.usable_cores))
        return Allocation(CpuGrant(cores, cores), 0, self.state.ways, self.state.pct)
