"""Trial of a correction that started from other hosts' estimates against one that learns alone.

Both learn every sample. The trial sums their squared errors one step ahead, clipped so that a single outlier cannot
decide. The start from other hosts acts first, until it is worse by more than chance. After ``LENGTH`` samples, the
winner stays and the other correction is dropped. A start from hosts that only seem similar therefore costs a
few samples at most.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perphd.predictor.boosted import Correction
from perphd.predictor.persist import ResidualState

Floats = NDArray[np.float64]

LENGTH: Final = 48
"""Number of samples of the trial; less than the number before the first rebuild of trees."""
CREDIT: Final = 4.0
"""Excess of squared errors, in units of a sample's noise variance, at which the start is dropped."""
_NOISE_SD: Final = 0.05
_MOST_SDS: Final = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Rows from which a channel starts.

    Features (n, D), physics predictions (log, (n,)), corrections (n,), and the variance of each (n,).
    """

    x: Floats
    prior: Floats
    y: Floats
    noise_var: Floats


class OnTrial:
    """The ``Correction`` described in the module.

    Args:
        told: the correction that started from other hosts' estimates.
        alone: the correction that started from physics.
        seen: samples of the trial before a restart; ``excess``: excess of squared errors during these.
    """

    def __init__(self, told: Correction, alone: Correction, seen: int = 0, excess: float = 0.0) -> None:
        self._told, self._alone = told, alone
        self._excess, self.seen = excess, seen

    @property
    def acting(self) -> Correction:
        """The correction that predicts at present."""
        return self._told if self.keeps else self._alone

    @property
    def keeps(self) -> bool:
        """True while the start from other hosts is not worse than learning alone."""
        return self._excess <= CREDIT

    @property
    def is_over(self) -> bool:
        """True if the trial is over and ``acting`` should replace this object."""
        return self.seen >= LENGTH

    def update(self, key: Hashable, x: Floats, residual: float, at_s: float, prior: float = 0.0) -> float:
        """See ``Correction``."""
        keeps = self.keeps
        told, alone = (self._error(each, x, residual, at_s, prior) for each in (self._told, self._alone))
        self._excess += told - alone
        self.seen += 1
        missed = (
            self._told.update(key, x, residual, at_s, prior),
            self._alone.update(key, x, residual, at_s, prior),
        )
        return missed[0] if keeps else missed[1]

    def noise_at_least(self, sd: float) -> None:
        """See ``Correction``."""
        self._told.noise_at_least(sd)
        self._alone.noise_at_least(sd)

    def predict(self, x: Floats, at_s: float, prior: Floats | None = None) -> tuple[Floats, Floats, Floats]:
        """See ``Correction``."""
        return self.acting.predict(x, at_s, prior)

    def doubt(self) -> None:
        """See ``Correction``."""
        self._told.doubt()
        self._alone.doubt()

    def to_state(self, now_s: float) -> ResidualState:
        """See ``Correction``; the acting correction's state. While the start from other hosts acts, its trial continues
        after a restart.
        """
        state = self.acting.to_state(now_s)
        if not self.keeps:
            return state
        return replace(state, trial_left=max(LENGTH - self.seen, 0), trial_excess=self._excess)

    def restore(self, state: ResidualState, now_s: float, elapsed_s: float = 0.0) -> None:
        """See ``Correction``; both get the state."""
        self._told.restore(state, now_s, elapsed_s)
        self._alone.restore(state, now_s, elapsed_s)

    @property
    def cells(self) -> int:
        """See ``Correction``."""
        return self.acting.cells

    @property
    def alarms(self) -> int:
        """See ``Correction``."""
        return self.acting.alarms

    @property
    def clipped(self) -> int:
        """See ``Correction``."""
        return self.acting.clipped

    @staticmethod
    def _error(each: Correction, x: Floats, residual: float, at_s: float, prior: float) -> float:
        mean, _, _ = each.predict(x[None], at_s, np.array([prior]))
        off = (residual - float(mean[0])) / _NOISE_SD
        return min(off * off, _MOST_SDS**2)
