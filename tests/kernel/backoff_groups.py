"""The victim's and the hog's control groups of the tests of back-off, and what the victim got in its best round."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from perphd.qos.contention import MAX_ROUNDS, ROUND_S, SAMPLES

NAMES = ("", "victim", "hog")
"""The group above both, and theirs."""


def make_groups(folders: Callable[[str], Sequence[str]]) -> None:
    """Make them. ``folders``: the directories of a group by its name."""
    for name in NAMES:
        for path in folders(name):
            Path(path).mkdir(exist_ok=True)


def remove_groups(folders: Callable[[str], Sequence[str]]) -> None:
    """Remove them, once their processes have gone."""
    for name in reversed(NAMES):
        for path in folders(name):
            for _ in range(50):
                try:
                    os.rmdir(path)
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.1)


def best_round(rates: Sequence[tuple[float, float]], began_s: float) -> float:
    """The greatest median over a round's time of what the victim moved, in the first three rounds.

    Back-off that succeeds in its first round ends, and looks whether the hog is still one, before the third is over.
    ``rates``: times, and bytes/s. ``began_s``: when the hog began.
    """
    rounds_s = began_s + SAMPLES + 2.0 + (MAX_ROUNDS - 1) * ROUND_S
    rounds = [
        [rate for at, rate in rates if start < at <= start + ROUND_S]
        for start, _ in rates
        if began_s < start <= rounds_s
    ]
    return max(statistics.median(each) for each in rounds if each)
