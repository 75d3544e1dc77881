"""Targets of a simulated fleet's services."""

from __future__ import annotations

from typing import Final

import numpy as np

from perphd.cluster.scheduling.fleet import Mask
from perphd.sim.cluster.contention import Conditions
from perphd.sim.cluster.division import Floats

LATE_STALL: Final = 0.2
LATE_STRETCH: Final = 1.5


def late_services(told: Conditions, alone_s: Floats) -> Mask:
    """Mask of pods that would miss a service's target.

    A pod misses it if it waits for a CPU a fifth of the time, needs 1.5 times the CPU time that a request
    takes on an idle node, or does not answer all requests.
    """
    missed = (told.stall > LATE_STALL) | (told.service_s > LATE_STRETCH * alone_s) | (told.lag > 1e-3)
    return np.asarray(missed)
