"""How far a prediction may be off: spread of bootstrap replicas, noise and staleness, calibrated as it goes.

    raw variance   s(x)^2 = spread(x)^2 + far(x) * doubt^2 + noise^2
    band           F(x) -+ q * s(x)
    calibration    log q += step * (missed - miss_rate),  missed = 1 if |y - F(x)| > q s(x)

``far(x)`` is the distance from what was seen since the last change of the application (0..1), and ``doubt^2`` the
running mean of what the model missed per unit of that distance whenever the policy went somewhere new: after a change
of the application every step shows whether the model still knows the way.
The calibration is adaptive conformal inference on the scale (Gibbs and Candes, NeurIPS 2021; as quantile tracking in
Angelopoulos et al., NeurIPS 2023): its long-run miss rate is ``miss_rate`` for any sequence of errors, drift or not,
as long as q stays within its bounds.
"""

from __future__ import annotations

import math

_LEAST_SCALE, _MOST_SCALE = 0.2, 50.0


class Conformal:
    """The multiplier q of a band that is missed at a wanted rate.

    Args:
        miss_rate: wanted share of samples outside the band.
        step: how fast q follows; 0.05 forgets over some hundred samples.
    """

    def __init__(self, miss_rate: float = 0.1, step: float = 0.06) -> None:
        self.miss_rate = miss_rate
        self._step = step
        self.scale = 1.645
        self.seen = self.missed = 0

    def update(self, standardised: float) -> bool:
        """Take |y - F(x)| / s(x) of one sample, asked before it was learned; True if the band missed it."""
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

    The mean of |e| over the last ``memory`` samples or so, times sqrt(pi/2) as for a normal distribution; every |e|
    is clipped at four times the present estimate, so that a burst after a change hardly counts.
    """

    def __init__(self, sd: float, memory: float = 100.0, floor: float = 0.003) -> None:
        self._memory, self._floor = memory, floor
        self.sd = max(sd, floor)

    def update(self, error: float) -> None:
        """Take one error (log units)."""
        seen = math.sqrt(math.pi / 2) * min(abs(error), 4.0 * self.sd)
        self.sd = max(self.sd + (seen - self.sd) / self._memory, self._floor)
