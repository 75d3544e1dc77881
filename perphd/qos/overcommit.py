"""Overcommit: the part of gold's and silver's unused reservations that may be offered to copper.

For each resource, over the next window W (five minutes):

    reclaimed  = reserved - q - margin         q: a high quantile of the predicted use of the protected workloads
    unreserved = capacity - reserved
    copper     = max(0, reclaimed) + max(0, unreserved)

    memory also: q + margin + copper <= 80 % of the host

``margin`` follows from the forecast's own error. After each window, the residual

    z = (peak use - q) / reserved

is known. The margin is the conformal bound of these residuals times the reserved amount, for a coverage of
99.2 %, and at least 5 % of the reserved amount while there are too few residuals for that quantile. Copper is
overcommitted in a window if the peak use of the protected workloads exceeds q + margin. ``Backtest`` counts
such windows and the reserved capacity offered.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from perphd.forecast.calibration import Calibration, with_residual
from perphd.qos.bands import MEMORY_LIMIT_RATIO
from perphd.qos.ledger import Amounts, HostLedger, measured

WINDOW_S: Final = 300.0
COVERAGE: Final = 0.992
"""Slightly above the promised 99 %, since the calibration approaches its coverage from both sides."""
FIRST_MARGIN_RATIO: Final = 0.05
"""Margin before there are residuals, as a share of the reserved amount."""


@dataclass(frozen=True, slots=True)
class Backtest:
    """Number of completed windows, number of those in which use exceeded its bound, and sums over all windows.

    ``given``: reserved capacity that was offered to copper; ``reserved``: all reserved capacity. Both are in the
    resource's unit times windows.
    """

    windows: int = 0
    exceeded: int = 0
    given: float = 0.0
    reserved: float = 0.0

    @property
    def exceeded_ratio(self) -> float:
        """Share of windows in which the protected workloads used more than copper left them; 0 before the first."""
        return self.exceeded / self.windows if self.windows else 0.0

    @property
    def given_ratio(self) -> float:
        """The share of reserved capacity that was offered to copper; 0 before the first window."""
        return self.given / self.reserved if self.reserved else 0.0


@dataclass(frozen=True, slots=True)
class Overcommit:
    """Calibration and backtest of the forecasts of one resource."""

    calibration: Calibration = field(
        default_factory=lambda: Calibration(coverage=COVERAGE, level=COVERAGE, first=FIRST_MARGIN_RATIO)
    )
    backtest: Backtest = Backtest()

    @property
    def margin_ratio(self) -> float:
        """The margin as a share of the reserved amount; never negative, since q itself is a high quantile."""
        return max(0.0, self.calibration.multiplier)


@dataclass(frozen=True, slots=True)
class Slack:
    """Copper's offer of one resource and the parts of which it consists, in CPUs or bytes."""

    reclaimed: float
    unreserved: float
    margin: float
    copper: float


def slack(
    learned: Overcommit, capacity: float, reserved: float, predicted: float, limit: float | None = None
) -> Slack:
    """The slack of one resource. ``predicted``: q; ``limit``: bound for protected use and copper together."""
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
    """The state after a window in which ``given`` was offered and the protected workloads used at most ``peak``.

    A window in which nothing was reserved is skipped.
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
    """The ledger with copper's offer for the next window, from the predicted use of all protected workloads."""
    room, reserved = ledger.capacity.amounts, ledger.reserved
    cpus = slack(cpu, room.cpus, reserved.cpus, predicted.cpus).copper
    limit = MEMORY_LIMIT_RATIO * room.memory_bytes
    memory_bytes = slack(
        memory, room.memory_bytes, reserved.memory_bytes, predicted.memory_bytes, limit
    ).copper
    return measured(ledger, used, Amounts(min(cpus, room.cpus), int(memory_bytes)))
