"""Conversion of the forecast worker's state to plain values and arrays, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np

from perphd.forecast.calibration import Calibration
from perphd.forecast.following import Followed
from perphd.forecast.histogram import Floats
from perphd.forecast.host_peaks import HostPeaks, PendingPeak
from perphd.forecast.ladder import COVERAGE, LOSSES, MODELS, SeriesLadder, Track
from perphd.forecast.series import SeriesForecast

Record: TypeAlias = tuple[dict[str, Any], dict[str, Floats]]
"""JSON values, and arrays by name."""
_SEPARATOR: Final = "/"


def series_record(series: Followed) -> Record:
    """A series as a record; ``series_from`` is the inverse."""
    ladder = series.ladder
    about = {
        "number": series.number,
        "seen": ladder.seen,
        "acting": ladder.acting,
        "bound": ladder.bound,
        "widening": ladder.widening,
        "missed": series.missed,
        "tracks": {name: _track_about(track) for name, track in ladder.tracks.items()},
    }
    arrays = {"values": ladder.values, "losses": series.losses}
    for name, track in ladder.tracks.items():
        kept = {
            "errors": track.errors,
            "losses": track.losses,
            "residuals": track.calibration.residuals,
        }
        arrays |= {f"{name}{_SEPARATOR}{key}": array for key, array in kept.items()}
    return about, arrays


def series_from(about: Mapping[str, Any], arrays: Mapping[str, Floats]) -> Followed:
    """The series that ``series_record`` described.

    Raises:
        ValueError, KeyError, TypeError: the record is invalid.
    """
    known = {model.name for model in MODELS}
    tracks = {
        str(name): _track(item, name, arrays) for name, item in about["tracks"].items() if name in known
    }
    acting = about["acting"] if about["acting"] in tracks else None
    ladder = SeriesLadder(
        _finite(arrays["values"]),
        int(about["seen"]),
        tracks,
        acting,
        None if acting is None or about["bound"] is None else float(about["bound"]),
        float(about["widening"]),
    )
    if not len(ladder.values):
        raise ValueError("the record of a series holds no values; at least 1 is needed")
    return Followed(int(about["number"]), ladder, _finite(arrays["losses"]), _bits(about["missed"]))


def host_record(host: HostPeaks) -> Record:
    """One resource of the host as a record; ``host_from`` is the inverse."""
    about = {
        "number": host.number,
        "windows": host.windows,
        "predicted": dict(host.predicted),
        "pending": [[each.number, dict(each.predicted)] for each in host.pending],
    }
    groups = {"usage": host.usage, "instant": host.instant, "horizon": host.horizon}
    arrays = {
        f"{group}{_SEPARATOR}{name}": array
        for group, found in groups.items()
        for name, array in found.items()
    }
    return about, arrays


def host_from(about: Mapping[str, Any], arrays: Mapping[str, Floats]) -> HostPeaks:
    """The host that ``host_record`` described.

    Raises:
        ValueError, KeyError, TypeError: the record is invalid.
    """
    groups: dict[str, dict[str, Floats]] = {"usage": {}, "instant": {}, "horizon": {}}
    for key, array in arrays.items():
        group, _, name = key.partition(_SEPARATOR)
        groups[group][name] = np.asarray(array, dtype=np.float64)
    pending = tuple(PendingPeak(int(number), _numbers(predicted)) for number, predicted in about["pending"])
    return HostPeaks(
        int(about["number"]), int(about["windows"]), groups["usage"], pending, _numbers(about["predicted"]),
        groups["instant"], groups["horizon"],
    )  # fmt: skip


def _track_about(track: Track) -> dict[str, Any]:
    forecast = track.forecast
    return {
        "fitted": track.fitted,
        "fitted_at": track.fitted_at,
        "forecast": None if forecast is None else [forecast.mean, forecast.spread, track.bound, track.scale],
        "level": track.calibration.level,
        "missed": track.missed,
    }


def _track(about: Mapping[str, Any], name: str, arrays: Mapping[str, Floats]) -> Track:
    found = {key: _finite(arrays[f"{name}{_SEPARATOR}{key}"]) for key in ("errors", "losses", "residuals")}
    track = Track(
        fitted=None if about["fitted"] is None else tuple(map(float, about["fitted"])),
        fitted_at=None if about["fitted_at"] is None else int(about["fitted_at"]),
        calibration=Calibration(COVERAGE, float(about["level"]), found["residuals"]),
        errors=found["errors"],
        losses=found["losses"],
        missed=_bits(about["missed"]),
    )
    if about["forecast"] is None:
        return track
    mean, spread, bound, scale = map(float, about["forecast"])
    if not all(map(math.isfinite, (mean, spread, bound))) or not scale > 0:
        raise ValueError(f"the forecast of {name} must have finite values and a scale above 0")
    return replace(track, forecast=SeriesForecast(mean, spread), bound=bound, scale=scale)


def _finite(array: Floats) -> Floats:
    found = np.asarray(array, dtype=np.float64)
    if found.ndim != 1 or not np.isfinite(found).all():
        raise ValueError("the record must contain one-dimensional lists of finite numbers")
    return found


def _bits(missed: object) -> int:
    if not isinstance(missed, int) or not 0 <= missed < 1 << LOSSES:
        raise ValueError(f"the record's misses must be a whole number of at most {LOSSES} bits")
    return missed


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in found.items()}
