"""One live model out of several hosts' of the same application, with a champion check; nothing is done by itself.

Every host's model is exported (``perphctl model export``), the files are merged here, and the result is imported where
an operator wants it. What is pooled are the samples that each model remembers, as corrections of the physics prior:
they are relative to the host's cores, load and reference, so that hosts of different size can be compared. Stages are
fitted to four fifths of each host's samples, every host counting alike, and must do no worse on the held-out fifths of
*every* host than the best single host's do there. What is local stays out: cells, places seen, bands, drift. References
are pooled as a beginning that gives way after a few samples of the host that takes the model over.
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
"""Remembered samples of each host, at least."""
_BEGINNING: Final = 5.0
"""Samples that a pooled reference counts as, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Remembered:
    """What one host's model remembers of one channel: rows (n, F) of ``features.COLUMNS``, what physics expected there
    (log, (n,)), corrections (n,).
    """

    host: str
    x: Floats
    prior: Floats
    y: Floats

    def only(self, which: NDArray[np.bool_]) -> Remembered:
        """These rows of it."""
        return Remembered(self.host, self.x[which], self.prior[which], self.y[which])


@dataclass(frozen=True, slots=True)
class ChannelContest:
    """How the merged stages did on one host's held-out samples of one channel."""

    channel: str
    result: Contest


@dataclass(frozen=True, slots=True, eq=False)
class MergedModel:
    """What came out, and how it did on every host and channel."""

    file: ModelFile
    contests: tuple[ChannelContest, ...]

    @property
    def accepted(self) -> bool:
        """The champion check is passed everywhere."""
        return all(contest.result.held for contest in self.contests)


def merge_models(files: Sequence[ModelFile]) -> MergedModel:
    """One model of several.

    Raises:
        PerphError: fewer than two, one that is given twice, that remembers too little, work that is
            counted by another kind of SLI, or another version of the application.
    """
    if len(files) < 2:
        raise PerphError("merging takes at least two models")
    sources = [file.provenance for file in files]
    for what, values in (
        ("their work is counted differently", {s.sli_source or "no SLI" for s in sources}),
        ("they are of different versions", {s.app_version for s in sources if s.app_version}),
    ):
        if len(values) > 1:
            raise PerphError(f"{what}: {', '.join(sorted(values))}")
    for k, file in enumerate(files):
        if any(file.state == other.state for other in files[:k]):
            raise PerphError(f"{_host(file)} is given twice: nothing would be held out of it")
    contests: list[ChannelContest] = []
    known: dict[str, Sequence[Remembered]] = {}
    for channel in CHANNELS:
        parts = [found for file in files if (found := remembered(file, channel)) is not None]
        if len(parts) < len(files):
            if channel == "work":
                lacking = [_host(f) for f in files if remembered(f, channel) is None]
                raise PerphError(
                    f"{', '.join(lacking)}: less than {LEAST_ROWS} samples beside batch are remembered"
                )
            continue  # a channel that was not measured everywhere begins from physics
        contests += _contest(parts, channel)
        known[channel] = parts
    state = _state(files, known)
    newest = max(sources, key=lambda s: s.saved_at_unix_s)
    provenance = replace(
        newest, host="+".join(dict.fromkeys(s.host for s in sources)), cores=max(s.cores for s in sources)
    )
    return MergedModel(ModelFile(provenance, ranges_of(state), state), tuple(contests))


def judge(file: ModelFile, other: ModelFile, channel: str = "work") -> Metrics:
    """How well what one model has learned says what another host's model remembers.

    Raises:
        PerphError: the first has learned nothing that can be carried over, or the second remembers too little.
    """
    asked = remembered(other, channel)
    if asked is None:
        raise PerphError(f"{_host(other)}: less than {LEAST_ROWS} samples beside batch are remembered")
    state: ResidualState = getattr(file.state, channel)
    if state.staged is None and not has_trees(state):
        raise PerphError(f"{_host(file)}: its {channel} has neither stages nor trees yet")
    if state.staged is None:
        return metrics_of(asked.y, _boosted(state, channel).say(asked.x))
    learner = _staged(channel)
    learner.restore(state, 0.0)
    return metrics_of(asked.y, learner.say(asked.x, asked.prior))


def remembered(file: ModelFile, channel: str) -> Remembered | None:
    """The samples that this model remembers; None: fewer than ``LEAST_ROWS``."""
    state: ResidualState = getattr(file.state, channel)
    if state.staged is not None:
        x, prior, y = rows_of(state.staged)
    elif has_trees(state):
        x, y = _boosted(state, channel).remembered()
        prior = np.zeros(len(y))  # what physics expected was not kept
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
    # Champions are taught the same rows, else they would have seen what they are asked.
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
    """Every host counts alike, however much it remembers."""
    rows = sum(len(p.y) for p in parts)
    for p in parts:
        learner.learn_rows(p.x, p.prior, p.y, PROFILE_SD**2 * len(p.y) * len(parts) / rows)


def _state(files: Sequence[ModelFile], parts: dict[str, Sequence[Remembered]]) -> ModelState:
    model = LraModel("staged")
    for channel, of_hosts in parts.items():
        # As many rows of each host as have room together.
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
    """Means over the hosts, weighted by samples; their spread is part of the variance."""
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
