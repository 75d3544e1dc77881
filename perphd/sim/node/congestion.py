"""Shared queues (memory channels, disk, link): delay as a function of use, and the congestion at which the
two balance.

The delay factor of a resource is 1 + its congestion ``x``, at present with x = u^2 / (1 - u) at utilisation u. Each
user's demand falls as x rises; the balance is found by Newton steps on log x, which also carries over from tick to
tick.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from perphd.sim.node.grant import Array
from perphd.sim.node.physics import PRESENT, Physics

MIN: Final = 1e-6
MAX: Final = 1e4
_STEP: Final = 2.0  # largest change of log x in one step


def balance(congestion: Array, offered: Array, slope: Array, physics: Physics = PRESENT) -> Array:
    """One step towards the congestion at which the offered use equals the utilisation.

    Args:
        congestion: x now.
        offered: demand over capacity at x.
        slope: its derivative by x (not positive).
        physics: defines the form of the queue.
    """
    x = congestion
    used, rise = physics.utilisation(x), physics.utilisation_slope(x)
    # Newton's step uses log(offered) - log(used), because both are nearly straight in log x over decades.
    gap = np.log(np.maximum(offered, 1e-9) / np.maximum(used, 1e-12))
    bend = slope * x / np.maximum(offered, 1e-9) - rise * x / np.maximum(used, 1e-12)
    step = np.minimum(np.maximum(-gap / np.minimum(bend, -1e-3), -_STEP), _STEP)
    moved: Array = np.minimum(np.maximum(x * np.exp(step), MIN), MAX)
    return moved
