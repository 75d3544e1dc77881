"""Uncertainty of a prediction: spread of bootstrap replicas, staleness and noise, with online calibration.

    raw variance   s(x)^2 = spread(x)^2 + far(x) * doubt^2 + noise^2
    band           F(x) -+ q * s(x)
    calibration    log q += step * (missed - miss_rate),  missed = 1 if |y - F(x)| > q s(x)

``far(x)`` is the distance from places seen since the last change of the application (0..1). ``doubt^2`` is the running
mean of the squared error per unit of that distance, measured whenever the policy moves to a new place. After
a change of the application, each step shows whether the model still holds.

The calibration is adaptive conformal inference on the scale (Gibbs and Candes, NeurIPS 2021; as quantile tracking in
Angelopoulos et al., NeurIPS 2023). Its long-run miss rate is ``miss_rate`` for any sequence of errors, drift or not, as
long as q stays within its bounds.
"""

from __future__ import annotations

import math

_LEAST_SCALE, _MOST_SCALE = 0.2, 50.0


class Conformal:
    """The multiplier q of a band, adapted to a wanted miss rate.

    Args:
        miss_rate: wanted share of samples outside the band.
        step: rate of adaptation of q; 0.05 corresponds to a memory of about a hundred samples.
    """

    def __init__(self, miss_rate: float = 0.1, step: float = 0.06) -> None:
        self.miss_rate = miss_rate
        self._step = step
        self.scale = 1.645
        self.seen = self.missed = 0

    def update(self, standardised: float) -> bool:
        """Process |y - F(x)| / s(x) of one sample, computed before learning it; returns True if the band
        missed it.
        """
        missed = abs(standardised) > self.scale
        self.seen += 1
        self.missed += missed
        self.scale *= math.exp(self._step * ((1.0 if missed else 0.0) - self.miss_rate))
        self.scale = min(max(self.scale, _LEAST_SCALE), _MOST_SCALE)
        return missed

    @property
    def coverage(self) -> float:
        """Share of all samples so far inside their band; 1 before the first."""
        return 1.0 - self.missed / self.seen if self.seen else 1.0


class Noise:
    """Robust running estimate of one sample's standard deviation around the model.

    The estimate is the mean of |e| over about the last ``memory`` samples, times sqrt(pi/2) as for a normal
    distribution. Every |e| is clipped at four times the present estimate, so that a burst after a change hardly counts.
    """

    def __init__(self, sd: float, memory: float = 100.0, floor: float = 0.003) -> None:
        self._memory, self._floor = memory, floor
        self.sd = max(sd, floor)

    def update(self, error: float) -> None:
        """Process one error (log units)."""
        seen = math.sqrt(math.pi / 2) * min(abs(error), 4.0 * self.sd)
        self.sd = max(self.sd + (seen - self.sd) / self._memory, self._floor)
