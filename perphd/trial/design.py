"""The design of a trial: blocks of observe and enforce in random order, and its metrics, all fixed before it
begins.

Blocks come in pairs, one of each mode, and a fair coin decides which is first. Thus slow changes of the load
(day and night) affect both modes alike, and the coin alone justifies the statistics, whatever the noise.

Before the first pair lies one block in observe, the run-in. It counts towards no effect; the guard needs it
as a reference.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from perphd.domain.workload import Mode

MIN_PAIRS: Final = 6
"""Minimum number of pairs for significance at 5 %: six fair coins agree with probability 1/32, five with 1/16."""
MIN_BLOCK_S: Final = 60.0
MAX_BLOCK_S: Final = 4 * 3600.0
MAX_HOURS: Final = 24.0 * 31
DEFAULT_WASHOUT_S: Final = 120.0
WASHOUT_SHARE: Final = 0.25
"""Washout of short blocks as a share of the block; long blocks use ``DEFAULT_WASHOUT_S``."""
MAX_WASHOUT_SHARE: Final = 0.5
DEFAULT_BOUND_PCT: Final = 25.0
MIN_BOUND_PCT: Final = 5.0
MAX_BOUND_PCT: Final = 400.0
MAX_SEED: Final = 2**32 - 1


class Signal(StrEnum):
    """The quantity that a metric measures."""

    DELAY = "delay"  # an LRA's delay; lower is better
    WORK = "work"  # an LRA's work rate; higher is better
    BATCH = "batch"  # CPU use of all batch together; higher is better


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, fixed before the trial begins.

    ``source``: the source that measures it; readings from other sources do not count. ``workload``: empty for
    batch, whose metric is the sum over all batch workloads.
    """

    signal: Signal
    workload: str
    source: str

    @property
    def name(self) -> str:
        """The metric's name in reports, such as ``db.delay`` or ``batch.work``."""
        return "batch.work" if self.signal is Signal.BATCH else f"{self.workload}.{self.signal}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything fixed when a trial starts.

    ``schedule``: modes of the blocks after the run-in. ``left_out``: workloads whose own mode is observe, never
    enforced. ``bound_pct``: harm that ends the trial. ``configured``: the configuration file's modes at the start;
    empty: unknown.
    """

    trial: str
    began_unix_s: float
    block_s: float
    washout_s: float
    seed: int
    schedule: tuple[Mode, ...]
    metrics: tuple[Metric, ...]
    left_out: tuple[str, ...]
    bound_pct: float
    policy: str
    version: str
    by: str
    configured: str = ""

    @property
    def lras(self) -> tuple[str, ...]:
        """The LRAs that are measured."""
        return tuple(dict.fromkeys(m.workload for m in self.metrics if m.workload))

    @property
    def blocks(self) -> int:
        """Number of blocks without the run-in."""
        return len(self.schedule)

    @property
    def ends_unix_s(self) -> float:
        """End of the last block."""
        return self.starts_unix_s(self.blocks + 1)

    def starts_unix_s(self, number: int) -> float:
        """Start of a block; number 0 is the run-in."""
        return self.began_unix_s + number * self.block_s

    def mode(self, number: int) -> Mode:
        """The mode of a block; the run-in observes."""
        return self.schedule[number - 1] if number else Mode.OBSERVE

    def number(self, now_unix_s: float) -> int:
        """The number of the block at this time; ``blocks + 1`` after the last one."""
        found = int((now_unix_s - self.began_unix_s) // self.block_s)
        return max(0, min(found, self.blocks + 1))


class DesignRefused(ValueError):
    """An invalid design. ``key``: the option; ``allowed``: its allowed values."""

    def __init__(self, key: str, problem: str, allowed: str) -> None:
        super().__init__(problem)
        self.key, self.allowed = key, allowed


@dataclass(frozen=True, slots=True)
class Request:
    """An operator's request, validated. ``washout_s`` None: a quarter of the block, at most two minutes.

    Raises:
        DesignRefused: a value is out of bounds, or the time holds too few pairs.
    """

    hours: float
    block_s: float = 600.0
    washout_s: float | None = None
    bound_pct: float = DEFAULT_BOUND_PCT
    seed: int | None = None

    def __post_init__(self) -> None:
        _within("hours", self.hours, 0.0, MAX_HOURS)
        _within("block_s", self.block_s, MIN_BLOCK_S, MAX_BLOCK_S)
        _within("bound_pct", self.bound_pct, MIN_BOUND_PCT, MAX_BOUND_PCT)
        if self.washout_s is not None:
            _within("washout_s", self.washout_s, 0.0, MAX_WASHOUT_SHARE * self.block_s)
        if self.seed is not None:
            _within("seed", self.seed, 0, MAX_SEED)
        if self.pairs < MIN_PAIRS:
            need_h = (2 * MIN_PAIRS + 1) * self.block_s / 3600.0
            raise DesignRefused(
                "hours",
                f"{self.hours:g} h hold {self.pairs} pairs of blocks of {self.block_s:g} s; {MIN_PAIRS} are needed",
                f"at least {need_h:.3g} h with blocks of this length",
            )

    @property
    def pairs(self) -> int:
        """Number of pairs of blocks that fit after the run-in."""
        return max(0, (int(self.hours * 3600.0 // self.block_s) - 1) // 2)

    @property
    def washout(self) -> float:
        """The washout in seconds."""
        if self.washout_s is not None:
            return self.washout_s
        return min(DEFAULT_WASHOUT_S, WASHOUT_SHARE * self.block_s)


def schedule(pairs: int, seed: int) -> tuple[Mode, ...]:
    """Pairs of one block each, in an order decided by a fair coin."""
    coin = random.Random(seed)
    modes: list[Mode] = []
    for _ in range(pairs):
        first = Mode.ENFORCE if coin.random() < 0.5 else Mode.OBSERVE
        modes += (first, Mode.OBSERVE if first is Mode.ENFORCE else Mode.ENFORCE)
    return tuple(modes)


def _within(key: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high or not value == value:
        raise DesignRefused(key, f"{value:g} is not accepted", f"{low:g} to {high:g}")
