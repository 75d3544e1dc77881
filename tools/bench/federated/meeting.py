"""One host learns a new application, alone and with other hosts' contributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perphd.domain.learning import Learner
from perphd.federated.contribution import Contribution, Statistic
from perphd.federated.hardware import Hardware
from perphd.federated.ledger import ContributionLedger
from perphd.federated.pooling import Asking
from perphd.predictor import LraModel
from perphd.predictor.federated import contributed, pooled, start
from perphd.predictor.persist import ModelFile, Provenance, ranges_of
from tools.bench.federated.hosts import NEAR, Days, Host
from tools.bench.predictor.worlds import QUIET

Floats = NDArray[np.float64]

NOW_S: Final = 1.8e9
EXPIRE_S: Final = 30 * 86400.0


@dataclass(frozen=True, slots=True, eq=False)
class Met:
    """Squared errors at each of ``hosts.ASKED``, nearby and anywhere (n, 2), and the model."""

    squares: Floats
    model: LraModel


def model(
    learner: Learner, host: Host, ledger: ContributionLedger | None, lra: str, claimed: Hardware | None = None
) -> LraModel:
    """A model of an application that this host has never seen.

    ``ledger``: others' contributions; None: without others. ``claimed``: hardware that it claims to have, if not its
    own.
    """
    made = LraModel(learner)
    if ledger is not None:
        asking = Asking(host.name, claimed or host.hardware, NOW_S, EXPIRE_S)
        begun = start(pooled(ledger, lra, "work", asking), "work", host.hardware.cores, 1.0)
        if begun is not None:
            made.begin_told(begun, None)
    return made


def meet(made: LraModel, met: Days, length: int) -> Met:
    """Learn the first ``length`` samples beside batch, with questions in between."""
    squares: list[tuple[float, float]] = []
    for i, seen in enumerate(met.observations[: QUIET + length]):
        asked = met.questions.get(i - QUIET)
        if asked is not None:
            bands = made.predict_work(asked.allocations, asked.context)
            off = (np.log([band.value for band in bands]) - asked.truth) ** 2
            squares.append((float(np.mean(off[:NEAR])), float(np.mean(off[NEAR:]))))
        made.observe(seen)
        while (due := made.next_rebuild()) is not None:
            channel, job = due
            made.offer(channel, job.run())
    return Met(np.array(squares), made)


def contribution(host: Host, models: dict[str, LraModel], generation: int = 1) -> Contribution:
    """This host's contribution about its applications."""
    found: list[Statistic] = []
    for lra, made in sorted(models.items()):
        state = made.to_state()
        source = Provenance(lra, f"/{lra}", "", host.name, host.hardware.cores, "bench", NOW_S)
        found += contributed(ModelFile(source, ranges_of(state), state), host.hardware.threads_per_core)
    return Contribution(host.name, generation, NOW_S, host.hardware, tuple(found))
