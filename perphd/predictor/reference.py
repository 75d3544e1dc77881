"""Reference: undisturbed performance of an LRA, as robust running statistics per signal and load.

Targets derive from it. It learns only from samples in which batch did not compete, or in which the LRA was so well
protected that the model can infer its undisturbed performance.

Samples from a host filled by undeclared work are not undisturbed either. They are kept apart as provisional, with a
wider band, and used until there are enough quiet samples. Undisturbed performance is at least as good as a
provisional value. Once its level is known, a provisional value therefore follows clear improvements at once and
deteriorations slowly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perphd.domain.policy import Band
from perphd.domain.reading import Reading, Unavailable, available
from perphd.predictor.persist import RunningState

MAX_COUNT = 60.0
"""Memory of the running mean, in samples: a reference follows slow changes of an application within about a minute."""
HALF_LIFE_S = 86400.0
"""Half-life of the statistics while perphd is stopped or the model is in a file."""
_MIN_SD = 0.01
_WELL_KNOWN = 5.0
_CLIP_SD = 4.0
_REGIME = 5
"""Number of consecutive outliers, or of improvements on a contended host, that count as a new regime."""
_PATIENT_GAIN = 1.0 / 1200.0
"""Gain of a sample from a contended host that is not a clear improvement. The mean follows within twenty minutes."""
_BETTER_SD = 2.0
"""Scatter of a provisional reference; an improvement beyond it counts with the usual gain."""
_WIDER = 2.0
"""Factor on the standard deviation of statistics from a contended host."""
_BUCKETS_PER_OCTAVE = 2
_AROUND: tuple[int | None, ...] = (0, -1, 1, -2, 2, None)
"""Steps from a load's bucket to the nearest ones within an octave, then to the statistics over all loads."""
_OVER_ALL = Unavailable("over all loads")


@dataclass(slots=True)
class _Running:
    mean: float
    var: float
    count: float
    surprises: int = 0

    def follow_best(self, value: float, weight: float, better: int) -> None:
        """Learn a value from a contended host. ``better``: 1 if more is better, -1 if less is, 0 if neither.

        The first samples set the level, except those that are far worse. If each good sample raised the level more than
        a bad one lowers it, scatter alone would drive it to the best sample ever seen.
        """
        gain = (value - self.mean) * better / max(math.sqrt(self.var), _MIN_SD)
        sets_level = self.count < MAX_COUNT and (self.count < 5 or gain > -_CLIP_SD)
        if not better or sets_level or gain > _CLIP_SD:
            self.update(value, weight)
            return
        self.surprises = self.surprises + 1 if gain > _BETTER_SD else 0
        if self.surprises >= _REGIME:
            self._restart(value)
            return
        error = value - self.mean
        self.mean += _PATIENT_GAIN * weight * error
        if gain > 0.0:  # errors to the other side may be contention and not scatter
            share = weight / self.count
            self.mean += share * error * max(0.0, 1.0 - _BETTER_SD / gain)
            scatter = error * min(1.0, _BETTER_SD / gain)
            self.var += share * (scatter * scatter - self.var)

    def update(self, value: float, weight: float) -> None:
        sd = max(math.sqrt(self.var), _MIN_SD)
        error = value - self.mean
        if self.count >= 5 and abs(error) > _CLIP_SD * sd:
            # One extreme sample is an outlier; several in a row are a new regime, followed at once.
            self.surprises += 1
            if self.surprises >= _REGIME:
                self._restart(value)
                return
            error = math.copysign(_CLIP_SD * sd, error)
        else:
            self.surprises = 0
        self.count = min(self.count + weight, MAX_COUNT)
        gain = weight / self.count
        self.mean += gain * error
        self.var += gain * (error * error - self.var)

    def _restart(self, value: float) -> None:
        self.mean, self.count, self.surprises = value, 2.0, 0


class Reference:
    """Running log-mean and log-variance of positive signals, by load bucket (half octaves) if load is known."""

    def __init__(self) -> None:
        self._stats: dict[tuple[str, int | None], _Running] = {}
        self._provisional: dict[tuple[str, int | None], _Running] = {}

    def update(
        self, signal: str, value: float, load: Reading, weight: float = 1.0, contended: bool = False
    ) -> None:
        """Learn one undisturbed value; ignores values that are not finite, clips others to 1e-6 .. 1e40.

        ``contended``: other work filled the host, so the value is provisional.
        """
        if not math.isfinite(value):
            return
        stats = self._provisional if contended else self._stats
        log = math.log(min(max(value, 1e-6), 1e40))
        for key in {(signal, _bucket(load)), (signal, None)}:
            running = stats.get(key)
            if running is None:
                stats[key] = _Running(log, 0.05**2, weight)
            elif contended:
                running.follow_best(log, weight, _better(signal))
            else:
                running.update(log, weight)
            if not contended and stats[key].count >= _WELL_KNOWN:
                self._provisional.pop(key, None)

    def get(self, signal: str, load: Reading) -> Band | None:
        """The expected value at this load: from its bucket, else the nearest within an octave, else over all loads.

        Provisional values are used while no other is well known. None if the signal was never learned.
        """
        firm = _nearest(self._stats, signal, load)
        if firm is not None and firm.count >= _WELL_KNOWN:
            return _band(firm)
        spare = _nearest(self._provisional, signal, load)
        if spare is not None and (firm is None or spare.count > firm.count):
            return _band(spare, provisional=True)
        return None if firm is None else _band(firm)

    def all(self) -> tuple[tuple[str, Reading, Band], ...]:
        """Every known value: signal, middle of the load bucket (Unavailable: over all loads), band."""
        known = [(key, s, False) for key, s in self._stats.items()]
        known += [(key, s, True) for key, s in self._provisional.items()]
        known.sort(key=lambda i: (i[0][0], -math.inf if i[0][1] is None else i[0][1]))
        return tuple(
            (
                signal,
                _OVER_ALL if bucket is None else 2.0 ** (bucket / _BUCKETS_PER_OCTAVE),
                _band(s, provisional),
            )
            for (signal, bucket), s, provisional in known
        )

    def doubt(self) -> None:
        """Let new samples outweigh the present statistics soon, because the application has changed."""
        for stat in (*self._stats.values(), *self._provisional.values()):
            stat.count = min(stat.count, _WELL_KNOWN)

    def to_state(self) -> tuple[RunningState, ...]:
        """The whole state as plain values."""
        return tuple(
            RunningState(signal, bucket, s.mean, s.var, s.count, s.surprises, provisional)
            for stats, provisional in ((self._stats, False), (self._provisional, True))
            for (signal, bucket), s in stats.items()
        )

    @classmethod
    def from_state(cls, stats: Iterable[RunningState], elapsed_s: float = 0.0) -> Reference:
        """Restore a state ``elapsed_s`` seconds old; the older it is, the sooner new samples outweigh it."""
        made = cls()
        kept = 0.5 ** (max(0.0, elapsed_s) / HALF_LIFE_S)
        for s in stats:
            count = s.count if kept == 1.0 else max(s.count * kept, min(s.count, 1.0))
            into = made._provisional if s.provisional else made._stats
            into[s.signal, s.bucket] = _Running(s.mean, s.var, count, s.surprises)
        return made


def _better(signal: str) -> int:
    """1 if more of a signal is better for the application, -1 if less is, 0 if undefined."""
    if signal.startswith("work:"):
        return 1
    return -1 if signal.startswith("delay:") or signal.endswith(("_some_pct", "in_flight")) else 0


def _nearest(stats: Mapping[tuple[str, int | None], _Running], signal: str, load: Reading) -> _Running | None:
    """The nearest well-known bucket, so that a rarely visited one does not hide its neighbours."""
    if not stats:
        return None
    bucket = _bucket(load)
    if bucket is None:
        return stats.get((signal, None))
    most: _Running | None = None
    for step in _AROUND:
        found = stats.get((signal, None if step is None else bucket + step))
        if found is None:
            continue
        if found.count >= _WELL_KNOWN:
            return found
        if most is None or found.count > most.count:
            most = found
    return most


def _band(running: _Running, provisional: bool = False) -> Band:
    sd = max(math.sqrt(running.var), _MIN_SD) * (_WIDER if provisional else 1.0)
    return Band(math.exp(running.mean), sd, running.count, provisional)


def _bucket(load: Reading) -> int | None:
    if not available(load) or load <= 0:
        return None
    return round(math.log2(load) * _BUCKETS_PER_OCTAVE)
