"""Selects cores: disjoint sets of whole cores, each on one socket and cache, with few moves. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from perphd.admission.arbiter.partition import LEAST_GAIN
from perphd.domain.cpuset import CpuSet
from perphd.domain.smt import SIBLING_SPEED
from perphd.domain.topology import Topology

Cores = tuple[int, ...]
"""Indices into ``Topology.usable_cores``, ascending."""
ROOM: Final = 1.05
"""Minimum score at which an LRA keeps lending cores to batch."""


def place(topology: Topology, counts: Mapping[str, int], before: Mapping[str, Cores]) -> dict[str, Cores]:
    """Disjoint cores for each LRA in the given numbers. Each LRA keeps its cores as far as possible.

    A growing LRA takes free cores of the L3 domain where most of its cores are. If that domain is full, it moves as a
    whole to a domain that can hold all its cores; it is split only if there is no such domain.

    Args:
        topology: the host; threads of a core are never divided.
        counts: number of cores for each LRA; their sum is at most the host's number of cores.
        before: each LRA's cores until now.
    """
    domains = _domains(topology)
    size = len(topology.usable_cores)
    found: dict[str, Cores] = {}
    free = set(range(size))
    for name, count in counts.items():
        had = [core for core in before.get(name, ()) if core in free]
        kept = _main_first(had, domains)[:count]
        found[name] = tuple(sorted(kept))
        free -= set(kept)
    for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        lacking = count - len(found[name])
        if lacking <= 0:
            continue
        grown = _grow(found[name], count, free, domains)
        free = (free | set(found[name])) - set(grown)
        found[name] = grown
    return found


def lend(
    count: int,
    placed: Mapping[str, Cores],
    priorities: Mapping[str, int],
    levels: Mapping[str, float],
    before: Cores,
) -> Cores:
    """Cores to lend to batch: cores of the least important LRAs, where lending harms least.

    Cores stay lent as long as the lender with the lowest score has slack, or would gain little from getting them
    back.

    Args:
        count: cores to lend.
        placed: cores of each LRA.
        priorities: priority of each LRA.
        levels: performance over target of each LRA, with the present lending; an absent LRA counts as on target.
        before: cores lent until now.
    """
    least = min(priorities[name] for name in placed)
    lenders = sorted(name for name in placed if priorities[name] == least)
    here = {name: sum(core in before for core in placed[name]) for name in lenders}
    whole = {name: levels.get(name, 1.0) * _guests(here[name], len(placed[name])) for name in lenders}

    def level(name: str, guests: int) -> float:
        return whole[name] / _guests(guests, len(placed[name]))

    wanted = dict.fromkeys(lenders, 0)
    for _ in range(min(count, sum(len(placed[name]) for name in lenders))):
        open_ = [name for name in lenders if wanted[name] < len(placed[name])]
        best = max(open_, key=lambda n: (level(n, wanted[n] + 1), len(placed[n])))
        wanted[best] += 1
    if sum(here.values()) == count:
        now = min((level(n, here[n]) for n in lenders if here[n]), default=math.inf)
        then = min((level(n, wanted[n]) for n in lenders if wanted[n]), default=math.inf)
        if now >= ROOM or then < now * LEAST_GAIN:
            wanted = here
    chosen: list[int] = []
    for name in lenders:
        kept = [core for core in before if core in placed[name]][: wanted[name]]
        more = [core for core in reversed(placed[name]) if core not in kept]
        chosen += [*kept, *more[: wanted[name] - len(kept)]]
    # If the least important LRAs have too few cores, continue with the next ones, those with the most cores first.
    order = sorted(placed, key=lambda name: (priorities[name], -len(placed[name]), name))
    others = [core for name in order for core in reversed(placed[name]) if core not in chosen]
    return tuple(sorted((*chosen, *others[: count - len(chosen)])))


def _guests(lent: int, cores: int) -> float:
    """Factor on an LRA's delay if this number of its cores is lent, so that their siblings are always busy."""
    return (1.0 + (1.0 - SIBLING_SPEED) * lent / cores) ** 2


def cpus_of(topology: Topology, cores: Cores) -> CpuSet:
    """All usable CPUs of these cores."""
    every = topology.usable_cores
    return topology.cpus_of(tuple(every[core] for core in cores))


def _domains(topology: Topology) -> dict[int, int]:
    """L3 domain (else socket) of every usable core."""
    found: dict[int, int] = {}
    for index, core in enumerate(topology.usable_cores):
        known = [d.domain for d in topology.l3_domains if d.cpus & core.cpus]
        found[index] = known[0] if known else core.socket
    return found


def _main_first(cores: list[int], domains: Mapping[int, int]) -> list[int]:
    """The cores sorted by domain; the domain with the most of them comes first."""
    weight: dict[int, int] = {}
    for core in cores:
        weight[domains[core]] = weight.get(domains[core], 0) + 1
    return sorted(cores, key=lambda core: (-weight[domains[core]], domains[core], core))


def _grow(kept: Cores, count: int, free: set[int], domains: Mapping[int, int]) -> Cores:
    by_domain: dict[int, list[int]] = {}
    for core in sorted(free):
        by_domain.setdefault(domains[core], []).append(core)
    mine: dict[int, int] = {}
    for core in kept:
        mine[domains[core]] = mine.get(domains[core], 0) + 1
    home = max(mine, key=lambda d: (mine[d], -d)) if mine else None
    if home is not None and len(by_domain.get(home, ())) >= count - len(kept):
        return tuple(sorted((*kept, *by_domain[home][: count - len(kept)])))
    room = {d: len(cores) + mine.get(d, 0) for d, cores in by_domain.items()}
    fits = [d for d, cores in by_domain.items() if len(cores) >= count]
    if fits:
        # Taking the emptiest domain separates cache neighbours at no cost.
        whole = max(fits, key=lambda d: (room[d], -d))
        return tuple(by_domain[whole][:count])
    near = sorted(free, key=lambda c: (domains[c] != home, -room[domains[c]], domains[c], c))
    return tuple(sorted((*kept, *near[: count - len(kept)])))
