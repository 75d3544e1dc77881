"""A Res-Perf model's contribution to other hosts, and the start of a model from their contributions.

Problem. Hosts have samples at different places (allocations and loads), which cannot be compared directly. Samples must
also not leave a host. The hosts' corrections of the physics prior are comparable, because they are relative
to cores, load and reference.

Approach. The cells of a model (local means and counts, without any prior from other hosts) give the
posterior of the stages, a linear regression with known prior. At the fixed points ``ANCHORS`` x, dividing out the
prior leaves the information of the cells alone:

    1 / v0 = prior precision of the correction at x,   1 / v = posterior precision,   mu = posterior mean
    evidence  e = 1 / v - 1 / v0,        estimate  m = (mu / v) / e

m contains both gain and correction of the model. ``pooling`` turns the estimates of many hosts into one per
anchor. A host starts from the anchors that enough hosts know, each shrunk towards physics in proportion to
the remaining uncertainty:

    y(x) = m E / (E + 1 / v0),           E = sum of the hosts' evidence, weighted by likeness
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perphd.domain.policy import ModelContext
from perphd.federated.contribution import Statistic, Topic
from perphd.federated.ledger import ContributionLedger
from perphd.federated.pooling import QUORUM, Asking, Pooled, pool
from perphd.predictor import features
from perphd.predictor.features import FAINT_WEIGHT
from perphd.predictor.persist import CellKey, CellState, ModelFile, ResidualState
from perphd.predictor.physics import CpuGrants, expect
from perphd.predictor.spread import golden_steps
from perphd.predictor.stages import SD, stages
from perphd.predictor.trial import Start

Floats = NDArray[np.float64]

KIND: Final = "correction"
CHANNELS: Final = ("work", "delay")
ANCHORS: Final = 192
POINTS: Final = f"anchors 1 of {ANCHORS}"
"""Version of the anchors and the stages: estimates at other points are not comparable."""
MOST: Final = 1.5
"""Bound of a correction, log units."""
LEAST_SAMPLES: Final = 30.0
"""Minimum number of effective samples beside batch that a model needs to contribute."""
LEAST_ANCHORS: Final = 24
"""Minimum number of known anchors for a start from other hosts' estimates."""
_REPEATED: Final = 5.0
"""Anchors per coefficient of the stages. Neighbouring anchors are redundant, so this factor raises their variance."""
_SCALE: Final[Mapping[str, float]] = {"work": 1.0, "delay": 0.35 / 0.2}
"""Uncertainty of the prior of each channel, relative to that of work (see ``corrections``)."""
_SIGN: Final[Mapping[str, int]] = {"work": 1, "delay": -1}
_CELL_SD: Final = 0.02
"""Standard deviation of the part of a cell's correction that stages cannot express (log units)."""
_LEAST_NOISE: Final = 0.03
_BEST_SD: Final = 0.03
"""Minimum standard deviation of one host's estimate (log units), however many samples the host has."""
_LEAST_SHARE: Final = 0.25
"""Evidence, as a share of the prior's precision, below which an anchor counts as unknown to a host."""


def contributed(file: ModelFile, threads_per_core: float) -> tuple[Statistic, ...]:
    """Statistics that this model contributes to other hosts; channels with too few samples are left out."""
    found = []
    source = file.provenance
    for channel in CHANNELS:
        estimate = estimated(getattr(file.state, channel), channel, source.cores, threads_per_core)
        if estimate is not None:
            values, evidence = (tuple(float(f"{v:.4g}") for v in column.tolist()) for column in estimate)
            found.append(
                Statistic(
                    topic_of(source.known_as, channel),
                    values,
                    evidence,
                    source.sli_source,
                    source.app_version,
                )
            )
    return tuple(found)


def estimated(
    state: ResidualState, channel: str, cores: int, threads_per_core: float
) -> tuple[Floats, Floats] | None:
    """Estimates at the anchors and their evidence, each (ANCHORS,), from a correction's cells; None if these
    are too few.
    """
    cells = [cell for cell in state.cells if isinstance(cell.key, CellKey) and cell.count > 0]
    if math.fsum(cell.count for cell in cells) < LEAST_SAMPLES:
        return None
    sign, sd = _SIGN[channel], SD * _SCALE[channel]
    x = np.array([features.padded(cell.x) for cell in cells])
    prior = np.array([_physics(cell, channel, threads_per_core) for cell in cells])
    known = np.isfinite(x[:, : features.PLACE]).all(axis=1)
    x, prior = x[known], prior[known]
    y = np.clip(sign * np.array([cell.mean for cell in cells])[known], -MOST, MOST)
    noise_var = max(state.noise_var, _LEAST_NOISE**2)
    precision = 1.0 / (noise_var / np.array([cell.count for cell in cells])[known] + _CELL_SD**2)
    rows = stages(x, sign * prior)
    inverse = np.linalg.inv(np.diag(1.0 / sd**2) + (rows * precision[:, None]).T @ rows)
    mean = inverse @ (rows.T @ (precision * y))
    at, physics = anchors(cores, threads_per_core, channel)
    asked = stages(at, sign * physics)
    before = ((asked * sd) ** 2).sum(axis=1)
    after = np.maximum(((asked @ inverse) * asked).sum(axis=1), 1e-9)
    evidence = 1.0 / after - 1.0 / before
    value = (asked @ mean) / after / np.maximum(evidence, 1e-9)
    evidence = np.where(evidence * before >= _LEAST_SHARE, np.minimum(evidence, _BEST_SD**-2), 0.0)
    return np.where(evidence > 0, np.clip(sign * value, -MOST, MOST), 0.0), evidence


def pooled(
    ledger: ContributionLedger,
    application: str,
    channel: str,
    asking: Asking,
    counted_by: str = "",
    version: str = "",
) -> Pooled:
    """Other hosts' estimates for one channel of this application's model."""
    return pool(ledger, topic_of(application, channel), ANCHORS, asking, counted_by, version)


def topic_of(application: str, channel: str) -> Topic:
    """The topic of one channel of an application's model."""
    return Topic(KIND, application, channel, POINTS)


def start(told: Pooled, channel: str, cores: int, threads_per_core: float) -> Start | None:
    """The rows from which a model starts on a host of this shape; None if too few anchors are known."""
    known = (told.hosts >= QUORUM) & (told.evidence > 0)
    if int(known.sum()) < LEAST_ANCHORS:
        return None
    x, prior = anchors(cores, threads_per_core, channel)
    before = ((stages(x, _SIGN[channel] * prior) * SD * _SCALE[channel]) ** 2).sum(axis=1)
    y = np.clip(told.value, -MOST, MOST) * told.evidence / (told.evidence + 1.0 / before)
    noise_var = (told.spread**2 + _CELL_SD**2) * _REPEATED
    return Start(x[known], prior[known], y[known], noise_var[known])


@lru_cache(8)
def anchors(cores: int, threads_per_core: float, channel: str) -> tuple[Floats, Floats]:
    """The anchors as rows of ``features.COLUMNS``, and physics predictions there for a host of this shape (log).

    The anchors are a low-discrepancy sequence over share of the cores, weight, load of LRA and batch, ways and
    bandwidth. Two fifths of them have exclusive cores, a third no protected ways, and a third all of the bandwidth.
    The caller must not modify the arrays.
    """
    u = _spread(ANCHORS, 7)
    exclusive = u[:, 0] < 0.4
    share = np.where(exclusive, 0.1 + 0.8 * u[:, 1], 0.1 + 0.9 * u[:, 1])
    low, high = math.log10(FAINT_WEIGHT), math.log10(1.0 + FAINT_WEIGHT)
    weight = np.where(exclusive, 1.0, 10.0 ** (low + (high - low) * u[:, 2]) - FAINT_WEIGHT)
    load, batch = 0.1 + 0.8 * u[:, 3], np.minimum(0.25 + 1.25 * u[:, 4], 1.0)
    rows = np.full((ANCHORS, len(features.COLUMNS)), np.nan)
    rows[:, 0], rows[:, 1], rows[:, 2] = share, np.log10(weight + FAINT_WEIGHT), exclusive
    rows[:, 3], rows[:, 4] = load, batch
    rows[:, 5] = np.where(u[:, 5] < 1 / 3, 0.0, np.rint(18 * (u[:, 5] - 1 / 3))) / 20.0
    rows[:, 6] = np.where(u[:, 6] < 1 / 3, 1.0, 0.1 + 0.9 * (u[:, 6] - 1 / 3) * 1.5)
    rows[:, features.PLACE] = 0.0
    prior = np.empty(ANCHORS)
    for i in range(ANCHORS):
        grant = CpuGrants(
            np.array([float(cores)]), share[i : i + 1] * cores, weight[i : i + 1], exclusive[i : i + 1]
        )
        context = ModelContext(load[i] * cores, batch[i] * cores, float(cores), 0.0, threads_per_core)
        prior[i] = _expected(grant, context, channel)
    return rows, prior


def _physics(cell: CellState, channel: str, threads_per_core: float) -> float:
    key = cell.key
    assert isinstance(key, CellKey)
    grant, total = key.grant, float(key.total_cores)
    columns = CpuGrants(
        np.array([total]),
        np.array([float(grant.batch_cores)]),
        np.array([grant.weight_ratio]),
        np.array([grant.exclusive]),
    )
    x = features.padded(cell.x)
    load, batch, other = (float(v) if math.isfinite(v) else 0.0 for v in (x[3], x[4], x[features.PLACE]))
    context = ModelContext(load * total, batch * total, total, other * total, threads_per_core)
    return _expected(columns, context, channel)


def _expected(grant: CpuGrants, context: ModelContext, channel: str) -> float:
    found = expect(grant, context)
    return math.log(max(float((found.work if channel == "work" else found.delay)[0]), 1e-3))


def _spread(count: int, dimensions: int) -> Floats:
    """Evenly spread points of the unit cube; (count, dimensions)."""
    steps = golden_steps(dimensions)
    return np.asarray((0.5 + np.arange(1, count + 1)[:, None] * steps) % 1.0, dtype=np.float64)
