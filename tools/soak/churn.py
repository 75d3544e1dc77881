"""The plan of arrivals and departures by the second, equal for equal seeds, for real and simulated groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random

LRA_SHARE = 10
"""One workload in this many is an LRA."""
GONE_S = (2, 20)
"""Seconds for which a vanished cgroup stays away."""
RETIRE_EVERY_S = 1
"""Seconds between two events in which a workload is removed for good and replaced by one of a new name."""
RESIDENTS = (0, 1, 10)
"""Places that keep their workload while its cgroup vanishes and returns, so that its histories fill up."""


class Happens(StrEnum):
    """Kinds of events of a workload."""

    VANISHES = "its cgroup is removed"
    RETURNS = "its cgroup is made anew"
    IS_REPLACED = "it leaves the list, another one takes its place"


@dataclass(frozen=True, slots=True)
class Step:
    """An event of the workload in place ``place`` at second ``at_s``; ``name`` and ``newcomer`` are workloads."""

    at_s: int
    what: Happens
    place: int
    name: str
    newcomer: str = ""


def is_lra(place: int) -> bool:
    """True for the places of LRAs."""
    return place % LRA_SHARE == 0


def mean_life_s(places: int, per_s: float = 1.0) -> float:
    """Mean time in seconds for which a non-resident workload stays on the list."""
    away_s = sum(GONE_S) / 2.0
    return RETIRE_EVERY_S * places * (1.0 + per_s * away_s / places)


def first_names(places: int) -> list[str]:
    """The workloads at the start."""
    return [f"w{place:03}-0" for place in range(places)]


def steps(places: int, seconds: int, seed: int, per_s: float = 1.0) -> Iterator[Step]:
    """All events in this time: ``per_s`` cgroups vanish per second and return, and some are replaced."""
    random = Random(seed)
    names = first_names(places)
    born = [0] * places
    away: dict[int, int] = {}
    due = 0.0
    for at_s in range(1, seconds + 1):
        for place in [place for place, back_s in away.items() if back_s <= at_s]:
            del away[place]
            yield Step(at_s, Happens.RETURNS, place, names[place])
        due += per_s
        while due >= 1.0:
            due -= 1.0
            place = random.randrange(places)
            if place not in away:
                away[place] = at_s + random.randint(*GONE_S)
                yield Step(at_s, Happens.VANISHES, place, names[place])
        if at_s % RETIRE_EVERY_S == 0:
            place = random.randrange(places)
            if place not in away and place not in RESIDENTS:
                born[place] += 1
                leaver, names[place] = names[place], f"w{place:03}-{born[place]}"
                yield Step(at_s, Happens.IS_REPLACED, place, leaver, names[place])
