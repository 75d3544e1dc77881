"""Evaluates profiles on unseen samples, and merges profiles of several hosts with a champion check.

Samples are pooled (they are relative, so hosts of different size are comparable), and trees are trained on
four fifths of each host's samples. On the held-out fifth of *every* host the result must be no worse than the
best single profile, within a margin and the scatter of the difference. Merging happens only on request.
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
from perphd.predictor.profile.file import Metrics, Profile, ProfileOrigin
from perphd.predictor.profile.training import Trained, metrics_of, train

MARGIN: Final = 1.05
"""Largest ratio of the merged trees' error to the champion's on a host's held-out samples."""
HELD_OUT: Final = 5
"""One in this many rows of each host is held out."""

Trainer: TypeAlias = Callable[..., Trained]


@dataclass(frozen=True, slots=True)
class Contest:
    """Result on one host's held-out samples: log-RMSE of the champion (best single profile) and the merged profile.

    ``scatter``: standard error of the mean difference of their squared errors.
    """

    host: str
    rows: int
    champion: str
    champion_log_rmse: float
    merged_log_rmse: float
    scatter: float

    @property
    def held(self) -> bool:
        """True if the merged profile is good enough here, within margin and chance."""
        most = (MARGIN * self.champion_log_rmse) ** 2 + self.scatter
        return self.merged_log_rmse**2 <= most


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """The merged profile, and its results on every host."""

    profile: Profile
    contests: tuple[Contest, ...]

    @property
    def accepted(self) -> bool:
        """True if the champion check passed on every host."""
        return all(contest.held for contest in self.contests)


def evaluate(profile: Profile, x: Floats, y: Floats, names: Sequence[str]) -> Metrics:
    """Accuracy of a profile on another profile's samples (rows in the same relative units).

    A column missing from the samples counts as most generous; a column missing from the profile is ignored.
    """
    return metrics_of(y, Forest.compile(profile.trees).predict(_columns(profile, x, names)))


def merge(profiles: Sequence[Profile], app: str, *, seed: int = 0, training: Trainer = train) -> Merged:
    """Merge several profiles into one.

    Raises:
        PerphError: there are fewer than two profiles, one occurs twice or is too small, or they measure different
            signals.
    """
    if len(profiles) < 2:
        raise PerphError(f"merging needs at least two profiles, not {len(profiles)}")
    sources = {p.origin.work_source for p in profiles}
    if len(sources) > 1:
        raise PerphError(f"the profiles measure different performance signals: {', '.join(sorted(sources))}")
    for k, p in enumerate(profiles):
        if any(
            p.x.shape == q.x.shape and np.array_equal(p.x, q.x) and np.array_equal(p.y, q.y)
            for q in profiles[:k]
        ):
            raise PerphError(f"{_host(p)} is given twice, which would invalidate the held-out samples")
    names = list(dict.fromkeys(name for p in profiles for name in p.features))
    full = np.array([max(p.high[p.features.index(n)] for p in profiles if n in p.features) for n in names])
    if "load_share" in names:
        full[names.index("load_share")] = 1.0  # if the load did not vary, it was that of the reference
    parts = [(p, *_split(p, names, full)) for p in profiles]
    x = np.concatenate([known_x for _, known_x, _, _, _ in parts])
    y = np.concatenate([known_y for _, _, known_y, _, _ in parts])
    # Equal weight per host, whatever the number of samples.
    weight = np.concatenate([np.full(len(k), len(x) / len(parts) / len(k)) for _, _, k, _, _ in parts])
    signs = {n: s for p in profiles for n, s in zip(p.trees.features, p.trees.monotone, strict=True)}
    monotone = [signs[n] for n in names]
    trained = training(x, y, names, monotone, seed=seed, weight=weight)
    # Champions are trained on the same rows, so that held-out samples are new to them too.
    singles = [training(k, t, names, monotone, seed=seed) for _, k, t, _, _ in parts]
    contests = []
    for p, _, _, held_x, held_y in parts:
        errors = [_missed(single, held_x, held_y) for single in singles]
        ours = _missed(trained, held_x, held_y)
        contests.append(contest(_host(p), [_host(q) for q in profiles], errors, ours))
    every = [np.concatenate([k, h]) for _, k, _, h, _ in parts]
    labels = [np.concatenate([t, u]) for _, _, t, _, u in parts]
    whole_x, whole_y = np.concatenate(every), np.concatenate(labels)
    origin = ProfileOrigin(
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
    scale = tuple(
        float(np.median([p.scale[p.features.index(n)] for p in profiles if n in p.features])) for n in names
    )
    low, high = tuple(whole_x.min(axis=0).tolist()), tuple(whole_x.max(axis=0).tolist())
    made = Profile(origin, trained.metrics, tuple(names), scale, low, high, trained.trees, whole_x, whole_y)
    return Merged(made, tuple(contests))


def contest(host: str, hosts: Sequence[str], errors: Sequence[Floats], ours: Floats) -> Contest:
    """The result on one host's held-out samples, from squared errors (n,) of single and merged models."""
    best = int(np.argmin([np.mean(error) for error in errors]))
    return Contest(
        host=host,
        rows=len(ours),
        champion=hosts[best],
        champion_log_rmse=float(np.sqrt(np.mean(errors[best]))),
        merged_log_rmse=float(np.sqrt(np.mean(ours))),
        scatter=float(np.std(ours - errors[best], ddof=1) / np.sqrt(len(ours))),
    )


def _columns(profile: Profile, x: Floats, names: Sequence[str]) -> Floats:
    rows = np.tile(np.array(profile.high), (len(x), 1))
    for column, name in enumerate(names):
        if name in profile.features:
            rows[:, profile.features.index(name)] = x[:, column]
    return rows


def _split(profile: Profile, names: Sequence[str], full: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Training and held-out rows with labels; a knob not explored on the host had its ``full`` value."""
    x = np.tile(full, (len(profile.y), 1))
    for column, name in enumerate(names):
        if name in profile.features:
            x[:, column] = profile.x[:, profile.features.index(name)]
    y = profile.y
    if len(y) < 2 * HELD_OUT + 20:
        raise PerphError(
            f"{_host(profile)}: {len(y)} samples are too few to merge; {2 * HELD_OUT + 20} are needed"
        )
    held = np.arange(len(y)) % HELD_OUT == 0
    return x[~held], y[~held], x[held], y[held]


def _missed(trained: Trained, x: Floats, y: Floats) -> Floats:
    return np.asarray((Forest.compile(trained.trees).predict(x) - y) ** 2, dtype=np.float64)


def _host(profile: Profile) -> str:
    return f"{profile.origin.app}@{'+'.join(profile.origin.hosts)}"
