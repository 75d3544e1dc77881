"""What cores of its own give an LRA: the model's answers, corrected by what is measured on the present ones. Pure.

The model is asked for 1, 2, ... cores at once. Its answer is a ratio to the undisturbed host; what is measured now on
``c`` cores fixes the level, so that only the model's *shape* between ``c`` and ``n`` cores is taken from it:

    score(n) = level(c) * ratio(n) / ratio(c)
    sd(n)^2  = noise^2 + (sd of the model at n * min(1, |log2(n / c)|))^2

Where requests pile up (level below ``PILED_UP``) that says no more than that ``c`` cores are too few. There, and before
anything is measured, the score is the model's own. Where the model does not know what the LRA does undisturbed, the
objective is taken to leave room for ``UNREFERENCED_ROOM`` times the undisturbed delay. More cores are never worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from perphd.admission import inferer
from perphd.admission.detector import Target
from perphd.admission.inferer import Assessed
from perphd.admission.thresholds import PILED_UP
from perphd.domain.allocation import Allocation, CpuGrant
from perphd.domain.decision import Prediction
from perphd.domain.policy import Band, ModelContext, ResPerfModel
from perphd.domain.reading import available

UNREFERENCED_ROOM: Final = 1.66
"""Objective over undisturbed performance where the latter is not known.

With the prior's doubt (sd 0.35) cores are then as good as certain (``SURE``) to be enough where waiting for them adds
at most 6 % to the undisturbed delay.
"""
BARRED: Final = 0.0
"""Chance of what was too little lately."""
ASKED_ALL, NEAR, ASKED_FAR = 24, 3, 10
"""Where an LRA can have more than ``ASKED_ALL`` cores, the model is asked for those within ``NEAR`` of the present ones
and for ``ASKED_FAR`` others, spread geometrically: 20 LRAs on 128 cores are to be decided within 50 ms."""
SHORT: Final = 0.99
"""Most that is expected of as many cores as were too few lately."""
QUEUED: Final = 0.9
"""The same where requests queue up on them: another division that ends the queue is a gain (``max_min.LEAST_GAIN``)."""
FAILED_BEFORE: Final = 0.5
"""Part of a chance that is left where the same was too little some time ago."""
MEASURED: Final = "the model's shape at the measured level"
UNKNOWN: Final = "its use of CPU is not known"
UNREFERENCED: Final = "the model's shape; what it does undisturbed is not known"


@dataclass(frozen=True, slots=True)
class CoreCurve:
    """Scores and chances to meet the target with 1, 2, ... cores, never falling.

    ``asked``: the model's own answers, by number of cores; ``beliefs``: chances by those alone; ``basis``: why
    ``scores`` are not those, empty if they are. ``barred``, ``doubted``: so many cores were too few lately, and some
    time ago.
    """

    asked: Mapping[int, Assessed]
    scores: tuple[float, ...]
    chances: tuple[float, ...]
    beliefs: tuple[float, ...]
    basis: str = ""
    barred: int = 0
    doubted: int = 0

    def score(self, cores: int) -> float:
        """Expected with so many cores; those beyond the last do no better."""
        return self.scores[min(max(cores, 1), len(self.scores)) - 1]

    def chance(self, cores: int) -> float:
        """Probability that so many cores are enough."""
        if cores <= self.barred:
            return BARRED
        chance = self.chances[min(max(cores, 1), len(self.chances)) - 1]
        return FAILED_BEFORE * chance if cores <= self.doubted else chance

    def belief(self, cores: int) -> float:
        """Probability that so many cores are enough by the model alone, whatever is measured now."""
        return self.beliefs[min(max(cores, 1), len(self.beliefs)) - 1]

    def fewest(self, wanted: float, least: int = 1) -> int:
        """The fewest cores, at least ``least``, with that chance; all that there can be if none have it."""
        most = len(self.scores)
        return next((n for n in range(max(1, least), most) if self.chance(n) >= wanted), most)

    def step_up(self, wanted: float, least: int) -> int:
        """The same for a rescue: where no number has that chance, a step is looked at before more are taken."""
        most = len(self.scores)
        found = self.fewest(wanted, least)
        return found if self.chance(found) >= wanted else min(max(1, least), most)

    def found_too_few(self, cores: int) -> CoreCurve:
        """The same after so many cores have proved too few."""
        return replace(self, barred=max(self.barred, cores))

    def assessed(self, cores: int) -> Assessed | None:
        """What is expected of so many cores, as a candidate's record shows it; None if the model was not asked."""
        item = self.asked.get(cores)
        if item is None or not self.basis:
            return item
        prediction = replace(item.prediction, score=self.score(cores))
        return replace(item, prediction=prediction, asked=item.prediction, basis=self.basis)


def asked_counts(most: int, here: int) -> tuple[int, ...]:
    """Core counts for which the model is asked: all of them where they are few, else the near and the round ones."""
    if most <= ASKED_ALL:
        return tuple(range(1, most + 1))
    near = range(max(1, here - NEAR), min(most, here + NEAR) + 1)
    far = (round(most ** (i / (ASKED_FAR - 1))) for i in range(ASKED_FAR))
    return tuple(sorted({1, most, *near, *far}))


def core_curve(
    model: ResPerfModel,
    context: ModelContext,
    target: Target,
    z: float,
    most: int,
    shape: Callable[[int], Allocation],
    measured: tuple[int, float, float] | None = None,
) -> CoreCurve:
    """Ask the model for 1 to ``most`` cores.

    Args:
        model: of the LRA.
        context: what surrounds it.
        target: its target.
        z: standard deviations between a prediction and its lower bound.
        most: cores that it can have at most.
        shape: the allocation with so many cores of its own.
        measured: present cores, mean score on them (1: on target), and that mean's sd in log units; None: there is no
            clean sample yet.
    """
    counts = asked_counts(most, measured[0] if measured is not None else 1)
    allocations = [shape(n) for n in counts]
    by_work = available(target.work) and target.work_band is not None
    by_delay = available(target.delay) and target.delay_band is not None
    referenced = by_work or by_delay
    against = target if referenced else _undisturbed(target)
    asked = inferer.assess_performance(allocations, model, context, against, z)
    logs = _between(counts, [math.log(max(item.prediction.score, 1e-6)) for item in asked])
    sds = _between(counts, [_sd(item.prediction, z) for item in asked])
    basis = ""
    if not referenced:
        logs = [value + math.log(UNREFERENCED_ROOM) for value in logs]
        basis = UNREFERENCED
    beliefs = tuple(_chance(value, sd) for value, sd in zip(logs, sds, strict=True))
    fixed, barred = most - 1, 0
    if measured is not None and measured[1] < PILED_UP:
        barred = measured[0]
    elif measured is not None:
        here, level, noise = measured
        fixed = min(here, most) - 1
        shift = math.log(level) - logs[fixed]
        logs = [value + shift for value in logs]
        steps = [min(1.0, abs(math.log2(n / here))) for n in range(1, most + 1)]
        sds = [math.hypot(noise, sd * step) for sd, step in zip(sds, steps, strict=True)]
        basis = MEASURED
    logs = _rising(logs, fixed)
    logs = [min(value, math.log(QUEUED)) if n <= barred else value for n, value in enumerate(logs, 1)]
    # A wide doubt about fewer cores must not make them likelier than the present ones, which are measured.
    chances = _rising([_chance(value, sd) for value, sd in zip(logs, sds, strict=True)], fixed)
    scores = tuple(math.exp(value) for value in logs)
    return CoreCurve(dict(zip(counts, asked, strict=True)), scores, tuple(chances), beliefs, basis, barred)


def unknown_curve(cores: int, most: int, total: int, like: Allocation) -> CoreCurve:
    """Of an LRA that nothing can be said of: what it has is enough, less is not."""
    enough = [n >= cores for n in range(1, most + 1)]
    chances = tuple(map(float, enough))
    nothing = Prediction(1.0, 0.0, math.inf, 0.0)
    asked = {cores: Assessed(own_cores(total, cores, like), nothing, float(total - cores))}
    return CoreCurve(asked, tuple(1.0 if e else 0.5 for e in enough), chances, chances, UNKNOWN)


def _undisturbed(target: Target) -> Target:
    """Of the same readings: what the LRA does undisturbed."""
    one = Band(1.0, 0.0, 0.0)
    work, delay = available(target.work), available(target.delay)
    return Target(
        1.0 if work else target.work,
        1.0 if delay else target.delay,
        one if work else None,
        one if delay else None,
    )


def own_cores(total: int, cores: int, like: Allocation) -> Allocation:
    """The allocation with so many cores of its own, as its LRA sees it; memory, cache and bandwidth as in ``like``."""
    return replace(like, cpu=CpuGrant(total, total - cores, exclusive=True))


def apart(total: int, cores: int, like: Allocation) -> Allocation:
    """The same as it is decided: the cores are its own, no other LRA's either."""
    grant = CpuGrant(total, total - cores, exclusive=True, own_cores=cores)
    return replace(like, cpu=grant)


def _between(counts: Sequence[int], values: Sequence[float]) -> list[float]:
    """The values at every count from 1 to the last, linear in the logarithm of the count between those given."""
    found = [values[0]]
    for (low, before), (high, after) in pairwise(zip(counts, values, strict=True)):
        step = (after - before) / math.log(high / low)
        found += [before + step * math.log(n / low) for n in range(low + 1, high)]
        found.append(after)
    return found


def _rising(values: Sequence[float], fixed: int) -> list[float]:
    """The values made never to fall, that at the index ``fixed`` unchanged."""
    found = list(values)
    for i in range(fixed - 1, -1, -1):
        found[i] = min(found[i], found[i + 1])
    for i in range(fixed + 1, len(found)):
        found[i] = max(found[i], found[i - 1])
    return found


def _sd(prediction: Prediction, z: float) -> float:
    if z <= 0 or prediction.lower <= 0 or prediction.lower >= prediction.score:
        return 0.05
    return math.log(prediction.score / prediction.lower) / z


def _chance(log_score: float, sd: float) -> float:
    return 0.5 * (1.0 + math.erf(log_score / (max(sd, 1e-3) * math.sqrt(2.0))))
