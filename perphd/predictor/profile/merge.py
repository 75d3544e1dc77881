"""Judging a profile on samples that it has not seen, and one profile out of several hosts' with a champion check.

Merging is the first step towards models that hosts share: samples are pooled (they are relative, so that hosts of
different size can be compared), trees are trained on nine tenths of each host's, and the result must do no worse on
the held-out tenths of *every* host than the best single profile does there, within a margin. Nothing of this is ever
done by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from perphd import __version__
from perphd.domain.errors import PerphError
from perphd.predictor.ogbrt.forest import Forest
from perphd.predictor.ogbrt.trees import Floats
from perphd.predictor.profile.file import Metrics, Origin, Profile
from perphd.predictor.profile.training import Trained, metrics_of, train

MARGIN: Final = 1.05
"""Merged trees may miss a host's held-out samples by so many times what its champion misses."""
HELD_OUT: Final = 10
"""Every so manieth row of each host is held out."""

Trainer: TypeAlias = Callable[..., Trained]


@dataclass(frozen=True, slots=True)
class Contest:
    """One host's held-out samples: log-RMSE of its champion (the best single profile there) and of the merged one."""

    host: str
    rows: int
    champion: str
    champion_log_rmse: float
    merged_log_rmse: float

    @property
    def held(self) -> bool:
        """The merged one is good enough here."""
        return self.merged_log_rmse <= MARGIN * self.champion_log_rmse


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """What came out, and how it did on every host."""

    profile: Profile
    contests: tuple[Contest, ...]

    @property
    def accepted(self) -> bool:
        """The champion check is passed on every host."""
        return all(contest.held for contest in self.contests)


def evaluate(profile: Profile, x: Floats, y: Floats, names: Sequence[str]) -> Metrics:
    """How well a profile says samples of another (rows relative as its own).

    A column that the samples lack is taken at its most generous; one that the profile lacks does not count.
    """
    return metrics_of(y, Forest.compile(profile.trees).predict(_columns(profile, x, names)))


def merge(profiles: Sequence[Profile], app: str, *, seed: int = 0, training: Trainer = train) -> Merged:
    """One profile of several.

    Raises:
        PerphError: fewer than two, profiles that have no common knob, or whose performance is not the same signal.
    """
    if len(profiles) < 2:
        raise PerphError("merging takes at least two profiles")
    sources = {p.origin.work_source for p in profiles}
    if len(sources) > 1:
        raise PerphError(f"their performance is not the same: {', '.join(sorted(sources))}")
    names = [n for n in profiles[0].features if all(n in p.features for p in profiles)]
    if not names:
        raise PerphError("they have no knob in common")
    parts = [(p, *_split(p, names)) for p in profiles]
    x = np.concatenate([known_x for _, known_x, _, _, _ in parts])
    y = np.concatenate([known_y for _, _, known_y, _, _ in parts])
    # Every host counts alike, however much was measured there.
    weight = np.concatenate([np.full(len(k), len(x) / len(parts) / len(k)) for _, _, k, _, _ in parts])
    signs = dict(zip(profiles[0].trees.features, profiles[0].trees.monotone, strict=True))
    monotone = [signs[n] for n in names]
    trained = training(x, y, names, monotone, seed=seed, weight=weight)
    # Champions are trained on the same nine tenths, else they would have seen what they are asked.
    singles = [training(k, t, names, monotone, seed=seed) for _, k, t, _, _ in parts]
    contests = []
    for p, _, _, held_x, held_y in parts:
        errors = [_log_rmse(single, held_x, held_y) for single in singles]
        best = int(np.argmin(errors))
        contests.append(
            Contest(
                _host(p), len(held_y), _host(profiles[best]), errors[best], _log_rmse(trained, held_x, held_y)
            )
        )
    every = [np.concatenate([k, h]) for _, k, _, h, _ in parts]
    labels = [np.concatenate([t, u]) for _, _, t, _, u in parts]
    whole_x, whole_y = np.concatenate(every), np.concatenate(labels)
    origin = Origin(
        app=app,
        hosts=tuple(dict.fromkeys(host for p in profiles for host in p.origin.hosts)),
        perphd_version=__version__,
        made_at_unix_s=round(time.time(), 0),
        work_source=profiles[0].origin.work_source,
        engine=trained.engine,
        rounds=trained.rounds,
        seed=seed,
        grid_cells=max(p.origin.grid_cells for p in profiles),
        measured=len(whole_y),
        note="merged from " + ", ".join(f"{p.origin.app} ({'+'.join(p.origin.hosts)})" for p in profiles),
    )
    scale = tuple(float(np.median([p.scale[p.features.index(n)] for p in profiles])) for n in names)
    low, high = tuple(whole_x.min(axis=0).tolist()), tuple(whole_x.max(axis=0).tolist())
    made = Profile(origin, trained.metrics, tuple(names), scale, low, high, trained.trees, whole_x, whole_y)
    return Merged(made, tuple(contests))


def _columns(profile: Profile, x: Floats, names: Sequence[str]) -> Floats:
    rows = np.tile(np.array(profile.high), (len(x), 1))
    for column, name in enumerate(names):
        if name in profile.features:
            rows[:, profile.features.index(name)] = x[:, column]
    return rows


def _split(profile: Profile, names: Sequence[str]) -> tuple[Floats, Floats, Floats, Floats]:
    """Known and held-out rows with labels; where a knob is left out, only rows that grant it in full remain."""
    index = [profile.features.index(n) for n in names]
    left = [i for i in range(len(profile.features)) if i not in index]
    full = np.array(profile.high)
    span = full - np.array(profile.low)
    keep = np.all(profile.x[:, left] >= full[left] - 0.25 * span[left] - 1e-9, axis=1)
    x, y = profile.x[keep][:, index], profile.y[keep]
    if len(y) < 2 * HELD_OUT + 20:
        raise PerphError(
            f"{_host(profile)}: {len(y)} samples are left of {profile.origin.app}: too few to merge"
        )
    held = np.arange(len(y)) % HELD_OUT == 0
    return x[~held], y[~held], x[held], y[held]


def _log_rmse(trained: Trained, x: Floats, y: Floats) -> float:
    return float(np.sqrt(np.mean((Forest.compile(trained.trees).predict(x) - y) ** 2)))


def _host(profile: Profile) -> str:
    return f"{profile.origin.app}@{'+'.join(profile.origin.hosts)}"
