"""Attribution test: five candidates come and go, and one of them harms the LRA."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any, Final

from perphd.admission.detector.antagonist import WINDOW
from perphd.domain.decision import Decision, Health
from perphd.domain.policy import Snapshot
from perphd.sim.node.archetypes import archetype
from tools.bench.detector.injected import STARTS_S, pulses
from tools.bench.detector.injected import play as play_actors
from tools.bench.policies.scene import Actor

ENDS_S: Final = STARTS_S + 150.0
CANDIDATES: Final = 5
_HARM: Final = (("batch-pi", 36), ("batch-stream", 16), ("batch-thrash", 20))
_HARMLESS: Final = ("batch-compress", "batch-pi", "batch-network")


def run(seed: int) -> tuple[str, Counter[str]]:
    """The true antagonist's resource, and the number of degradations attributed "right", "wrong" or to "nobody"."""
    random = Random(f"blame:{seed}")
    kind, threads = random.choice(_HARM)
    guilty = random.randrange(CANDIDATES)
    batch = []
    for number in range(CANDIDATES):
        name, many = (kind, threads) if number == guilty else (random.choice(_HARMLESS), 1)
        work = replace(archetype(name).named(f"job{number}"), threads=many)
        shifted = pulses(random, ENDS_S - STARTS_S - 5.0)
        trace = replace(shifted, steps=tuple((at + STARTS_S + 5.0, v) for at, v in shifted.steps))
        batch.append(Actor(work, starts_s=STARTS_S, load=replace(trace, steps=((0.0, 0.02), *trace.steps))))
    work = archetype(random.choice(("xapian", "img-dnn", "mysql-oltp", "specjbb"))).workload
    if work.requests is not None and work.requests.rate_per_s is not None:
        work = work.asked(rate_per_s=work.requests.rate_per_s * random.uniform(0.4, 0.55))
    said: Counter[str] = Counter()

    def see(snapshot: Snapshot, decision: Decision, outcomes: dict[str, Any]) -> None:
        if snapshot.at_s < STARTS_S + WINDOW / 2 or decision.verdict.health is not Health.DEGRADED:
            return
        named = decision.verdict.culprit
        said["nobody" if named is None else "right" if named == f"job{guilty}" else "wrong"] += 1

    play_actors((Actor(work), *batch), seed, ENDS_S, see=see)
    return kind, said
