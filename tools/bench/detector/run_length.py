"""Mean run length of the product's CUSUM on normal noise, by the integral equation, to check its thresholds."""

from __future__ import annotations

import math

import numpy as np


def run_length(k: float, h: float, clip: float, states: int = 200) -> float:
    """Mean number of samples until max(0, S + min(Z - k, clip)) first reaches ``h`` from 0; Z is standard normal.

    The state space is divided into a lattice that contains ``clip`` (Brook and Evans 1972). The transition
    probabilities between its states are known, and the mean times to the end solve a linear equation.
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
