"""Figures of the Perph paper beside the lab's measurements in the corresponding cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools.lab.analysis import paired
from tools.lab.records import Run
from tools.lab.schemes import ALONE, NATIVE, PERPHD
from tools.lab.stats import Spread, ratio

SHARES = "sbs-1024"


@dataclass(frozen=True, slots=True)
class Claim:
    """A ratio of the paper's agent to one of its references. ``at_least``: more is better."""

    cell: str
    text: str
    reference: str
    figure: Callable[[Run], float | None]
    paper: float
    at_least: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """The lab's result: the same ratio, and perphd's batch work relative to the same reference's."""

    claim: Claim
    ours: Spread | None
    batch: Spread | None

    @property
    def met(self) -> bool | None:
        """True, False, or None if it was not measured; the median decides."""
        if self.ours is None:
            return None
        median = self.ours.median
        return median >= self.claim.paper if self.claim.at_least else median <= self.claim.paper


def _rate(run: Run) -> float | None:
    return run.whole.tps


def _time(run: Run) -> float | None:
    """Seconds per unit of work, the duration of a job of fixed size."""
    return ratio(1.0, run.whole.tps)


def _makespan(run: Run) -> float | None:
    return ratio(1.0, run.whole.batch)


def _claims(
    cell: str, text: str, figure: Callable[[Run], float | None], at_least: bool, **paper: float
) -> list[Claim]:
    references = {"native": NATIVE, "shares": SHARES, "alone": ALONE}
    return [Claim(cell, text, references[name], figure, value, at_least) for name, value in paper.items()]


CLAIMS = (
    *_claims("tpcc-pi4", "TPC-C: transactions/s", _rate, True, native=1.35, shares=1.23),
    *_claims("slap-pi4", "mysqlslap: time of all queries", _time, False, native=0.494, shares=0.621, alone=1.165),
    *_claims("tpch-pi4", "TPC-H: queries an hour", _rate, True, native=1.19, shares=1.15, alone=0.81),
    *_claims("kafka-pi4", "Kafka: throughput", _rate, True, native=2.01, shares=1.82, alone=0.86),
    *_claims(
        "kafka-pi4", "Kafka: median latency", lambda run: run.whole.p50_ms, False, native=0.426, shares=0.488
    ),
    *_claims(
        "kafka-pi4", "Kafka: 99th percentile of latency", lambda run: run.whole.p99_ms, False,
        native=0.753, shares=0.416,
    ),
    *_claims("kafka-pi4", "Kafka: makespan of batch", _makespan, False, native=1.113),
)  # fmt: skip


def answers(runs: Sequence[Run]) -> list[Answer]:
    """The claims of the cells that were run with perphd, each with its measurement."""
    found = []
    for claim in CLAIMS:
        of_cell = [run for run in runs if run.cell == claim.cell]
        mine = [run for run in of_cell if run.scheme == PERPHD]
        if mine:
            ours = paired(mine, of_cell, claim.reference, claim.figure)
            batch = paired(mine, of_cell, claim.reference, lambda run: run.whole.batch)
            found.append(Answer(claim, ours, batch))
    return found
