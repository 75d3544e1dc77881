"""Overcommit: how much copper may be offered from what gold and silver reserve and do not use.

For each resource, over the window W (five minutes) that follows:

    reclaimed  = reserved - q - margin         q: a high quantile of what the protected are predicted to use
    unreserved = capacity - reserved
    copper     = max(0, reclaimed) + max(0, unreserved)
    memory also: q + margin + copper <= 80 % of the host

``margin`` follows from the forecast's own error. After each window, the residual

    z = (peak use - q) / reserved

is known. The margin is the conformal bound of these residuals times what is reserved, for the coverage 99.2 %, and at
least 5 % of what is reserved while there are too few residuals to show that quantile. Copper is overcommitted in a
window if the peak use of the protected exceeds q + margin; ``Backtest`` counts such windows, and how much capacity the
others gave.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from perphd.forecast.calibration import Calibration, with_residual
from perphd.qos.ledger import Amounts, HostLedger, measured

WINDOW_S: Final = 300.0
COVERAGE: Final = 0.992
"""A little more than the promised 99 %, since the calibration steers to its coverage from both sides."""
FIRST_MARGIN_RATIO: Final = 0.05
"""The margin before there are residuals, as a share of what is reserved."""
MEMORY_LIMIT_RATIO: Final = 0.8
"""The share of the host's memory beyond which copper gets none."""


@dataclass(frozen=True, slots=True)
class Backtest:
    """Windows that are over: in how many the use exceeded its bound, and the capacity given, in units times windows."""

    windows: int = 0
    exceeded: int = 0
    given: float = 0.0
    reserved: float = 0.0

    @property
    def exceeded_ratio(self) -> float:
        """The share of windows in which the protected used more than copper had left them; 0 before the first."""
        return self.exceeded / self.windows if self.windows else 0.0

    @property
    def given_ratio(self) -> float:
        """The share of what was reserved that copper got; 0 before the first window."""
        return self.given / self.reserved if self.reserved else 0.0


@dataclass(frozen=True, slots=True)
class Overcommit:
    """What was learned about the forecasts of one resource."""

    calibration: Calibration = field(
        default_factory=lambda: Calibration(coverage=COVERAGE, level=COVERAGE, first=FIRST_MARGIN_RATIO)
    )
    backtest: Backtest = Backtest()

    @property
    def margin_ratio(self) -> float:
        """The margin as a share of what is reserved: never negative, since q stands below it."""
        return max(0.0, self.calibration.multiplier)


@dataclass(frozen=True, slots=True)
class Slack:
    """What copper may be offered of one resource, and from where: in CPUs or bytes."""

    reclaimed: float
    unreserved: float
    margin: float
    copper: float


def slack(
    learned: Overcommit, capacity: float, reserved: float, predicted: float, limit: float | None = None
) -> Slack:
    """The slack of one resource. ``predicted`` is q; ``limit`` is what protected use and copper may fill together."""
    margin = learned.margin_ratio * reserved
    reclaimed = max(0.0, reserved - predicted - margin)
    unreserved = max(0.0, capacity - reserved)
    copper = reclaimed + unreserved
    if limit is not None:
        copper = max(0.0, min(copper, limit - predicted - margin))
    return Slack(reclaimed, unreserved, margin, copper)


def after_window(
    learned: Overcommit, reserved: float, predicted: float, given: Slack, peak: float
) -> Overcommit:
    """What is known after a window for which ``given`` was offered and the protected used ``peak`` at most.

    A window in which nothing is reserved teaches nothing.
    """
    if reserved <= 0:
        return learned
    residual = (peak - predicted) / reserved
    missed = peak > predicted + given.margin
    past = learned.backtest
    return Overcommit(
        with_residual(learned.calibration, residual, missed),
        replace(
            past,
            windows=past.windows + 1,
            exceeded=past.exceeded + int(peak > reserved - given.reclaimed),
            given=past.given + given.reclaimed,
            reserved=past.reserved + reserved,
        ),
    )


def offered(
    ledger: HostLedger, cpu: Overcommit, memory: Overcommit, predicted: Amounts, used: Amounts
) -> HostLedger:
    """The ledger with copper's offer for the next window, from the predicted use of everything that is protected."""
    room, reserved = ledger.capacity.amounts, ledger.reserved
    cpus = slack(cpu, room.cpus, reserved.cpus, predicted.cpus).copper
    limit = MEMORY_LIMIT_RATIO * room.memory_bytes
    memory_bytes = slack(
        memory, room.memory_bytes, reserved.memory_bytes, predicted.memory_bytes, limit
    ).copper
    return measured(ledger, used, Amounts(min(cpus, room.cpus), int(memory_bytes)))
