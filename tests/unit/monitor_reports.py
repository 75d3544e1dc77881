"""A server whose backends count for themselves and report from time to time."""

from __future__ import annotations

import bisect
import math
import random
from dataclasses import dataclass

LASTS_S = 90.0


@dataclass
class Server:
    """Requests answered by backends that report them ``every_s``, each at the end of a request.

    ``together``: all began at once, as clients of one program do; otherwise they are staggered.
    """

    rate: float
    backends: int
    every_s: float
    closed: bool = False
    seed: int = 1
    together: bool = False

    def __post_init__(self) -> None:
        rnd = random.Random(self.seed)
        share = self.rate / self.backends
        done: list[float] = []
        reports: list[tuple[float, int]] = []
        for _ in range(self.backends):
            at_s, last_s, pending = 0.0 if self.together else rnd.random(), -math.inf, 0
            while at_s < LASTS_S + 1.0:
                done.append(at_s)
                pending += 1
                if at_s - last_s >= self.every_s:
                    reports.append((at_s, pending))
                    last_s, pending = at_s, 0
                at_s += 1.0 / share if self.closed else rnd.expovariate(share)
        self._done = sorted(done)
        reports.sort()
        self._reports = [at_s for at_s, _ in reports]
        self._totals = [0]
        for _, events in reports:
            self._totals.append(self._totals[-1] + events)

    def counter(self, at_s: float) -> float:
        return float(self._totals[bisect.bisect_right(self._reports, at_s)])

    def answered(self, until_s: float) -> int:
        return bisect.bisect_right(self._done, until_s)
