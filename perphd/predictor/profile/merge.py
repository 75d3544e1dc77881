"""Judging a profile on samples that it has not seen, and one profile out of several hosts' with a champion check.

Merging is the first step towards models that hosts share: samples are pooled (they are relative, so that hosts of
different size can be compared), trees are trained on four fifths of each host's, and the result must do no worse on
the held-out fifths of *every* host than the best single profile does there, within a margin and the scatter of the
difference. Nothing of this is ever
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
HELD_OUT: Final = 5
"""Every so manieth row of each host is held out."""

Trainer: TypeAlias = Callable[..., Trained]


@dataclass(frozen=True, slots=True)
class Contest:
    """One host's held-out samples: log-RMSE of its champion (the best single profile there) and of the merged one.

    ``scatter``: standard error of the mean difference of their squared errors, sample by sample.
    """

    host: str
    rows: int
    champion: str
    champion_log_rmse: float
    merged_log_rmse: float
    scatter: float

    @property
    def held(self) -> bool:
        """The merged one is good enough here: no worse than the margin and what chance explains."""
        most = (MARGIN * self.champion_log_rmse) ** 2 + self.scatter
        return self.merged_log_rmse**2 <= most


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
        PerphError: fewer than two, one that is given twice or is too small, or performance that is not the same signal.
    """
    if len(profiles) < 2:
        raise PerphError("merging takes at least two profiles")
    sources = {p.origin.work_source for p in profiles}
    if len(sources) > 1:
        raise PerphError(f"their performance is not the same: {', '.join(sorted(sources))}")
    for k, p in enumerate(profiles):
        if any(
            p.x.shape == q.x.shape and np.array_equal(p.x, q.x) and np.array_equal(p.y, q.y)
            for q in profiles[:k]
        ):
            raise PerphError(f"{_host(p)} is given twice: nothing would be held out of it")
    names = list(dict.fromkeys(name for p in profiles for name in p.features))
    full = np.array([max(p.high[p.features.index(n)] for p in profiles if n in p.features) for n in names])
    if "load_share" in names:
        full[names.index("load_share")] = 1.0  # where it did not vary, it was that of the reference
    parts = [(p, *_split(p, names, full)) for p in profiles]
    x = np.concatenate([known_x for _, known_x, _, _, _ in parts])
    y = np.concatenate([known_y for _, _, known_y, _, _ in parts])
    # Every host counts alike, however much was measured there.
    weight = np.concatenate([np.full(len(k), len(x) / len(parts) / len(k)) for _, _, k, _, _ in parts])
    signs = {n: s for p in profiles for n, s in zip(p.trees.features, p.trees.monotone, strict=True)}
    monotone = [signs[n] for n in names]
    trained = training(x, y, names, monotone, seed=seed, weight=weight)
    # Champions are trained on the same rows, else they would have seen what they are asked.
    singles = [training(k, t, names, monotone, seed=seed) for _, k, t, _, _ in parts]
    contests = []
    for p, _, _, held_x, held_y in parts:
        errors = [_missed(single, held_x, held_y) for single in singles]
        ours = _missed(trained, held_x, held_y)
        contests.append(contest(_host(p), [_host(q) for q in profiles], errors, ours))
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
    scale = tuple(
        float(np.median([p.scale[p.features.index(n)] for p in profiles if n in p.features])) for n in names
    )
    low, high = tuple(whole_x.min(axis=0).tolist()), tuple(whole_x.max(axis=0).tolist())
    made = Profile(origin, trained.metrics, tuple(names), scale, low, high, trained.trees, whole_x, whole_y)
    return Merged(made, tuple(contests))


def contest(host: str, hosts: Sequence[str], errors: Sequence[Floats], ours: Floats) -> Contest:
    """The contest on one host's held-out samples: squared errors of each single one and of the merged, each (n,)."""
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
    """Known and held-out rows with labels; a knob that was not explored there was granted in ``full``."""
    x = np.tile(full, (len(profile.y), 1))
    for column, name in enumerate(names):
        if name in profile.features:
            x[:, column] = profile.x[:, profile.features.index(name)]
    y = profile.y
    if len(y) < 2 * HELD_OUT + 20:
        raise PerphError(f"{_host(profile)}: {len(y)} samples are too few to merge")
    held = np.arange(len(y)) % HELD_OUT == 0
    return x[~held], y[~held], x[held], y[held]


def _missed(trained: Trained, x: Floats, y: Floats) -> Floats:
    return np.asarray((Forest.compile(trained.trees).predict(x) - y) ** 2, dtype=np.float64)


def _host(profile: Profile) -> str:
    return f"{profile.origin.app}@{'+'.join(profile.origin.hosts)}"
