"""The forecast worker's part in the exchange between hosts: it hands over its scores, and reads priors.

Failures never stop forecasts: series then start without a prior. The reports of other hosts about a series are pooled
when the series appears, and again when a document changes, until the series has enough scores of its own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from perphd.agent.contribution_folder import ContributionFolder
from perphd.agent.forecast_scores import Reader, write_scores
from perphd.domain.errors import PerphError
from perphd.federated.pooling import Asking
from perphd.forecast.fleet_scores import LOSS, MISSES, Key, Prior, contributed, prior, topic_of
from perphd.forecast.following import Followed

log = logging.getLogger("perphd.forecast")


class Exchange:
    """Exchanges scores with other hosts. ``folder``: the worker's."""

    def __init__(self, reader: Reader, folder: Path) -> None:
        self._reader, self._folder = reader, folder
        self._contributions = ContributionFolder(reader.folder)
        self._seen: object = None
        self._priors: dict[Key, Prior] = {}
        self._problems: tuple[str, ...] = ()

    def priors(self, young: Collection[Key], now_unix_s: float) -> Mapping[Key, Mapping[str, float]]:
        """The models' losses on other hosts, for the given series that enough hosts report."""
        try:
            return self._pooled(young, now_unix_s)
        except Exception as exc:  # forecasts work without a prior
            self._say((f"forecast scores of other hosts cannot be used: {exc!r}",))
            return {}

    def hand_over(self, series: Mapping[Key, Followed]) -> None:
        """Write the scores for the daemon's contribution."""
        try:
            write_scores(self._folder, contributed(series))
        except (PerphError, OSError) as exc:
            log.warning("forecast scores are not contributed: %s", exc)

    def _pooled(self, young: Collection[Key], now_unix_s: float) -> Mapping[Key, Mapping[str, float]]:
        wanted = set(young)
        if not wanted:
            return {}
        seen = self._state()
        if seen != self._seen:
            self._priors, self._seen = {}, seen
        self._priors = {key: found for key, found in self._priors.items() if key in wanted}
        new = sorted(wanted - self._priors.keys())
        if new:
            topics = {topic_of(key, aspect) for key in new for aspect in (LOSS, MISSES)}
            ledger, problems = self._contributions.read(topics)
            self._say(problems)
            here = self._reader
            asking = Asking(here.name, here.hardware, now_unix_s, here.expire_s)
            for key in new:
                self._priors[key] = found = prior(ledger, key, asking)
                if found.losses:
                    ranked = ", ".join(sorted(found.losses, key=lambda name: found.losses[name]))
                    log.info("%s %s: initial ranking from %d other hosts: %s", *key, len(found.hosts), ranked)
        return {key: self._priors[key].losses for key in wanted if self._priors[key].losses}

    def _state(self) -> object:
        """A value that changes whenever a file of the folder changes."""
        try:
            found = [(each.name, each.stat().st_mtime_ns) for each in os.scandir(self._reader.folder)]
        except OSError:
            return None
        return tuple(sorted(item for item in found if not item[0].startswith(".")))

    def _say(self, problems: tuple[str, ...]) -> None:
        if problems != self._problems:
            for each in problems:
                log.warning("%s", each)
        self._problems = problems
