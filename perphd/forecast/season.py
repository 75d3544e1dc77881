"""The season of a series: the lag at which it resembles itself.

With x the values less their mean (or trend), the autocorrelation at lag k, corrected for the shorter overlap, is

    r_k = n / (n - k) * sum_t x_t x_{t+k} / sum_t x_t^2,    k up to n / 2

A slow series resembles itself at short lags, too: a high value means a return only after r has first fallen below 0.
A multiple of a season is a season as well, so the first return that is about as good as the best one counts.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

ABOUT_AS_GOOD: Final = 0.93
"""Share of the greatest correlation above which an earlier return is preferred."""


def season_of(centred: NDArray[np.float64], least_lag: int, least_correlation: float) -> int | None:
    """The season in values; None if there is none. ``centred``: values around 0, not all of them 0."""
    n = len(centred)
    most = n // 2
    if most <= least_lag:
        return None
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    own = np.fft.irfft(spectrum * np.conj(spectrum), size)[: most + 1]
    own = own / float(centred @ centred) * n / (n - np.arange(most + 1))
    below = np.flatnonzero(own < 0.0)
    if not len(below):
        return None
    start = max(int(below[0]), least_lag)
    if start >= most:
        return None
    seen = own[start : most + 1]
    greatest = float(seen.max())
    if greatest < least_correlation:
        return None
    good = np.flatnonzero(seen >= max(least_correlation, ABOUT_AS_GOOD * greatest))
    ends = np.flatnonzero(np.diff(good) > 1)
    first = good[: int(ends[0]) + 1] if len(ends) else good
    return start + int(first[int(np.argmax(seen[first]))])
