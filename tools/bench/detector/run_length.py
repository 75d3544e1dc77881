"""Mean run length of the product's CUSUM on normal noise, by the integral equation, to check its thresholds."""

from __future__ import annotations

import math

import numpy as np


def run_length(k: float, h: float, clip: float, states: int = 200) -> float:
    """Samples until max(0, S + min(Z - k, clip)) first reaches ``h``, in the mean, from 0; Z is standard normal.

    The state is cut into a lattice on which ``clip`` is a point (Brook and Evans 1972): of a row of states, one sample
    leads to each other one with a known chance, and the mean times to the end solve a linear equation.
    """
    steps = max(2, round(states * clip / h))
    width = clip / steps
    count = math.ceil(h / width - 1e-9)
    at = np.arange(count)
    by = at[None, :] - at[:, None]
    normal = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2.0)))
    below = {d: float(normal((d + 0.5) * width + k)) for d in range(-count - 1, count + 1)}
    upper = np.array([[1.0 if d >= steps else below[int(d)] for d in row] for row in by])
    lower = np.array([[1.0 if d > steps else below[int(d) - 1] for d in row] for row in by])
    chance = upper - lower
    chance[:, 0] = upper[:, 0]
    return float(np.linalg.solve(np.eye(count) - chance, np.ones(count))[0])
