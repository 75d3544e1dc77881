"""Accuracy of the acting model by phase, coverage of its bound, and share of steps with the wrong sign.

python -m tools.bench.predictor.following --out out/bench/predictor [--seeds 8] [--length 1200] [--followers A;B]
    [--node]

Writes following.jsonl (a line per run; existing runs are not repeated) and following.md.
"""

from __future__ import annotations

import argparse
import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perphd.domain.policy import ModelContext
from perphd.predictor import features
from tools.bench.predictor.followers import BAR, FOLLOWERS, OURS, Follower, Profile, Rows, measured
from tools.bench.predictor.worlds import (
    CORES,
    NOISE,
    QUIET,
    THROTTLES,
    WEIGHTS,
    Change,
    LiveStream,
    Place,
    drawn,
    live_stream,
    surfaces,
)  # fmt: skip

Floats = NDArray[np.float64]

PHASES: Final = ("first 60", "settled", "0-50", "50-200", "late")
"""Phases: samples 0 to 60 beside batch; from 200 to the change; the first samples after the change; from 200 after it
to the end.
"""
PROFILE_ROWS: Final = 240
_WRONG, _VERY_WRONG = 1e-9, 0.01


@dataclass(frozen=True, slots=True)
class Followed:
    """One contestant along one stream.

    Attributes:
        near: log-RMSE nearby, in each of ``PHASES``.
        held: share of near truths at or above the 95 % bound: in total, and in the 200 samples after the change. NaN:
            it has no bound.
        against: share of one-unit steps with the wrong sign, and of those wrong by more than 1 %.
    """

    near: tuple[float, ...]
    held: tuple[float, float]
    against: tuple[float, float]


def profile(change: Change, rng: np.random.Generator) -> Profile:
    """Rows that a profile of the application would give, before its change."""
    found, priors, corrections = [], [], []
    for _ in range(PROFILE_ROWS):
        place = Place(
            bool(rng.random() < 0.4), int(rng.integers(1, CORES)), int(rng.integers(0, len(WEIGHTS))),
            int(rng.integers(0, 11)), int(rng.integers(0, len(THROTTLES))),
        )  # fmt: skip
        context = ModelContext(float(rng.uniform(0.15, 0.75)) * CORES, float(CORES), float(CORES))
        allocation = place.allocation()
        rows = Rows.of([allocation], context)
        truth = float(change.before.log_ratio([allocation], context)[0])
        found.append(features.features([allocation], context)[0])
        priors.append(float(rows.prior[0]))
        corrections.append(truth + NOISE * float(rng.standard_normal()) - float(rows.prior[0]))
    return Profile(np.array(found), np.array(priors), np.array(corrections))


def follow(follower: Follower, stream: LiveStream) -> Followed:
    """Learn and predict, sample by sample."""
    squares: dict[str, list[float]] = {phase: [] for phase in PHASES}
    held: list[float] = []
    held_after: list[float] = []
    steps = wrong = very = 0
    for i, seen in enumerate(stream.observations):
        follower.observe(seen, measured(seen))
        asked = stream.asked.get(i)
        if asked is None:
            continue
        value, bound = follower.ask(asked.allocations, asked.context)
        phase = phase_of(i, stream.changed_at)
        if phase:
            squares[phase].append(float(np.mean((value - asked.truth) ** 2)))
        if bound is not None:
            kept = float(np.mean(asked.truth >= bound - _WRONG))
            held.append(kept)
            if 0 <= i - stream.changed_at < 200:
                held_after.append(kept)
        worse, better = asked.steps
        if worse and len(held) % 3 == 0:
            both, _ = follower.ask([*worse, *better], asked.context)
            fell = both[: len(worse)] - both[len(worse) :]
            steps += len(worse)
            wrong += int(np.sum(fell > _WRONG))
            very += int(np.sum(fell > _VERY_WRONG))
    near = tuple(float(np.sqrt(np.mean(squares[p]))) if squares[p] else float("nan") for p in PHASES)
    return Followed(near, (_mean(held), _mean(held_after)), (wrong / max(steps, 1), very / max(steps, 1)))


def phase_of(i: int, changed_at: int) -> str:
    """The one of ``PHASES`` in which the i-th observation lies; empty: none."""
    live, after = i - QUIET, i - changed_at
    if after >= 0:
        return "0-50" if after < 50 else "50-200" if after < 200 else "late"
    return "first 60" if live < 60 else "settled" if live >= 200 else ""


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


# -- the table ------------------------------------------------------------------------------------------------

FAMILIES: Final = {"drawn": "worlds drawn from public data", "bench": "surfaces of the predictor bench"}


@dataclass(frozen=True, slots=True)
class Run:
    """One contestant along one stream: its identification and its results."""

    stream: str
    seed: int
    follower: str
    warm: bool
    near: tuple[float, ...]
    held: tuple[float, float]
    against: tuple[float, float]

    @property
    def family(self) -> str:
        """Of ``FAMILIES``."""
        return "drawn" if self.stream.startswith("drawn") else "bench"


def main() -> int:
    """Measure missing results, write, print."""
    parser = argparse.ArgumentParser(
        prog="tools.bench.predictor.following", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench/predictor"), help="folder of the results")
    parser.add_argument("--seeds", type=int, default=8, help="repetitions of every stream")
    parser.add_argument(
        "--length", type=int, default=1200, help="samples beside batch, the change in the middle"
    )
    parser.add_argument(
        "--followers", default=";".join(FOLLOWERS), help="contestants, separated by semicolons"
    )
    parser.add_argument("--node", action="store_true", help="the simulated MySQL as well: slow")
    options = parser.parse_args()
    names = options.followers.split(";")
    if unknown := set(names) - set(FOLLOWERS):
        parser.error(f"--followers {';'.join(sorted(unknown))}: unknown (allowed: {'; '.join(FOLLOWERS)})")
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "following.jsonl"
    runs = [Run(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
    there = {(run.stream, run.seed, run.follower, run.warm) for run in runs}
    with path.open("a") as file:
        for seed in range(options.seeds):
            for change in [*surfaces(options.node), *drawn(seed)]:
                keys = [(change.name, seed, name, warm) for name in names for warm in (True, False)]
                if all(key in there for key in keys):
                    continue
                rng = np.random.default_rng([seed, zlib.crc32(change.name.encode())])
                stream = live_stream(change, rng, options.length)
                start = profile(change, rng)
                for key in keys:
                    follower = None if key in there else FOLLOWERS[key[2]](start if key[3] else None)
                    if follower is None:
                        continue
                    found = follow(follower, stream)
                    run = Run(*key, found.near, found.held, found.against)
                    runs.append(run)
                    file.write(json.dumps(asdict(run)) + "\n")
                    file.flush()
    text = markdown(runs)
    (options.out / "following.md").write_text(text)
    print(text)
    return 0


def markdown(runs: Sequence[Run]) -> str:
    """The tables, and the comparison with the requirements."""
    lines = []
    for family, title in FAMILIES.items():
        for warm in (True, False):
            chosen = [run for run in runs if run.family == family and run.warm == warm]
            if not chosen:
                continue
            streams = len({(run.stream, run.seed) for run in chosen})
            start = "warm, from 240 rows of a profile" if warm else "from nothing"
            lines += [f"### {title[0].upper()}{title[1:]}, {start}", ""]
            lines += [
                f"Mean log-RMSE near by of {streams} streams ({len({run.seed for run in chosen})} seeds).",
                "",
            ]
            lines += [
                f"| learner | streams | {' | '.join(PHASES)} | bound held | after change | against sign | > 1 % |",
                "| --- | ---: |" + " ---: |" * (len(PHASES) + 4),
            ]
            lines += [_row(name, [run for run in chosen if run.follower == name]) for name in FOLLOWERS]
            lines += ["", *_verdict(chosen), ""]
    return "\n".join(lines).rstrip() + "\n"


def _row(name: str, runs: Sequence[Run]) -> str:
    if not runs:
        return f"| {name} | 0 |" + " |" * (len(PHASES) + 4)
    near = [_mean([run.near[k] for run in runs]) for k in range(len(PHASES))]
    held = [_mean([run.held[k] for run in runs]) for k in (0, 1)]
    against = [_mean([run.against[k] for run in runs]) for k in (0, 1)]
    cells = [f"{value:.3f}" for value in near]
    cells += ["" if math.isnan(value) else f"{value:.1%}" for value in held]
    cells += [f"{value:.1%}" for value in against]
    return f"| {name} | {len(runs)} | " + " | ".join(cells) + " |"


def _verdict(runs: Sequence[Run]) -> list[str]:
    """Error of the acting model over the reference's, by phase, on their common streams."""
    ours = {(run.stream, run.seed): run for run in runs if run.follower == OURS}
    bar = {(run.stream, run.seed): run for run in runs if run.follower == BAR}
    both = [key for key in ours if key in bar]
    if not both:
        return []
    told = []
    for k, phase in enumerate(PHASES):
        ratio = _mean([ours[key].near[k] for key in both]) / _mean([bar[key].near[k] for key in both])
        nearer = sum(ours[key].near[k] <= bar[key].near[k] for key in both)
        told.append(f"{phase} {ratio:.2f} ({nearer} of {len(both)})")
    return [
        f"Stages over {BAR}, by the means (and on how many streams it is at least as near): {', '.join(told)}."
    ]


if __name__ == "__main__":
    raise SystemExit(main())
