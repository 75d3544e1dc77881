"""The stages of the learned correction: a shared level, an exponent of the prior, and splines with fixed signs.

    good(x) = (1 + b1) p(x) + b0 + sum_j b_j s_j(x),    b_j >= 0 wherever s_j has a sign

``good`` is the logarithm of work (for delay, its negative), and p that of the physics prior. Every signed stage
consists of terms that never fall as the LRA gets more: a way, less bandwidth for its neighbours, an exclusive core,
less weight for batch. A sum of such terms with non-negative coefficients never falls either, so the signs hold by
construction.

The cost of batch is expressed as losses (batch's share of the cores, times the part that is not withheld from
it), so that fewer cores for batch beside an LRA with exclusive cores never reduce its performance. The number
of cores shared by batch and LRA has no sign: whether confining batch is better than letting it spread depends on
the host.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from perphd.predictor import features

Floats = NDArray[np.float64]

_WAYS: Final[Floats] = np.array(
    [(0, 1), (1, 2), (2, 4), (4, 7), (7, 11), (11, 20), (0, 5), (5, 12)], dtype=np.float64
)
"""Ranges of protected ways over which a loss of cache fades, narrow where curves bend.

The last two are for effects that grow with load.
"""
_FEW_WAYS: Final = 6
_BANDWIDTH: Final[Floats] = np.array([(0.1, 0.5), (0.5, 0.8), (0.8, 1.0)])
_WEIGHTS: Final[Floats] = np.array([(-1.65, -1.1), (-1.1, -0.5), (-0.5, 0.0), (0.0, 0.6), (-1.0, 0.0)])
"""Ranges of log10 of batch's weight ratio, from idle to four times the LRA's weight. The last one is for effects that
grow with load.
"""
_OWN: Final[Floats] = np.array([(0.0, 0.15), (0.15, 0.3), (0.3, 0.5), (0.5, 0.75), (0.75, 1.0)])
_WAYS_SCALE: Final = 20.0
_USUAL_LOAD: Final = 0.45
_USUAL_SHARE: Final = 0.6
_USUAL_BATCH: Final = 0.8
_USUAL_GHZ: Final = 3.0
_FILL_LEAST: Final = 0.3
"""Minimum share of cache and memory bus that batch takes, however few cores it has."""

_FREE: Final = -np.inf
_DOUBT: Final[tuple[tuple[str, float, float], ...]] = (
    ("level", 0.15, _FREE),
    ("prior", 0.3, -0.9),
    ("exclusive", 0.1, _FREE),
    ("lra_load", 0.15, _FREE),
    ("batch_core_share", 0.12, _FREE),
    ("batch_load", 0.1, _FREE),
    ("other_load", 0.1, _FREE),
    *((f"llc_ways {low:g}-{high:g}", 0.06, 0.0) for low, high in _WAYS[:_FEW_WAYS]),
    *((f"llc_ways {low:g}-{high:g} x load", 0.06, 0.0) for low, high in _WAYS[_FEW_WAYS:]),
    *((f"mbw {low:g}-{high:g}", 0.08, 0.0) for low, high in _BANDWIDTH),
    *((f"batch_weight {low:g}-{high:g}", 0.06, 0.0) for low, high in _WEIGHTS[:-1]),
    ("batch_weight x load", 0.06, 0.0),
    *((f"own_cores {low:g}-{high:g}", 0.08, 0.0) for low, high in _OWN),
    ("own_cores per load", 0.08, 0.0),
    ("io_stall", 0.4, 0.0),
    ("io_stall above 0.3", 0.4, 0.0),
    ("frequency", 0.5, 0.0),
    ("neighbours_bandwidth", 0.15, 0.0),
    ("neighbours_load", 0.2, 0.0),
)
NAMES: Final = tuple(name for name, _, _ in _DOUBT)
"""Names of the stages, in order; saved files refer to them."""
SD: Final[Floats] = np.array([sd for _, sd, _ in _DOUBT])
"""Prior standard deviation of each coefficient, log units.

They were found on simulated worlds with seeds from 100 on (``tools.bench.predictor.following``, whose report uses
none of these seeds). Halving them changes the error near visited places by less than a tenth. Together they equal
the prior's uncertainty, 0.2.
"""
LEAST: Final[Floats] = np.array([least for _, _, least in _DOUBT])
"""Lower bound of each coefficient. The prior may lose nine tenths of its weight, but not its sign."""
COUNT: Final = len(NAMES)


def stages(x: Floats, prior: Floats) -> Floats:
    """Every stage at rows ``x`` (n, D) of ``features.COLUMNS`` with physics predictions ``prior`` (n,): (n, COUNT).

    ``prior`` is the logarithm of work, or of the inverse of delay. An unknown covariate (NaN) contributes nothing.
    """
    share, weight, apart, load, batch, ways, bandwidth = x[:, : features.PLACE].T
    other, io, frequency, neighbours, beside = np.nan_to_num(x[:, features.PLACE :].T)
    together, own = 1.0 - apart, 1.0 - share
    fill = batch * (_FILL_LEAST + (1.0 - _FILL_LEAST) * share)
    shared = together * share * batch
    made = np.empty((len(x), COUNT))
    made[:, 0] = 1.0
    made[:, 1] = prior
    made[:, 2] = apart
    made[:, 3] = load - _USUAL_LOAD
    made[:, 4] = together * (share - _USUAL_SHARE)
    made[:, 5] = batch - _USUAL_BATCH
    made[:, 6] = other
    at = 7
    unprotected = _ramps(_WAYS_SCALE * ways, _WAYS) - 1.0
    made[:, at : at + 8] = fill[:, None] * unprotected
    made[:, at + _FEW_WAYS : at + 8] *= load[:, None]
    at += 8
    made[:, at : at + 3] = -fill[:, None] * _ramps(bandwidth, _BANDWIDTH)
    at += 3
    made[:, at : at + 5] = -shared[:, None] * _ramps(weight, _WEIGHTS)
    made[:, at + 4] *= load
    at += 5
    made[:, at : at + 5] = apart[:, None] * _ramps(own, _OWN)
    made[:, at + 5] = apart * np.clip(np.log(np.maximum(own, 0.01) / np.maximum(load, 0.02)), -2.0, 0.0)
    at += 6
    made[:, at] = -np.minimum(io, 1.0)
    made[:, at + 1] = -np.clip(io - 0.3, 0.0, 0.7)
    made[:, at + 2] = np.where(
        frequency > 0, np.clip(np.log(np.maximum(frequency, 0.1) / _USUAL_GHZ), -0.7, 0.7), 0.0
    )
    made[:, at + 3] = -np.clip(neighbours / 20.0, 0.0, 1.0)
    made[:, at + 4] = -np.clip(beside, 0.0, 1.0)
    return made


def _ramps(values: Floats, between: Floats) -> Floats:
    """Progress of each value (n,) through each range (k, 2), from 0 to 1; (n, k)."""
    low, high = between.T
    return np.asarray(np.clip((values[:, None] - low) / (high - low), 0.0, 1.0), dtype=np.float64)
