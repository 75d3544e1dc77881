"""What is remembered about one LRA from tick to tick, as one value. Several decided for together: ``crowd_state``."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Final

from perphd.admission import culprit, pregrow, probing
from perphd.admission.detector import DetectorState, Target, rearm
from perphd.admission.outcomes import LOAD_ROSE, Harmed, Pending, Regret, Setting
from perphd.admission.quarantine import Quarantine
from perphd.admission.reach import Reach
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Health
from perphd.domain.reading import Reading, available
from perphd.forecast.load import LoadForecast

LOADS: Final = 5
"""Ticks whose median load is what was asked until now."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What holds until the next sample can be judged.

    ``reason``: why nothing was done at the last one; ``target``, ``culprit``: the target then, and who was named.
    """

    reason: str
    target: Target
    culprit: str | None = None


@dataclass(frozen=True, slots=True)
class LraState:
    """What is remembered about one LRA. ``scores``: clean scores since the last change, newest last.

    ``stride``: how many units may be given back at once: twice as many after each step back that left more than
    enough, one after anything else.
    ``moments``: shortfall and batch's samples of the last ticks, to find out who is to blame. ``loads``: what was asked
    of it in the last ticks. ``standing``: of the last sample that was judged. ``chosen``: at the last tick.
    ``awaited``: the same while its cache and bandwidth wait for their write. ``gave_back``: under what the last
    change was made if it was a step back to batch; ``harmed``: steps back that proved too much.
    """

    first_seen_s: float
    detector: DetectorState = DetectorState()
    pending: Pending | None = None
    scores: tuple[float, ...] = ()
    slack_since_s: float | None = None
    stride: int = 1
    quiet_since_s: float | None = None
    busy_since_s: float | None = None
    unknown_since_s: float | None = None
    regrets: tuple[Regret, ...] = ()
    quarantine: Quarantine = Quarantine()
    forecasts: tuple[LoadForecast, ...] = pregrow.NO_FORECASTS
    moments: tuple[culprit.Moment, ...] = ()
    aside: probing.Probing = probing.Probing()
    loads: tuple[float, ...] = ()
    standing: Standing | None = None
    reach: Reach = Reach()
    """Changes that did not reach the target."""
    chosen: Allocation | None = None
    awaited: Allocation | None = None
    gave_back: Setting | None = None
    harmed: Harmed = Harmed()

    @classmethod
    def new(cls, now_s: float) -> LraState:
        """The state of an LRA that is seen for the first time."""
        return cls(first_seen_s=now_s, detector=DetectorState(since_s=now_s))

    def anew(self) -> LraState:
        """The same after others have decided for it: what was in hand is void, what was learned stays."""
        return replace(
            LraState(self.first_seen_s),
            detector=replace(rearm(self.detector), health=Health.UNKNOWN),
            regrets=self.regrets,
            quarantine=self.quarantine,
            harmed=self.harmed,
            forecasts=self.forecasts,
            aside=self.aside,
        )

    def gone(self) -> LraState:
        """The same while it does not run: what was in hand is void, the application that comes back begins anew."""
        return replace(
            self,
            pending=None,
            scores=(),
            slack_since_s=None,
            unknown_since_s=None,
            stride=1,
            moments=(),
            aside=self.aside.back(),
            standing=None,
            awaited=None,
        )

    def beside(self, quiet: bool, now_s: float) -> LraState:
        """The same after batch was found quiet, or busy: since when is remembered."""
        known_s = self.quiet_since_s if quiet else self.busy_since_s
        since_s = known_s if known_s is not None else now_s
        return replace(
            self, quiet_since_s=since_s if quiet else None, busy_since_s=None if quiet else since_s
        )

    def is_rising(self, load: Reading) -> bool:
        """True if clearly more is asked of it than in the last ticks."""
        return bool(self.loads) and rose(load, statistics.median(self.loads))

    def asked(self, load: Reading) -> LraState:
        """The same after so much was asked of it."""
        return replace(self, loads=(*self.loads, load)[-LOADS:]) if available(load) else self


def rose(load: Reading, before: Reading) -> bool:
    """True if a load is clearly more than it was."""
    return available(load) and available(before) and load > LOAD_ROSE * before
