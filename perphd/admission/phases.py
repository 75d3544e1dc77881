"""How far a signal moves by itself: a learned law of its contrasts, against which one contrast is tested.

Problem: programs have phases. Their cycles per instruction change by a fifth and more (coefficient of variation .19 in
the median of 36 measured programs, .61 at the 90th percentile), correlated over seconds or in levels of whole minutes.
No threshold on the level itself tells such a phase from interference.

Approach: a difference in differences. The contrast of a moment is how far the mean of the next h samples lies above
what was to be expected of them,

    D_h = A_h - (L + theta_h (R - L)),   A_h: mean of h samples, R: mean of the BEFORE samples ahead of them, L: the
                                         level over MEMORY samples, theta_h: regression of A_h - L on R - L

theta is near 0 where a signal returns to its level at once, and near 1 where it stays in a phase for minutes. While
nothing changes around the program, D_h is what it does by itself (a placebo); its spread and its tail are learned. The
contrast of a moment at which neighbours became active is then compared with that law: its p-value is the tail
of a mixture: usual noise, and rare changes of phase, whose share and size are counted. Pure; all state is a value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from perphd.domain.quick import maker

HORIZONS: Final = (2, 4, 8, 16, 30)
"""Samples over which a contrast is averaged."""
BEFORE: Final = 12
GAP: Final = 2
"""Samples ahead of an onset that are left out: a neighbour is noticed up to so many samples late."""
KEPT: Final = BEFORE + GAP + HORIZONS[-1]
MEMORY: Final = 600
"""Samples over which the level forgets."""
LEAST_SAMPLES: Final = 24
"""Before so many samples no contrast is tested."""
_CLIP: Final = 4.0  # times the mean deviation that one placebo adds to the spread at most
_EAGER: Final = 300  # samples until which every horizon learns from every sample; then one from every other
_LAW_MEMORY: Final = 2000  # placebos over which spread and regression forget
_TAIL_MEMORY: Final = 20_000  # placebos over which the share of changes of phase forgets
_JUMPS: Final = 200  # changes of phase over which their size forgets
_FAR: Final = 3.0  # times the standard deviation: from here on a contrast is a change of phase
LEAST_PLACEBOS: Final = 12
"""Before so many a horizon is not tested."""
_LEAST_SD: Final = 0.01
_PRIOR_VARIANCE: Final = 1e-4  # of R - L, with which theta begins at one half
_MEAN_DEVIATION: Final = math.sqrt(math.pi / 2.0)


@dataclass(frozen=True, slots=True)
class Law:
    """What the contrasts over one horizon do while nothing happens: a mixture of noise and changes of phase.

    ``n``: placebos seen; ``cov``, ``var``: of A - L with R - L, and of R - L; ``deviation``: mean absolute contrast;
    ``share``, ``square``: share of the placebos that were changes of phase, and the mean square of their sizes.
    """

    n: int = 0
    cov: float = 0.5 * _PRIOR_VARIANCE
    var: float = _PRIOR_VARIANCE
    deviation: float = 0.0
    share: float = 0.0
    square: float = 0.0

    @property
    def theta(self) -> float:
        """Share of the latest deviation from the level that lasts for this horizon."""
        return min(max(self.cov / self.var, 0.0), 1.0)

    @property
    def is_known(self) -> bool:
        """True if contrasts over this horizon can be tested."""
        return self.n >= LEAST_PLACEBOS

    def taught(self, late: float, early: float) -> Law:
        """This law after one placebo. ``late``: A - L; ``early``: R - L."""
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
        """This law after something of this size was taken for interference, and was a change of phase."""
        share = self.share + (1.0 - self.share) / min(max(self.n, 1), _TAIL_MEMORY)
        return replace(self, share=share, square=max(self.square, size * size))

    def sd(self, horizon: int) -> float:
        """Standard deviation of a contrast, wider while few independent ones were seen."""
        doubt = 1.0 + 1.0 / math.sqrt(max(self.n / horizon, 1.0))
        return max(self.deviation * _MEAN_DEVIATION, _LEAST_SD) * doubt

    def chance(self, contrast: float, horizon: int) -> float:
        """The probability of a contrast as large as this where nothing happens."""
        noise = _tail(contrast / self.sd(horizon))
        jump = _tail(contrast / math.sqrt(self.square)) if self.square > 0.0 else 0.0
        return noise + self.share * jump


_law = maker(Law)


def _tail(z: float) -> float:
    return 0.5 * math.erfc(z / math.sqrt(2.0))


_NEW: Final = tuple(Law() for _ in HORIZONS)


@dataclass(frozen=True, slots=True)
class Series:
    """One signal in log units: its latest values, its level, and what its contrasts do by themselves.

    ``n``: samples seen; ``quiet``: samples since something happened around it.
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
        """This series after one more value.

        Args:
            value: in log units; what is not finite leaves a gap.
            calm: nothing happened around the program since the last value.
            learn: the value shows what the program does by itself: its level may follow.
        """
        if not math.isfinite(value):
            return replace(self, recent=(), quiet=0)
        n, recent = self.n + 1, (*self.recent, value)[-KEPT:]
        quiet = self.quiet + 1 if calm else 0
        level = self.level + (value - self.level) / min(n, MEMORY) if learn else self.level
        laws = self.laws if not (learn and quiet) else self._taught(recent, quiet, level)
        return _series(n, level, recent, quiet, laws)

    def _taught(self, recent: tuple[float, ...], quiet: int, level: float) -> tuple[Law, ...]:
        """The laws after the placebos of this moment, as far as nothing happened within them."""
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
        """What is expected from now on, if neighbours have just become active; None while too little is known.

        The newest value may already be disturbed.
        """
        before = self.recent[-BEFORE - GAP : -GAP]
        if not self.is_known or len(before) < GAP:
            return None
        return Onset(self.level, sum(before) / len(before) - self.level)

    def mean(self, count: int) -> float:
        """Mean of the latest values, NaN if there is none."""
        last = self.recent[-count:]
        return sum(last) / len(last) if last else math.nan

    def expected(self, since: Onset, horizon: int) -> float:
        """What the mean of the ``horizon`` samples after an onset would be if nothing happened."""
        return since.level + self.laws[HORIZONS.index(horizon)].theta * since.early

    def contrast(self, since: Onset, horizon: int) -> float:
        """How far the latest ``horizon`` values lie above what was expected of them."""
        return self.mean(horizon) - self.expected(since, horizon)

    def chance(self, contrast: float, horizon: int) -> float:
        """The probability of a contrast as large as this where nothing happens."""
        return self.laws[HORIZONS.index(horizon)].chance(contrast, horizon)

    def tested(self, age: int) -> int:
        """The longest horizon that fits into so many samples and whose law is known; 0: none."""
        fits = (h for h, law in zip(HORIZONS, self.laws, strict=True) if h <= age and law.is_known)
        return max(fits, default=0)

    def surprised(self, size: float) -> Series:
        """This series after a change of phase of this size was taken for interference."""
        return replace(self, laws=tuple(law.surprised(size) for law in self.laws))


_series = maker(Series)


@dataclass(frozen=True, slots=True)
class Onset:
    """A series when something began: its level, and how far it was from it (log units)."""

    level: float
    early: float
