"""Bounds between 20 and 60 minutes of a series, alone and with the scores of other series of its family.

python -m tools.bench.forecasts.first_hour [--data FOLDER]

Each of up to ten series of a family represents a host that shares its scores with the others after all of its values.
Losses are pinball losses of the 99 % bound, over the mean change of the whole series.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from perphd.federated.contribution import Contribution
from perphd.federated.hardware import Hardware
from perphd.federated.ledger import of_documents
from perphd.federated.pooling import Asking
from perphd.forecast.calibration import pinball
from perphd.forecast.fleet_scores import contributed, prior
from perphd.forecast.following import EARLY_WINDOWS, LEAST_WINDOWS, change_scale, continued, started
from perphd.forecast.histogram import Floats
from perphd.forecast.ladder import COVERAGE, LOSSES
from tools.bench.forecasts.families import GENERATORS, generated, public

HOSTS: Final = 10
GENERATED, PUBLIC = 420, 1200
"""Length of a generated series, and maximum length of a public one."""
_KEY: Final = ("application", "cpu_usage_cores")
_HARDWARE: Final = Hardware("alike", 8)
_NOW: Final = 1.8e9


@dataclass(frozen=True, slots=True)
class Found:
    """Losses of the acting bound, and whether each value missed it."""

    losses: list[float] = field(default_factory=list)
    missed: list[bool] = field(default_factory=list)

    def cells(self) -> str:
        """Columns of the table."""
        return f"{np.mean(self.losses):.3f} | {np.mean(self.missed):.2%}"


def hour(values: Floats, told: Mapping[str, float] | None, found: Found) -> None:
    """Follow one series through its first hour."""
    series = started(range(EARLY_WINDOWS), values[:EARLY_WINDOWS].tolist(), EARLY_WINDOWS, told)
    scale = change_scale(values)
    for number in range(EARLY_WINDOWS, LEAST_WINDOWS):
        assert series is not None
        value, bound = float(values[number]), series.ladder.bound
        if bound is not None:
            found.losses.append(pinball(COVERAGE, bound, value) / scale)
            found.missed.append(value > bound)
        series = continued(series, [number], [value], prior=told)


def family(series: Sequence[Floats]) -> tuple[Found, Found]:
    """Results alone, and with the scores of others."""
    said = []
    for number, values in enumerate(series):
        whole = started(range(len(values)), values.tolist(), LOSSES)
        assert whole is not None
        said.append(Contribution(f"h{number}", 1, _NOW, _HARDWARE, contributed({_KEY: whole})))
    alone, told = Found(), Found()
    for number, values in enumerate(series):
        others = of_documents(each for each in said if each.contributor != f"h{number}")
        losses = prior(others, _KEY, Asking(f"h{number}", _HARDWARE, _NOW, 86400.0)).losses
        hour(values, None, alone)
        hour(values, losses, told)
    return alone, told


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="tools.bench.forecasts.first_hour")
    parser.add_argument("--data", type=Path, help="folder of the public data sets")
    options = parser.parse_args()
    families = {name: generated(name, HOSTS, GENERATED, 3) for name in GENERATORS}
    if options.data:
        families |= {name: list(found.values()) for name, found in public(options.data, PUBLIC).items()}
    print("| family (series) | loss alone | missed | loss told | missed |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, series in families.items():
        chosen = series[:HOSTS]
        alone, told = family(chosen)
        print(f"| {name} ({len(chosen)}) | {alone.cells()} | {told.cells()} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
