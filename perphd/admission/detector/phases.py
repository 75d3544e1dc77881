"""Statistical model of a signal's own variation, against which a contrast is tested.

Problem: programs have phases. Their cycles per instruction vary by a fifth and more (coefficient of variation .19 in
the median of 36 measured programs, .61 at the 90th percentile), correlated over seconds, or in levels that last for
minutes. No threshold on the level itself distinguishes such a phase from interference.

Approach: a difference in differences. The contrast of a moment is the mean of the next h samples, less its expectation,

    D_h = A_h - (L + theta_h (R - L)),   A_h: mean of h samples, R: mean of the BEFORE samples before them, L: the
                                         level over MEMORY samples, theta_h: regression of A_h - L on R - L

theta is near 0 if a signal returns to its level at once, and near 1 if it stays in a phase for minutes. While nothing
changes around the program, D_h is its own variation (a placebo), whose spread and tail are learned. The contrast at an
onset of neighbours' activity is compared with that law. Its p-value is the tail of a mixture of usual noise and rare
changes of phase, whose share and size are counted. Pure; all state is a value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from perphd.domain.quick import maker, replace

HORIZONS: Final = (2, 4, 8, 16, 30)
"""Numbers of samples over which a contrast is averaged."""
BEFORE: Final = 12
GAP: Final = 2
"""Number of samples to skip before an onset, because a neighbour may be noticed this late."""
KEPT: Final = BEFORE + GAP + HORIZONS[-1]
MEMORY: Final = 600
"""Memory of the level, in samples."""
LEAST_SAMPLES: Final = 24
"""Number of samples from which contrasts are tested."""
_CLIP: Final = 4.0  # multiple of the mean deviation at which one placebo's effect on the spread is clipped
_EAGER: Final = (
    300  # samples until which all horizons learn from every sample; then one horizon from every other
)
_LAW_MEMORY: Final = 2000  # number of placebos that spread and regression remember
_TAIL_MEMORY: Final = 20_000  # number of placebos that the share of phase changes remembers
_JUMPS: Final = 200  # number of phase changes that their mean size remembers
_FAR: Final = 3.0  # standard deviations from which a contrast is a change of phase
LEAST_PLACEBOS: Final = 12
"""Number of placebos from which contrasts over a horizon are tested."""
_LEAST_SD: Final = 0.01
_PRIOR_VARIANCE: Final = 1e-4  # variance of R - L with which theta starts at one half
_MEAN_DEVIATION: Final = math.sqrt(math.pi / 2.0)


@dataclass(frozen=True, slots=True)
class Law:
    """Distribution of contrasts over one horizon without interference: a mixture of noise and phase changes.

    ``n``: placebos seen. ``cov``, ``var``: covariance of A - L with R - L, and variance of R - L.
    ``deviation``: mean absolute contrast.
    ``share``, ``square``: share of placebos that were phase changes, and mean square of their sizes.
    """

    n: int = 0
    cov: float = 0.5 * _PRIOR_VARIANCE
    var: float = _PRIOR_VARIANCE
    deviation: float = 0.0
    share: float = 0.0
    square: float = 0.0

    @property
    def theta(self) -> float:
        """Share of the latest deviation from the level that persists over this horizon."""
        return min(max(self.cov / self.var, 0.0), 1.0)

    @property
    def is_known(self) -> bool:
        """True if contrasts over this horizon can be tested."""
        return self.n >= LEAST_PLACEBOS

    def taught(self, late: float, early: float) -> Law:
        """The law after one placebo. ``late``: A - L; ``early``: R - L."""
        contrast = late - self.theta * early
        n = self.n + 1
        gain = 1.0 / min(n + 1, _LAW_MEMORY)
        size = abs(contrast)
        share, square = self.share, self.square
        if n > LEAST_PLACEBOS:
            share -= share / min(n, _TAIL_MEMORY)
            if size > _FAR * _MEAN_DEVIATION * max(self.deviation, _LEAST_SD):
                share += 1.0 / min(n, _TAIL_MEMORY)
                square += (size * size - square) / min(max(share * n, 1.0), _JUMPS)
                size = min(size, _CLIP * self.deviation)
        return _law(
            n,
            self.cov + gain * (late * early - self.cov),
            self.var + gain * (early * early + 0.01 * _PRIOR_VARIANCE - self.var),
            self.deviation + (size - self.deviation) / min(n, _LAW_MEMORY),
            share,
            square,
        )

    def surprised(self, size: float) -> Law:
        """The law, updated after a phase change of this size was mistaken for interference."""
        share = self.share + (1.0 - self.share) / min(max(self.n, 1), _TAIL_MEMORY)
        return replace(self, share=share, square=max(self.square, size * size))

    def sd(self, horizon: int) -> float:
        """Standard deviation of a contrast, wider while there are few independent placebos."""
        doubt = 1.0 + 1.0 / math.sqrt(max(self.n / horizon, 1.0))
        return max(self.deviation * _MEAN_DEVIATION, _LEAST_SD) * doubt

    def chance(self, contrast: float, horizon: int) -> float:
        """Probability of a contrast at least this large without interference."""
        noise = _tail(contrast / self.sd(horizon))
        jump = _tail(contrast / math.sqrt(self.square)) if self.square > 0.0 else 0.0
        return noise + self.share * jump


_law = maker(Law)


def _tail(z: float) -> float:
    return 0.5 * math.erfc(z / math.sqrt(2.0))


_NEW: Final = tuple(Law() for _ in HORIZONS)


@dataclass(frozen=True, slots=True)
class Series:
    """One signal in log units: its latest values, its level, and the laws of its contrasts.

    ``n``: samples seen. ``quiet``: samples since the last change around it.
    """

    n: int = 0
    level: float = 0.0
    recent: tuple[float, ...] = ()
    quiet: int = 0
    laws: tuple[Law, ...] = _NEW

    @property
    def is_known(self) -> bool:
        """True if contrasts can be tested."""
        return self.n >= LEAST_SAMPLES

    def step(self, value: float, *, calm: bool, learn: bool) -> Series:
        """The series after one more value.

        Args:
            value: the value in log units; a value that is not finite leaves a gap.
            calm: True if nothing around the program has changed since the last value.
            learn: True if the level may follow, because the program is undisturbed.
        """
        if not math.isfinite(value):
            return replace(self, recent=(), quiet=0) if self.recent or self.quiet else self
        n, recent = self.n + 1, (*self.recent, value)[-KEPT:]
        quiet = self.quiet + 1 if calm else 0
        level = self.level + (value - self.level) / min(n, MEMORY) if learn else self.level
        laws = self.laws if not (learn and quiet) else self._taught(recent, quiet, level)
        return _series(n, level, recent, quiet, laws)

    def _taught(self, recent: tuple[float, ...], quiet: int, level: float) -> tuple[Law, ...]:
        """The laws after the placebos of this moment, which count only if nothing changed during them."""
        laws = self.laws
        have = min(quiet, len(recent))
        turn = self.n // 2 % len(HORIZONS)
        for k in range(len(HORIZONS)) if self.n < _EAGER else (turn,) if self.n % 2 else ():
            h = HORIZONS[k]
            if have >= BEFORE + GAP + h:
                late = sum(recent[-h:]) / h - level
                early = sum(recent[-h - GAP - BEFORE : -h - GAP]) / BEFORE - level
                laws = (*laws[:k], laws[k].taught(late, early), *laws[k + 1 :])
        return laws

    def onset(self) -> Onset | None:
        """The state at an onset of neighbours' activity; None while there are too few samples.

        Skips the newest values, which may already be disturbed.
        """
        before = self.recent[-BEFORE - GAP : -GAP]
        if not self.is_known or len(before) < GAP:
            return None
        return Onset(self.level, sum(before) / len(before) - self.level)

    def mean(self, count: int) -> float:
        """Mean of the latest values; NaN if there are none."""
        last = self.recent[-count:]
        return sum(last) / len(last) if last else math.nan

    def expected(self, since: Onset, horizon: int) -> float:
        """Expected mean of the ``horizon`` samples after an onset without interference."""
        return since.level + self.laws[HORIZONS.index(horizon)].theta * since.early

    def contrast(self, since: Onset, horizon: int) -> float:
        """The mean of the latest ``horizon`` values, less the expected one."""
        return self.mean(horizon) - self.expected(since, horizon)

    def chance(self, contrast: float, horizon: int) -> float:
        """Probability of a contrast at least this large without interference."""
        return self.laws[HORIZONS.index(horizon)].chance(contrast, horizon)

    def tested(self, age: int) -> int:
        """Longest horizon within ``age`` samples whose law is known; 0: none."""
        fits = (h for h, law in zip(HORIZONS, self.laws, strict=True) if h <= age and law.is_known)
        return max(fits, default=0)

    def surprised(self, size: float) -> Series:
        """The series, updated after a phase change of this size was mistaken for interference."""
        return replace(self, laws=tuple(law.surprised(size) for law in self.laws))


_series = maker(Series)


@dataclass(frozen=True, slots=True)
class Onset:
    """A series at an onset: its level, and the deviation of its latest values from that level (log units)."""

    level: float
    early: float
