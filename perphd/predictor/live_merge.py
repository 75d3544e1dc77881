"""Merges live models of one application from several hosts into one, with a champion check.

Every host's model is exported (``perphctl model export``), this module merges the files, and an operator
imports the result on any host. The merge pools the samples that each model remembers, as corrections of the
physics prior. They are relative to the host's cores, load and reference, so hosts of different size are
comparable. Stages are fitted to four fifths of each host's samples, with equal weight per host. On *every* host's
held-out fifth, the merged stages must perform no worse than the best single host's stages. The result has no local
state: no cells, places seen, bands or drift. References are pooled as weak priors that yield to a few samples
of the importing host.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perphd.domain.errors import PerphError
from perphd.predictor import features
from perphd.predictor.boosted import Boosted, has_trees
from perphd.predictor.model import LraModel
from perphd.predictor.ogbrt.trees import Floats
from perphd.predictor.persist import (
    ModelFile,
    ModelState,
    ResidualState,
    RunningState,
    ranges_of,
)
from perphd.predictor.profile.file import Metrics
from perphd.predictor.profile.merge import HELD_OUT, Contest, contest
from perphd.predictor.profile.training import metrics_of
from perphd.predictor.staged import PROFILE_SD, REMEMBERED, Staged, rows_of

CHANNELS: Final = ("work", "delay")
"""Corrections that are merged."""
LEAST_ROWS: Final = 30
"""Minimum number of samples that each host's model must remember."""
_BEGINNING: Final = 5.0
"""Largest sample count given to a pooled reference."""


@dataclass(frozen=True, slots=True, eq=False)
class Remembered:
    """Samples of one channel remembered by one host's model.

    ``x``: rows (n, F) of ``features.COLUMNS``. ``prior``: physics predictions (log, (n,)). ``y``: corrections (n,).
    """

    host: str
    x: Floats
    prior: Floats
    y: Floats

    def only(self, which: NDArray[np.bool_]) -> Remembered:
        """The selected rows."""
        return Remembered(self.host, self.x[which], self.prior[which], self.y[which])


@dataclass(frozen=True, slots=True)
class ChannelContest:
    """Result of the merged stages on one host's held-out samples of one channel."""

    channel: str
    result: Contest


@dataclass(frozen=True, slots=True, eq=False)
class MergedModel:
    """The merged model, and its results on every host and channel."""

    file: ModelFile
    contests: tuple[ChannelContest, ...]

    @property
    def accepted(self) -> bool:
        """True if the champion check passed everywhere."""
        return all(contest.result.held for contest in self.contests)


def merge_models(files: Sequence[ModelFile]) -> MergedModel:
    """Merge several models into one.

    Raises:
        PerphError: there are fewer than two models, one occurs twice or remembers too little, or they differ in the
            kind of SLI or the application's version.
    """
    if len(files) < 2:
        raise PerphError(f"merging needs at least two models, not {len(files)}")
    sources = [file.provenance for file in files]
    for what, values in (
        ("the models measure work differently", {s.sli_source or "no SLI" for s in sources}),
        (
            "the models belong to different application versions",
            {s.app_version for s in sources if s.app_version},
        ),
    ):
        if len(values) > 1:
            raise PerphError(f"{what}: {', '.join(sorted(values))}")
    for k, file in enumerate(files):
        if any(file.state == other.state for other in files[:k]):
            raise PerphError(f"{_host(file)} is given twice, which would invalidate the held-out samples")
    contests: list[ChannelContest] = []
    known: dict[str, Sequence[Remembered]] = {}
    for channel in CHANNELS:
        parts = [found for file in files if (found := remembered(file, channel)) is not None]
        if len(parts) < len(files):
            if channel == "work":
                lacking = [_host(f) for f in files if remembered(f, channel) is None]
                raise PerphError(
                    f"{', '.join(lacking)}: fewer than {LEAST_ROWS} samples taken while batch ran; "
                    "let perphd learn longer there"
                )
            continue  # a channel not measured on every host starts from physics
        contests += _contest(parts, channel)
        known[channel] = parts
    state = _state(files, known)
    newest = max(sources, key=lambda s: s.saved_at_unix_s)
    provenance = replace(
        newest, host="+".join(dict.fromkeys(s.host for s in sources)), cores=max(s.cores for s in sources)
    )
    return MergedModel(ModelFile(provenance, ranges_of(state), state), tuple(contests))


def judge(file: ModelFile, other: ModelFile, channel: str = "work") -> Metrics:
    """Accuracy of one model's learned corrections on the samples that another host's model remembers.

    Raises:
        PerphError: the first has learned nothing transferable, or the second remembers too little.
    """
    asked = remembered(other, channel)
    if asked is None:
        raise PerphError(
            f"{_host(other)}: fewer than {LEAST_ROWS} samples taken while batch ran; let perphd learn longer there"
        )
    state: ResidualState = getattr(file.state, channel)
    if state.staged is None and not has_trees(state):
        raise PerphError(
            f"{_host(file)}: no corrections of {channel} have been learned yet; let perphd learn longer there"
        )
    if state.staged is None:
        return metrics_of(asked.y, _boosted(state, channel).say(asked.x))
    learner = _staged(channel)
    learner.restore(state, 0.0)
    return metrics_of(asked.y, learner.say(asked.x, asked.prior))


def remembered(file: ModelFile, channel: str) -> Remembered | None:
    """The samples that this model remembers; None if fewer than ``LEAST_ROWS``."""
    state: ResidualState = getattr(file.state, channel)
    if state.staged is not None:
        x, prior, y = rows_of(state.staged)
    elif has_trees(state):
        x, y = _boosted(state, channel).remembered()
        prior = np.zeros(len(y))  # the predictions of physics were not saved
    else:
        return None
    known = np.isfinite(y)
    found = Remembered(_host(file), x[known], prior[known], y[known])
    return found if len(found.y) >= LEAST_ROWS else None


def _staged(channel: str) -> Staged:
    return Staged(np.ones(features.PLACE), 0.2, 0.06, +1 if channel == "work" else -1)


def _boosted(state: ResidualState, channel: str) -> Boosted:
    made = Boosted(
        np.ones(features.PLACE), 0.2, 0.06, features.WORK_SIGNS if channel == "work" else features.DELAY_SIGNS
    )
    made.restore(state, 0.0)
    return made


def _contest(parts: Sequence[Remembered], channel: str) -> list[ChannelContest]:
    known = [np.arange(len(p.y)) % HELD_OUT != 0 for p in parts]
    shown = [p.only(k) for p, k in zip(parts, known, strict=True)]
    merged = _staged(channel)
    _teach(merged, shown)
    # Champions learn the same rows, so that held-out samples are new to them too.
    singles = []
    for part in shown:
        single = _staged(channel)
        _teach(single, [part])
        singles.append(single)
    found = []
    for part, k in zip(parts, known, strict=True):
        held = part.only(~k)
        errors = [(single.say(held.x, held.prior) - held.y) ** 2 for single in singles]
        ours = (merged.say(held.x, held.prior) - held.y) ** 2
        found.append(ChannelContest(channel, contest(part.host, [p.host for p in parts], errors, ours)))
    return found


def _teach(learner: Staged, parts: Sequence[Remembered]) -> None:
    """Let ``learner`` learn samples of several hosts with equal weight per host."""
    rows = sum(len(p.y) for p in parts)
    for p in parts:
        learner.learn_rows(p.x, p.prior, p.y, PROFILE_SD**2 * len(p.y) * len(parts) / rows)


def _state(files: Sequence[ModelFile], parts: dict[str, Sequence[Remembered]]) -> ModelState:
    model = LraModel("staged")
    for channel, of_hosts in parts.items():
        # As many rows as fit, shared equally among the hosts.
        rows = [
            p.only(np.arange(len(p.y)) % (1 + len(p.y) * len(of_hosts) // REMEMBERED) == 0) for p in of_hosts
        ]
        x, prior, y = (
            np.concatenate(columns) for columns in zip(*((p.x, p.prior, p.y) for p in rows), strict=True)
        )
        model.begin_channel(channel, x, prior, y)
    elasticities = [f.state.elasticity for f in files if f.state.elasticity is not None]
    return replace(
        model.to_state(0.0),
        reference=_pooled(file.state.reference for file in files),
        elasticity=float(np.mean(elasticities)) if elasticities else None,
        samples=sum(f.state.samples for f in files),
    )


def _pooled(references: Iterable[tuple[RunningState, ...]]) -> tuple[RunningState, ...]:
    """Reference means over hosts, weighted by samples. The spread between hosts is added to the variance."""
    by_key: dict[tuple[str, int | None, bool], list[RunningState]] = {}
    for reference in references:
        for one in reference:
            by_key.setdefault((one.signal, one.bucket, one.provisional), []).append(one)
    found = []
    for (signal, bucket, provisional), ones in by_key.items():
        weight = np.array([max(one.count, 1e-3) for one in ones])
        mean = np.array([one.mean for one in ones])
        centre = float(np.average(mean, weights=weight))
        within = float(np.average([one.var for one in ones], weights=weight))
        between = float(np.average((mean - centre) ** 2, weights=weight))
        count = min(math.fsum(one.count for one in ones), _BEGINNING)
        found.append(RunningState(signal, bucket, centre, within + between, count, 0, provisional))
    return tuple(found)


def _host(file: ModelFile) -> str:
    return f"{file.provenance.lra}@{file.provenance.host}"
