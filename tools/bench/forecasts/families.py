"""Series to forecast: the generators of the published re-test, and public series.

The five generated families are those of Pace's utilisation generator ("author") and of its re-test. All series are
scaled so that the reservation is 1: a public series is divided by 1.25 times its greatest value.
"""

from __future__ import annotations

import csv
import io
import lzma
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from perphd.forecast.histogram import Floats

RESERVATION_OVER_PEAK: Final = 1.25
LEAST_VALUES: Final = 500
MEMORY_BATCH_CDF: Final = (
    (0.01, 0.22), (0.05, 0.28), (0.10, 0.35), (0.20, 0.50), (0.30, 0.71), (0.40, 0.83), (0.50, 0.87), (0.60, 0.93),
    (0.70, 0.95), (0.80, 0.97), (0.90, 0.99),
)  # fmt: skip
"""Ratio of used to requested memory of batch in the Google trace of 2011: (ratio, share of records up to it)."""


def author(random: np.random.Generator, windows: int) -> Floats:
    """Pace's generator at 1 Hz, as window maxima: rare normal jumps, summed, smoothed, scaled to a drawn mean."""
    seconds = 60 * windows
    jumps = random.normal(size=seconds) * (random.random(seconds) < 0.01)
    walk = np.convolve(np.cumsum(jumps), np.full(10, 0.1), "valid")
    walk = np.concatenate((np.full(seconds - len(walk), walk[0]), walk))
    shape = (walk - walk.min()) / max(1e-9, float(np.ptp(walk)))
    shares = [0.0, *(share for _, share in MEMORY_BATCH_CDF), 1.0]
    ratios = [0.0, *(ratio for ratio, _ in MEMORY_BATCH_CDF), 1.0]
    wanted = max(0.02, float(np.interp(random.random(), shares, ratios)))
    low, high = 0.0, 1e4
    for _ in range(60):
        factor = (low + high) / 2
        low, high = (factor, high) if np.mean(np.clip(shape * factor, 0, 1)) < wanted else (low, factor)
    return np.asarray(np.clip(shape * high, 0, 1).reshape(windows, 60).max(axis=1), dtype=np.float64)


def sawtooth(random: np.random.Generator, windows: int) -> Floats:
    """Memory of a garbage-collected process: a ramp and a fall, period 5 to 12 windows."""
    period = int(random.integers(5, 13))
    low, high = random.uniform(0.1, 0.3), random.uniform(0.5, 0.8)
    phase = (np.arange(windows) + random.integers(period)) % period
    return np.asarray(
        low + (high - low) * phase / (period - 1) + random.normal(0, 0.01, windows), dtype=np.float64
    )


def sine(random: np.random.Generator, windows: int) -> Floats:
    """A smooth load, period 30 to 90 windows."""
    period, phase = random.uniform(30, 90), random.uniform(0, 2 * np.pi)
    wave = 0.4 + 0.25 * np.sin(2 * np.pi * np.arange(windows) / period + phase)
    return np.asarray(wave + random.normal(0, 0.015, windows), dtype=np.float64)


def ramp(random: np.random.Generator, windows: int) -> Floats:
    """A heap that fills and then stays full."""
    top, length = random.uniform(0.4, 0.8), int(windows * random.uniform(0.2, 0.6))
    rise = np.minimum(1.0, np.arange(windows) / length)
    return np.asarray(0.1 + (top - 0.1) * rise + random.normal(0, 0.01, windows), dtype=np.float64)


def bursts(random: np.random.Generator, windows: int) -> Floats:
    """A flat load with memoryless bursts: 3 % of windows, half the reservation."""
    burst = 0.5 * (random.random(windows) < 0.03)
    return np.asarray(0.25 + burst + random.normal(0, 0.01, windows), dtype=np.float64)


GENERATORS: Final = {"author": author, "saw-tooth": sawtooth, "sine": sine, "ramp": ramp, "bursts": bursts}


def generated(family: str, series: int, windows: int, seed: int) -> list[Floats]:
    """Series of one generated family."""
    random = np.random.default_rng([seed, list(GENERATORS).index(family)])
    return [np.clip(GENERATORS[family](random, windows), 0, 1) for _ in range(series)]


def public(folder: Path, longest: int, skipped: int = 0) -> dict[str, dict[str, Floats]]:
    """The public series by family and name, over their reservation.

    ``longest`` values of each after the first ``skipped``. A series or a family with too few values is left out.
    """
    found = {
        "nab-aws": _nab(folder, "realAWSCloudwatch"),
        "nab-known-cause": _nab(folder, "realKnownCause"),
        "nab-traffic": _nab(folder, "realTraffic"),
        "nab-tweets": _nab(folder, "realTweets"),
        "fleets": _fleets(folder),
        "alibaba-machines": _machines(folder),
    }
    parts = {
        family: {name: values[skipped : skipped + longest] for name, values in series.items()}
        for family, series in found.items()
    }
    long = {
        family: {name: scaled(values) for name, values in series.items() if len(values) >= LEAST_VALUES}
        for family, series in parts.items()
    }
    return {family: series for family, series in long.items() if series}


def scaled(values: Floats) -> Floats:
    """A series over its reservation."""
    return np.asarray(
        values / (RESERVATION_OVER_PEAK * max(1e-9, float(np.max(np.abs(values))))), dtype=np.float64
    )


def _nab(folder: Path, part: str) -> dict[str, Floats]:
    found = {}
    with tarfile.open(folder / "nab/nab_v1.1_data_labels.tar.xz") as archive:
        for member in archive.getmembers():
            handle = archive.extractfile(member) if member.name.startswith(f"data/{part}/") else None
            if handle is not None and member.name.endswith(".csv"):
                rows = csv.DictReader(io.TextIOWrapper(handle, "utf-8"))
                found[Path(member.name).stem] = np.array([float(row["value"]) for row in rows])
    return dict(sorted(found.items()))


def _columns(path: Path, names: Mapping[str, str], every: int = 1) -> dict[str, Floats]:
    with path.open(encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    found = {}
    for column, name in names.items():
        values = np.array([float(row[column]) for row in rows if row[column]])
        whole = values[: len(values) - len(values) % every]
        found[name] = np.asarray(whole.reshape(-1, every).max(axis=1), dtype=np.float64)
    return found


def _fleets(folder: Path) -> dict[str, Floats]:
    return {
        **_columns(
            folder / "alibaba2018/machine_usage_day_1_fleet_mean_10s.csv",
            {"cpu_util_percent": "alibaba cpu", "mem_util_percent": "alibaba memory", "net_in": "alibaba network",
             "disk_io_percent": "alibaba disk"},
            every=6,
        ),
        **_columns(
            folder / "google2019/instance_usage_grouped_300_seconds_month.csv",
            {"avg_cpu": "google cpu", "avg_mem": "google memory", "avg_cycles_per_instruction": "google cpi"},
        ),
        **_columns(
            folder / "azure_traces/azure_v2_fleet_cpu_mem_300s.csv",
            {"cpu_usage": "azure cpu", "assigned_mem": "azure memory"},
        ),
    }  # fmt: skip


def machines(folder: Path, column: str) -> dict[str, Floats]:
    """One column of every machine of the Alibaba trace, in the order of time."""
    path = folder / "alibaba2018/machine_usage_rows_with_mem_gps_mkpi.csv.xz"
    rows: dict[str, list[tuple[float, float]]] = {}
    with lzma.open(path, "rt", encoding="utf-8") as handle:
        for row in csv.DictReader(handle):
            if row[column]:
                rows.setdefault(row["machine_id"], []).append((float(row["time_stamp"]), float(row[column])))
    return {name: np.array([value for _, value in sorted(points)]) for name, points in sorted(rows.items())}


def _machines(folder: Path) -> dict[str, Floats]:
    return {
        f"{name} {column}": values
        for column in ("cpu_util_percent", "mem_util_percent", "mem_gps")
        for name, values in machines(folder, column).items()
    }
