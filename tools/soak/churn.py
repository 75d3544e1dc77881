"""Who comes and who goes: a plan by the second, the same for the same seed, for real groups and simulated ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random

LRA_SHARE = 10
"""One workload of so many is an LRA."""
GONE_S = (2, 20)
"""A cgroup that vanishes stays away for so long."""
RETIRE_EVERY_S = 1
"""So often a workload is taken off the list for good, and one of a new name comes in its place."""
RESIDENTS = (0, 1, 10)
"""These places keep their workload, though its cgroup vanishes and returns: what is remembered of it fills up."""


class Happens(StrEnum):
    """What can become of a workload."""

    VANISHES = "its cgroup is removed"
    RETURNS = "its cgroup is made anew"
    IS_REPLACED = "it leaves the list, another one takes its place"


@dataclass(frozen=True, slots=True)
class Step:
    """At second ``at_s`` this happens to the workload in place ``place``; ``name`` and ``newcomer`` are workloads."""

    at_s: int
    what: Happens
    place: int
    name: str
    newcomer: str = ""


def is_lra(place: int) -> bool:
    """True for the places of LRAs."""
    return place % LRA_SHARE == 0


def mean_life_s(places: int, per_s: float = 1.0) -> float:
    """How long a workload that is no resident stays on the list on average, in seconds."""
    away_s = sum(GONE_S) / 2.0
    return RETIRE_EVERY_S * places * (1.0 + per_s * away_s / places)


def first_names(places: int) -> list[str]:
    """Who is there at the start."""
    return [f"w{place:03}-0" for place in range(places)]


def steps(places: int, seconds: int, seed: int, per_s: float = 1.0) -> Iterator[Step]:
    """Everything that happens in this time: ``per_s`` cgroups vanish a second, and come back, and some are replaced."""
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
