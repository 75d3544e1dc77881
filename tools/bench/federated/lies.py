"""Effect of lying hosts on a host's decisions, compared with the spread of decisions among honest hosts.

The spread of a decision is its range over ``HALVES`` random halves of the honest hosts, and all of them. The bench also
measures how often other halves of the honest hosts leave that range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from perphd.domain.policy import ModelContext
from perphd.federated.contribution import MOST_EVIDENCE, Contribution
from perphd.federated.ledger import ContributionLedger, of_documents
from perphd.predictor import LraModel
from perphd.predictor.federated import MOST
from perphd.predictor.physics import CpuGrants, expect
from tools.bench.federated.hosts import Host, Place
from tools.bench.federated.meeting import model
from tools.bench.predictor.worlds import WAYS, WEIGHTS

TARGET: Final = 0.9
SURE: Final = 0.9
"""Least chance of keeping the target for choosing an allocation, as in ``admission.thresholds``."""
LOADS: Final = (0.35, 0.55, 0.7)
"""Loads of the LRA for which a decision is made."""

LIARS: Final = 10
"""One host in this many lies."""
HALVES: Final = 12
OTHER_HALVES: Final = 6
"""Number of further halves of the honest hosts that, like lies, are compared with the spread."""
BETTER: Final = 0.1
"""Size of a lie that hides among the differences of honest hosts (log units)."""

_HALF: Final = "half"

Floats = NDArray[np.float64]
Lie = Callable[[Contribution, np.random.Generator], Contribution]


def _changed(said: Contribution, change: Callable[[Floats], Floats], evidence: float | None) -> Contribution:
    statistics = tuple(
        msgspec.structs.replace(
            each,
            values=tuple(np.clip(change(np.array(each.values)), -MOST, MOST).tolist()),
            evidence=each.evidence if evidence is None else (evidence,) * len(each.evidence),
        )
        for each in said.statistics
    )
    return msgspec.structs.replace(said, statistics=statistics)


LIES: Final[Mapping[str, Lie]] = {
    "noise, with all the evidence it can claim": lambda said, rng: _changed(
        said, lambda v: rng.uniform(-MOST, MOST, len(v)), MOST_EVIDENCE
    ),
    "nothing ever harms": lambda said, rng: _changed(said, lambda v: np.full(len(v), MOST), MOST_EVIDENCE),
    "everything harms": lambda said, rng: _changed(said, lambda v: np.full(len(v), -MOST), MOST_EVIDENCE),
    "the opposite, with honest evidence": lambda said, rng: _changed(said, lambda v: -v, None),
    f"all {BETTER:g} better than the truth": lambda said, rng: _changed(
        said, lambda v: v + BETTER, MOST_EVIDENCE
    ),
    f"all {BETTER:g} worse than the truth": lambda said, rng: _changed(
        said, lambda v: v - BETTER, MOST_EVIDENCE
    ),
}


def lying(
    contributions: Sequence[Contribution], lie: Lie, share: int, rng: np.random.Generator
) -> list[Contribution]:
    """The contributions, with one in ``share`` replaced by a lie."""
    liars = set(
        rng.choice(len(contributions), size=max(len(contributions) // share, 1), replace=False).tolist()
    )
    return [lie(each, rng) if k in liars else each for k, each in enumerate(contributions)]


def places(host: Host) -> list[Place]:
    """The candidate allocations of a decision."""
    total = host.hardware.cores
    step = max(total // 8, 1)
    return [
        Place(total, exclusive, cores, weight, ways, throttle)
        for exclusive in (False, True)
        for cores in range(step, total + (0 if exclusive else 1), step)
        for weight in (range(len(WEIGHTS)) if not exclusive else (len(WEIGHTS) - 1,))
        for ways in (0, 4, WAYS - 1)
        for throttle in (2, 5, 9)
    ]


def decided(made: LraModel, host: Host, load: float, among: Sequence[Place]) -> int:
    """The allocation best for batch that keeps the target with a chance of at least ``SURE``; else the safest."""
    context = ModelContext(load * host.hardware.cores, float(host.hardware.cores), float(host.hardware.cores))
    allocations = [place.allocation() for place in among]
    bands = made.predict_work(allocations, context)
    chance = np.array([_chance(band.value, band.sd) for band in bands])
    worth = batch_worth(host, load, among)
    return int(np.argmax(np.where(chance >= SURE, 1.0 + worth, 0.0) if (chance >= SURE).any() else chance))


def batch_worth(host: Host, load: float, among: Sequence[Place]) -> Floats:
    """Batch's share of the host: cores by physics, less the cost of its cache and bandwidth limits."""
    total = float(host.hardware.cores)
    context = ModelContext(load * total, total, total)
    cores = expect(CpuGrants.of([p.allocation() for p in among]), context).batch_cores / total
    limits = np.array([(1.0 - 0.02 * p.ways) * (0.7 + 0.03 * (p.throttle + 1)) for p in among])
    return np.asarray(cores * limits)


def _chance(value: float, sd: float) -> float:
    off = (math.log(max(value, 1e-6)) - math.log(TARGET)) / max(sd, 1e-6)
    return 0.5 * (1.0 + math.erf(off / math.sqrt(2.0)))


def table(
    hosts: Sequence[Host], contributions: Sequence[Contribution], seed: int, applications: int
) -> list[str]:
    """Decisions of every host about every application, before its first sample, with one liar in ``LIARS``."""
    rng = np.random.default_rng([seed, 3])
    honest = of_documents(contributions)
    halves = [_without(contributions, 2, rng) for _ in range(HALVES)]
    others = {"nobody; one honest host in ten is missing": _without(contributions, LIARS, rng)}
    others |= {name: of_documents(lying(contributions, lie, LIARS, rng)) for name, lie in LIES.items()}
    others |= {f"{_HALF}, {n}": _without(contributions, 2, rng) for n in range(OTHER_HALVES)}
    found: dict[str, list[tuple[bool, bool, float]]] = {name: [] for name in others}
    base: list[float] = []
    for host in hosts:
        among = places(host)
        worth = [batch_worth(host, load, among) for load in LOADS]
        for a in range(applications):
            usual = decisions(host, a, honest, among)
            spread = [decisions(host, a, half, among) for half in halves]
            missed = _missed(host, a, among)
            base += [missed[n][k] for n, k in enumerate(usual)]
            for name, ledger in others.items():
                for n, k in enumerate(decisions(host, a, ledger, among)):
                    range_ = [float(worth[n][each[n]]) for each in (*spread, usual)]
                    beyond = not min(range_) - 1e-9 <= worth[n][k] <= max(range_) + 1e-9
                    found[name].append((k != usual[n], beyond, missed[n][k]))
    lines = [
        f"## Decisions with one host in {LIARS} lying",
        "",
        f"Of {len(base)} decisions ({len(hosts)} hosts, {applications} applications, {len(LOADS)} loads); the spread "
        f"is the range of {HALVES} random halves of the honest hosts and all of them. Told by all honest hosts, the "
        f"true score lacks {np.mean(base):.4f} of the target in the mean.",
        "",
        "| lie | decisions changed | beyond the spread | lacks of the target |",
        "| --- | ---: | ---: | ---: |",
    ]
    half = "nobody; half of the honest hosts are missing"
    found[half] = [row for name in list(found) if name.startswith(_HALF) for row in found.pop(name)]
    for name, rows in found.items():
        changed, beyond_, lacks = (float(np.mean([row[i] for row in rows])) for i in range(3))
        lines.append(f"| {name} | {changed:.1%} | {beyond_:.2%} | {lacks:.4f} |")
    return lines


def decisions(host: Host, application: int, ledger: ContributionLedger, among: Sequence[Place]) -> list[int]:
    """The decision for each of ``LOADS`` before the first sample, given the ledger."""
    made = model("staged", host, ledger, f"app-{application}")
    return [decided(made, host, load, among) for load in LOADS]


def _missed(host: Host, application: int, among: Sequence[Place]) -> list[Floats]:
    """Shortfall of each allocation's true score below the target, by load."""
    total = float(host.hardware.cores)
    allocations = [place.allocation() for place in among]
    found = []
    for load in LOADS:
        truth = host.worlds[application].log_ratio(allocations, ModelContext(load * total, total, total))
        found.append(np.maximum(TARGET - np.exp(truth), 0.0))
    return found


def _without(
    contributions: Sequence[Contribution], share: int, rng: np.random.Generator
) -> ContributionLedger:
    """The ledger without one honest host in ``share``."""
    gone = set(
        rng.choice(len(contributions), size=max(len(contributions) // share, 1), replace=False).tolist()
    )
    return of_documents(each for k, each in enumerate(contributions) if k not in gone)
