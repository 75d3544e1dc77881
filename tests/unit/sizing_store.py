"""Store files with known series for the tests of perphctl size, forecast and headroom."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from perphd.domain.sample import READINGS
from perphd.monitor.schema import open_database

GIB: Final = 1 << 30
START_S: Final = 60.0 * 20_000_000
EVERY_S: Final = 10.0
PER_WINDOW: Final = 6

Series = Callable[[int], float]
"""The value in a window, by its number from the start."""


def constant(value: float) -> Series:
    return lambda window: value


def daily(low: float, high: float) -> Series:
    return lambda window: low + (high - low) * (0.5 - 0.5 * math.cos(2 * math.pi * window / 1440))


def spike(value: float, at: int, peak: float) -> Series:
    return lambda window: peak if window == at else value


def made(path: Path, windows: int, workloads: Mapping[str, Mapping[str, Series]], first: int = 0) -> Path:
    """A store of complete windows and half a window more. Each window's greatest value is in its third sample."""
    connection = open_database(path)
    connection.execute("BEGIN")
    for i in range(windows * PER_WINDOW + PER_WINDOW // 2):
        window = first + i // PER_WINDOW
        share = 1.0 if i % PER_WINDOW == 2 else 0.5
        for name, series in workloads.items():
            columns = [column for column in READINGS if column in series]
            places = ", ".join("?" * (5 + len(columns)))
            connection.execute(
                f"INSERT INTO samples ({', '.join(['wall_s', 'at_s', 'interval_s', 'workload', 'quality', *columns])})"
                f" VALUES ({places})",
                (
                    START_S + first * 60.0 + i * EVERY_S,
                    i * EVERY_S,
                    EVERY_S,
                    name,
                    "",
                    *(share * series[column](window) for column in columns),
                ),
            )
    connection.execute("COMMIT")
    connection.close()
    return path


def usual(cpu: Series, memory: Series) -> dict[str, Series]:
    """The two readings that are sized."""
    return {"cpu_usage_cores": cpu, "memory_working_set_bytes": memory}
