"""The trace of submissions, equal for all compared schemes."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tools.cluster.hosts import COPPER_KINDS, LRA_KINDS

LRA_SHARE = 0.6
"""LRA pods per place; the number of places is hosts times kinds."""
LRAS_WITHIN_S = 20
FIRST_COPPER_S = 25
THREADS = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class LraPod:
    """An LRA pod. ``factor``: on its archetype's load; from ``changes_s`` on, ``later`` applies."""

    name: str
    at_s: int
    kind: str
    factor: float
    changes_s: int
    later: float


@dataclass(frozen=True, slots=True)
class CopperPod:
    """A copper pod. ``seconds``: its run time alone on a host."""

    name: str
    at_s: int
    kind: str
    threads: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Trace:
    """All pods, in the order of their submission."""

    lras: tuple[LraPod, ...]
    copper: tuple[CopperPod, ...]


def trace_of(seed: int, hosts: int, seconds: int) -> Trace:
    """LRAs arrive first, within ``LRAS_WITHIN_S``; copper arrives continuously, more than the hosts can run at once."""
    chance = random.Random(seed)
    kinds = [kind for kind in LRA_KINDS for _ in range(round(LRA_SHARE * hosts))]
    chance.shuffle(kinds)
    lras = tuple(
        LraPod(
            f"lra-{n}", 1 + n * LRAS_WITHIN_S // len(kinds), kind, chance.uniform(0.4, 1.0),
            chance.randrange(FIRST_COPPER_S, max(FIRST_COPPER_S + 1, seconds)), chance.uniform(0.4, 1.0),
        )
        for n, kind in enumerate(kinds)
    )  # fmt: skip
    copper: list[CopperPod] = []
    at_s = float(FIRST_COPPER_S)
    while (at_s := at_s + chance.expovariate(hosts / 14.0)) < seconds:
        copper.append(
            CopperPod(
                f"copper-{len(copper)}", int(at_s), chance.choice(COPPER_KINDS), chance.choice(THREADS),
                chance.uniform(15.0, 45.0),
            )
        )  # fmt: skip
    return Trace(lras, tuple(copper))
