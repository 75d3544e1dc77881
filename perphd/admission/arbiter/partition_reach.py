"""Divides cores by demand when the LRAs together need more than the host has, and stops trial and error.

Problem: if each core that one LRA gains is missing for another LRA, experience with a number of cores is outdated
after the next change, and cores move back and forth. Approach: count rounds of changes that leave an LRA short.
After ``HANDFUL`` rounds, divide all cores available to LRAs in proportion to demand (max-min of cores over demand,
by priority class, at least one each) and hold that division. It changes only if demand changed enough, and no
more often than one LRA's settings would (``reach``). The episode ends once all LRAs have met their targets for a
while, or when an LRA comes or goes. After a pause that doubles, one more round is tried. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from perphd.admission.arbiter.member import Look, Member
from perphd.admission.arbiter.partition_cores import CoreShares, SharedCores
from perphd.admission.moves.reach import HANDFUL, KEPT_S, LONG_S, LOOK_AGAIN_S, MOST_DOUBLED, changed_enough
from perphd.domain.backoff import doubled_s

WORTH: Final = 1.2
"""Factor by which the lowest ratio of cores to demand must improve before cores are divided again."""
TOLD: Final = "together these LRAs need more than this host has: its cores are divided by demand"


@dataclass(frozen=True, slots=True)
class SharedReach:
    """State of an episode.

    ``names``: the LRAs. ``lacking``: rounds of changes that left an LRA short. ``began_s``: time of the first round.
    ``changed_s``: times of core changes in the last ten minutes. ``settled_until_s``: end of holding the division;
    None: not held. ``looks``: number of times it was held. ``met_since_s``: time since which all LRAs have been on
    target; None if they are not.
    """

    names: frozenset[str] = frozenset()
    lacking: int = 0
    began_s: float | None = None
    changed_s: tuple[float, ...] = ()
    settled_until_s: float | None = None
    looks: int = 0
    met_since_s: float | None = None


def seen(reach: SharedReach, names: frozenset[str], now_s: float, *, all_met: bool) -> SharedReach:
    """The episode at the next tick. ``all_met``: every LRA is on target now."""
    if names != reach.names:
        return SharedReach(names, met_since_s=now_s if all_met else None)
    since_s = (reach.met_since_s if reach.met_since_s is not None else now_s) if all_met else None
    if since_s is not None and now_s - since_s >= KEPT_S:
        return SharedReach(names, met_since_s=since_s)
    reach = replace(reach, met_since_s=since_s)
    if reach.settled_until_s is not None and now_s >= reach.settled_until_s:
        return replace(reach, settled_until_s=None, lacking=HANDFUL - 1)
    return reach


def changed(reach: SharedReach, now_s: float) -> SharedReach:
    """The episode after a round of changes that leaves an LRA short. After ``HANDFUL`` rounds, the division is held."""
    recent = (*(at_s for at_s in reach.changed_s if now_s - at_s < LONG_S), now_s)
    began_s = reach.began_s if reach.began_s is not None else now_s
    reach = replace(reach, changed_s=recent, began_s=began_s, lacking=reach.lacking + 1)
    if reach.lacking < HANDFUL or reach.settled_until_s is not None:
        return reach
    pause_s = doubled_s(LOOK_AGAIN_S, min(reach.looks, MOST_DOUBLED))
    return replace(reach, settled_until_s=now_s + pause_s, looks=reach.looks + 1)


def held(
    reach: SharedReach, cores: SharedCores, members: Mapping[str, Member], looks: Mapping[str, Look]
) -> CoreShares:
    """The held division: the one in force, or a new one if that is worth a change."""
    has = {name: member.cores for name, member in members.items()}
    room = cores.for_lras
    new = by_demand(cores, members, looks)
    stands = all(has.values()) and sum(has.values()) <= room
    if stands and (
        changed_enough(reach.began_s, reach.changed_s, cores.now_s)
        or _least_share(new, members) < WORTH * _least_share(has, members)
    ):
        new = has
    return CoreShares(new, lends=sum(new.values()) > cores.total - cores.floor, lacks={})


def by_demand(cores: SharedCores, members: Mapping[str, Member], looks: Mapping[str, Look]) -> dict[str, int]:
    """Divide cores in proportion to demand, by priority class. Each LRA gets at least one, and none beyond
    its demand.
    """
    got = dict.fromkeys(members, 1)
    left = cores.for_lras - len(got)
    needs = {name: cores.needed(member) for name, member in members.items()}
    for priority in sorted({look.view.spec.priority for look in looks.values()}, reverse=True):
        peers = [name for name, look in looks.items() if look.view.spec.priority == priority]
        while left > 0 and (short := [name for name in peers if got[name] < needs[name]]):
            least = min(short, key=lambda name: (_share(got[name], members[name]), name))
            got[least] += 1
            left -= 1
    return got


def _share(cores: int, member: Member) -> float:
    return cores / max(member.demand or 0.0, 1e-3)


def _least_share(counts: Mapping[str, int], members: Mapping[str, Member]) -> float:
    return min(_share(counts[name], member) for name, member in members.items())
