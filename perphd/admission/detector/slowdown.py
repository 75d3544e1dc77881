"""Determines whether neighbours, waiting, lower load or its own phases slow an LRA down.

If an LRA has an indicator, the indicator judges it, and only the cost of a miss is learned from its counters. All other
LRAs are judged by ``channels``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from perphd.admission.detector import cause as causes
from perphd.admission.detector import channels
from perphd.admission.detector.cause import Surroundings
from perphd.admission.detector.channels import CPI, Channels, Slowdown, Tolerances
from perphd.admission.settings import PolicySettings
from perphd.domain.decision import Cause, Evidence
from perphd.domain.policy import ResPerfModel
from perphd.domain.quick import replace
from perphd.domain.reading import Reading, available
from perphd.domain.sample import Quality, Sample
from perphd.domain.signals import Performance

FALL: Final = 0.97
"""Share of the usual MIPS below which the decrease is split into load, waiting and slowdown."""
_PHASE: Final = 1.1  # growth of cycles per instruction worth mentioning


@dataclass(frozen=True, slots=True)
class Look:
    """Effect of neighbours in one sample.

    ``slow``: harm for which neighbours are blamed, if any. ``counted``: the cause according to the processor's counters
    (LLC, MBW or SMT; else NONE), and the relative growth of time per instruction.
    """

    channels: Channels
    slow: Slowdown | None
    counted: tuple[Cause, float]

    @property
    def score(self) -> float:
        """Accepted over observed time per unit of work; infinite if neighbours are not blamed."""
        return self.slow.score if self.slow is not None else math.inf


def look(
    known: Channels,
    sample: Sample,
    perf: Performance,
    model: ResPerfModel,
    around: Surroundings,
    settings: PolicySettings,
    tolerances_pct: Tolerances,
    evidence: list[Evidence],
) -> Look:
    """Process one sample, and append the evidence to ``evidence``."""
    crowded = around.is_crowded(settings)
    if perf.work_source == "sli":
        cost = known.cost
        if not crowded and available(sample.cpi) and available(sample.llc_mpki) and not sample.quality:
            known = replace(known, cost=cost.step(sample.cpi, sample.llc_mpki))
        found = causes.counted(sample, perf, model, around, settings, evidence, cost)
        return Look(known, None, found)
    known, slow = channels.step(known, sample, around.beside, settings, tolerances_pct, crowded=crowded)
    counted = (Cause.NONE, 0.0)
    if slow is not None:
        evidence.append(_against(slow))
        counted = causes.blamed(slow, sample, perf, model, around, settings, evidence, known.cost)
    elif not known.series[CPI].is_known:
        counted = causes.counted(sample, perf, model, around, settings, evidence, known.cost)
    if perf.work_source == "mips" and not sample.has(Quality.MULTIPLEXED):
        _divided(known, slow, sample, perf, model, evidence)
    return Look(known, slow, counted)


def _against(slow: Slowdown) -> Evidence:
    text = (
        f"time per unit of work, by its {slow.by}, is {slow.ratio:.2f} x the value before neighbours became active; "
        f"chance that the application itself changed: {slow.chance:.1g}"
    )
    return Evidence("slowdown", slow.ratio, 1.0, "x", text)


def _divided(
    known: Channels,
    slow: Slowdown | None,
    sample: Sample,
    perf: Performance,
    model: ResPerfModel,
    evidence: list[Evidence],
) -> None:
    """Split a fall in MIPS into the factors load, waiting and slowdown.

    MIPS = threads that run or wait x share of them that runs x clock / cycles per instruction.
    """
    usual = model.reference("work:mips", perf.load)
    if usual is None or not available(perf.work) or perf.work >= FALL * usual.value:
        return
    threads, running = (model.reference(name, perf.load) for name in ("in_flight", "cpu_usage_cores"))
    used: Reading = sample.cpu_usage_cores
    if threads is None or running is None or not (available(used) and available(perf.in_flight)):
        return
    if used <= 0.0 or perf.in_flight <= 0.0 or running.value <= 0.0:
        return
    load = perf.in_flight / threads.value
    waiting = (used / perf.in_flight) / (running.value / threads.value)
    rest = perf.work / usual.value / (load * waiting)
    longer = "slower instructions"
    if slow is None and rest < 1.0 / _PHASE:
        longer += ", a change of the application: no activity of neighbours coincides with it"
    text = f"of the usual; threads that want to run x {load:.2f}, share of them that runs x {waiting:.2f}, {longer}"
    text = f"x {perf.work / usual.value:.2f} {text}: x {rest:.2f}"
    evidence.append(Evidence("fall of mips", perf.work, usual.value, "MIPS", text))
