"""State of one LRA between ticks, as one value. ``partition_state`` covers LRAs with exclusive cores."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Final

from perphd.admission.detector import antagonist
from perphd.admission.detector.judge import DetectorState, Target, rearm
from perphd.admission.features import pregrow, probing
from perphd.admission.features.quarantine import Quarantine
from perphd.admission.moves.reach import Reach
from perphd.admission.review.kept import Kept
from perphd.admission.review.outcomes import LOAD_ROSE, Cooldown, Harmed, Pending, Setting
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Health
from perphd.domain.quick import replace
from perphd.domain.reading import Reading, available
from perphd.forecast.load import LoadForecast

MOST_SCORE: Final = 10.0
"""Upper bound of a remembered score."""
LOADS: Final = 5
"""Number of ticks whose median load is the recent load."""


@dataclass(frozen=True, slots=True)
class Settling:
    """Values to display until the next sample can be judged.

    ``reason``: reason why nothing was done at the last sample. ``target``, ``culprit``: the target at that
    time, and the antagonist.
    """

    reason: str
    target: Target
    culprit: str | None = None


@dataclass(frozen=True, slots=True)
class LraState:
    """State of one LRA.

    ``scores``: clean scores since the last change, newest last. ``rooms``: ``outcomes.room`` of each of these samples.
    ``batch``: the active batch workloads. ``beside_batch``: number of ``scores`` taken beside exactly these workloads.
    ``stride``: units that may be given back at once; more than 1 after a change that left more than enough.
    ``moments``: shortfall and batch's use in the last ticks, to find the antagonist. ``loads``: loads of the
    last ticks. ``standing``: result of the last judged sample.
    ``chosen``: allocation chosen at the last tick. ``awaited``: the same while its cache and bandwidth are unwritten.
    ``unwritten``: the change that waits with it, evaluated once it is in force.
    ``gave_back``: circumstances of the last change if it was a reduction. ``harmed``: reductions that proved harmful.
    """

    first_seen_s: float
    detector: DetectorState = DetectorState()
    pending: Pending | None = None
    scores: tuple[float, ...] = ()
    rooms: tuple[float, ...] = ()
    batch: frozenset[str] = frozenset()
    beside_batch: int = 0
    slack_since_s: float | None = None
    stride: int = 1
    quiet_since_s: float | None = None
    busy_since_s: float | None = None
    unknown_since_s: float | None = None
    cooldowns: tuple[Cooldown, ...] = ()
    quarantine: Quarantine = Quarantine()
    forecasts: tuple[LoadForecast, ...] = pregrow.NO_FORECASTS
    moments: tuple[antagonist.Moment, ...] = ()
    aside: probing.Probing = probing.Probing()
    loads: tuple[float, ...] = ()
    standing: Settling | None = None
    reach: Reach = Reach()
    """Changes that did not reach the target."""
    chosen: Allocation | None = None
    awaited: Allocation | None = None
    unwritten: Pending | None = None
    gave_back: Setting | None = None
    harmed: Harmed = Harmed()
    kept: tuple[Kept, ...] = ()
    """Allocations that kept the target here."""

    @classmethod
    def new(cls, now_s: float) -> LraState:
        """State of an LRA seen for the first time."""
        return cls(first_seen_s=now_s, detector=DetectorState(since_s=now_s))

    def anew(self) -> LraState:
        """The state after another controller has decided: pending changes are dropped, learned facts stay."""
        return replace(
            LraState(self.first_seen_s),
            detector=replace(rearm(self.detector), health=Health.UNKNOWN),
            cooldowns=self.cooldowns,
            quarantine=self.quarantine,
            harmed=self.harmed,
            kept=self.kept,
            forecasts=self.forecasts,
            aside=self.aside,
        )

    def gone(self) -> LraState:
        """The state while the LRA does not run: pending changes are dropped, because the application starts over."""
        return replace(
            self,
            pending=None,
            scores=(),
            rooms=(),
            slack_since_s=None,
            unknown_since_s=None,
            stride=1,
            moments=(),
            aside=self.aside.back(),
            standing=None,
            awaited=None,
            unwritten=None,
        )

    def scored(self, score: float, room: float, most: int) -> LraState:
        """The state with one more clean score and its room. ``most``: maximum number of scores to remember."""
        scores, rooms = (*self.scores, min(score, MOST_SCORE)), (*self.rooms, min(room, MOST_SCORE))
        beside_batch = min(self.beside_batch, len(self.scores)) + 1
        return replace(self, scores=scores[-most:], rooms=rooms[-most:], beside_batch=min(beside_batch, most))

    @property
    def scores_beside_batch(self) -> tuple[float, ...]:
        """The scores that were taken beside the present batch workloads; none without batch."""
        count = min(self.beside_batch, len(self.scores)) if self.batch else 0
        return self.scores[len(self.scores) - count :]

    def beside(self, quiet: bool, batch: frozenset[str], now_s: float) -> LraState:
        """The state after batch was found quiet or busy, with the start of that state."""
        active = frozenset[str]() if quiet else batch
        if active != self.batch:
            return replace(self, batch=active, beside_batch=0).beside(quiet, batch, now_s)
        known_s = self.quiet_since_s if quiet else self.busy_since_s
        since_s = known_s if known_s is not None else now_s
        quiet_s, busy_s = (since_s, None) if quiet else (None, since_s)
        if (quiet_s, busy_s) == (self.quiet_since_s, self.busy_since_s):
            return self
        return replace(self, quiet_since_s=quiet_s, busy_since_s=busy_s)

    def is_rising(self, load: Reading) -> bool:
        """True if the load is clearly higher than in the last ticks."""
        return bool(self.loads) and rose(load, statistics.median(self.loads))

    def asked(self, load: Reading) -> LraState:
        """The state with one more load, if the load is known."""
        return replace(self, loads=(*self.loads, load)[-LOADS:]) if available(load) else self


def rose(load: Reading, before: Reading) -> bool:
    """True if a load is clearly higher than ``before``."""
    return available(load) and available(before) and load > LOAD_ROSE * before
