"""Detection delay at equal false alarms: the verdict beside EWMA, CPI2's rule, a CUSUM alone and an LSTM.

All see the same noise. The other rules know its true standard deviation and correlation, and their thresholds are set
by trial to the verdict's own rate of false alarms. The verdict learns its noise without tuning. Like the verdict, they
alarm only at a sample beyond the target.

    EWMA    weight .2 for the newest sample (Roberts 1959)
    CPI2    three of the last five samples beyond a number of standard deviations (Zhang et al. 2013: three in five
            minutes, at one a minute)
    CUSUM   slack of half a standard deviation, whitened, from the reference
    LSTM    the same CUSUM of what an LSTM, trained on an hour of that noise, did not foresee (``lstm``)
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from perphd.admission.settings import PolicySettings
from tools.bench.detector import lstm
from tools.bench.detector.verdict import DAY_S, MARGINS, SETTLES, Cell, Floats, Lanes, noise_of

CELLS: Final = (
    Cell("work", 0.05, 0.6),
    Cell("work", 0.15, 0.0),
    Cell("work", 0.15, 0.6),
    Cell("latency", 0.2, 0.3),
    Cell("latency", 0.3, 0.6),
)
SHIFTS_PCT: Final = (5, 10, 20, 50, 100)
"""Relative growth of the time per unit of work: work falls to 1 / (1 + shift), latency grows to 1 + shift."""
PATIENCE: Final = 300
"""Number of samples after which a shift counts as not found."""
_BLOCK: Final = 600
_WEIGHT, _SLACK, _CLIP = 0.2, 0.5, 3.0


@dataclass(slots=True)
class Others:
    """The other rules on many streams of one cell. Their statistics are in standard deviations."""

    cell: Cell
    lanes: int
    net: lstm.Lstm
    scale: float
    ewma: Floats = field(init=False)
    last: Floats = field(init=False)
    cusum: Floats = field(init=False)
    unforeseen: Floats = field(init=False)
    recent: Floats = field(init=False)
    hidden: Floats = field(init=False)
    memory: Floats = field(init=False)
    foreseen: Floats = field(init=False)
    at: int = 0

    def __post_init__(self) -> None:
        for name in ("ewma", "last", "cusum", "unforeseen", "foreseen"):
            setattr(self, name, np.zeros(self.lanes))
        self.recent = np.zeros((5, self.lanes))
        self.hidden = self.memory = np.zeros((self.lanes, lstm.HIDDEN))

    def step(self, x: Floats) -> dict[str, Floats]:
        """Process one sample of every lane (log units from the reference); returns the statistic of each rule."""
        y = x / self.cell.sd
        z = (y - self.cell.rho * self.last) / math.sqrt(1.0 - self.cell.rho**2)
        self.last = y
        self.ewma = (1.0 - _WEIGHT) * self.ewma + _WEIGHT * y
        self.recent[self.at % len(self.recent)] = y
        self.at += 1
        self.cusum = np.maximum(0.0, self.cusum + np.clip(z, -_CLIP, _CLIP) - _SLACK)
        e = np.clip((y - self.foreseen) / self.scale, -_CLIP, _CLIP)
        self.unforeseen = np.maximum(0.0, self.unforeseen + e - _SLACK)
        seen = np.clip(y, -5.0, 5.0)
        self.foreseen, self.hidden, self.memory, _ = self.net.step(seen, self.hidden, self.memory)
        third = np.partition(self.recent, -3, axis=0)[-3]
        return {"EWMA": self.ewma, "CPI2": third, "CUSUM": self.cusum, "LSTM": self.unforeseen}


RULES: Final = ("verdict", "EWMA", "CPI2", "CUSUM", "LSTM")


@dataclass(frozen=True, slots=True)
class Power:
    """One rule on one noise: false alarms per day, and for each shift the median delay in samples (infinite: most were
    not found) and the share that was found.
    """

    per_day: float
    delays: tuple[float, ...]
    found: tuple[float, ...]


def trained(cell: Cell, seed: int) -> tuple[lstm.Lstm, float]:
    """An LSTM for the standardised noise of a cell, and the scale of its errors."""
    noise = noise_of((cell,), 1, 10_000 + seed)
    row = 1 if cell.channel == "latency" else 0
    series = np.clip(np.array([noise.step()[row, 0] for _ in range(3600)]) / cell.sd, -5.0, 5.0)
    net = lstm.train(series, seed)
    hidden = memory = np.zeros((1, lstm.HIDDEN))
    errors = []
    for now, later in itertools.pairwise(series):
        told, hidden, memory, _ = net.step(np.array([now]), hidden, memory)
        errors.append(abs(float(later) - float(told[0])))
    return net, 1.2533 * float(np.mean(errors))


def of(cell: Cell, per_day: float, days: float, lanes: int, seed: int) -> dict[str, Power]:
    """All rules on one noise, at 1 s; ``days`` of each stream set the thresholds, then the shifts follow."""
    row = 1 if cell.channel == "latency" else 0
    margin = float(MARGINS[row, 0])
    net, scale = trained(cell, seed)
    settings = PolicySettings(false_alarms_per_day=per_day)
    noise, others = noise_of((cell,), lanes, seed), Others(cell, lanes, net, scale)
    verdicts = Lanes(lanes, settings)
    highest: dict[str, list[Floats]] = {name: [] for name in RULES[1:]}
    count = 0
    for at in range(SETTLES + round(days * DAY_S)):
        x = noise.step()
        fresh = verdicts.step(x - MARGINS)
        told = others.step(x[row])
        if at < SETTLES:
            continue
        count += int(fresh.sum())
        for name, values in told.items():
            gated = np.where(x[row] > margin, values, -np.inf)
            if (at - SETTLES) % _BLOCK == 0:
                highest[name].append(gated)
            else:
                highest[name][-1] = np.maximum(highest[name][-1], gated)
    allowed = max(count, 1)
    limits = {name: float(np.sort(np.concatenate(blocks))[-allowed]) for name, blocks in highest.items()}
    delays = {name: [] for name in RULES}  # type: dict[str, list[Floats]]
    for shift in SHIFTS_PCT:
        for name, values in _delays(
            cell, math.log1p(shift / 100.0), limits, net, scale, settings, lanes, seed
        ).items():
            delays[name].append(values)
    rate = count / days / lanes
    return {
        name: Power(
            rate,
            tuple(float(np.median(values)) for values in each),
            tuple(float(np.isfinite(values).mean()) for values in each),
        )
        for name, each in delays.items()
    }


def _delays(
    cell: Cell,
    shift: float,
    limits: dict[str, float],
    net: lstm.Lstm,
    scale: float,
    settings: PolicySettings,
    lanes: int,
    seed: int,
) -> dict[str, Floats]:
    """Samples from the shift to the alarm, of every rule and lane."""
    row = 1 if cell.channel == "latency" else 0
    margin = float(MARGINS[row, 0])
    noise, others = noise_of((cell,), lanes, seed + 1), Others(cell, lanes, net, scale)
    verdicts = Lanes(lanes, settings)
    delays = {name: np.full(lanes, np.inf) for name in RULES}
    for at in range(1800 + PATIENCE):
        x = noise.step() + (shift if at >= 1800 else 0.0)
        verdicts.step(x - MARGINS)
        alarms = {name: (v >= limits[name]) & (x[row] > margin) for name, v in others.step(x[row]).items()}
        if at >= 1800:
            for name, hit in (*alarms.items(), ("verdict", verdicts.degraded)):
                delays[name] = np.where(hit, np.minimum(delays[name], at - 1799), delays[name])
    return delays


def table(cells: tuple[Cell, ...], per_day: float, days: float, lanes: int) -> list[str]:
    """Markdown: every rule on every noise."""
    lines = [
        f"Samples at 1 s; {per_day:g} false alarms a day are configured; all rules have those of the verdict on the "
        f"same noise ({days * lanes:g} days of it). Each entry: median samples to the alarm, share of {lanes} shifts "
        f"found within {PATIENCE}. Targets lie {1 - math.exp(-MARGINS[0, 0]):.0%} of work below, "
        f"{math.expm1(MARGINS[1, 0]):.0%} of latency above the reference: smaller shifts keep them.",
        "",
        "| noise | a day | rule | " + " | ".join(f"{shift} % slower" for shift in SHIFTS_PCT) + " |",
        "| --- " * (3 + len(SHIFTS_PCT)) + "|",
    ]
    for cell in cells:
        for name, power in of(cell, per_day, days, lanes, 0).items():
            row = " | ".join(
                f"{d:g}, {f:.0%}" if math.isfinite(d) else f"-, {f:.0%}"
                for d, f in zip(power.delays, power.found, strict=True)
            )
            where = f"{cell.channel}, sd {cell.sd:g}, rho {cell.rho:g}"
            lines.append(f"| {where} | {power.per_day:.2f} | {name} | {row} |")
        print("\n".join(lines[-len(RULES) :]), flush=True)
    return lines
