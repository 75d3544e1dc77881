"""The forecast worker's part in the exchange between hosts: it hands over its scores, and reads priors.

Failures never stop forecasts: series then start without a prior. The statements of other hosts about a series are
pooled when the series appears, and again when a document changes, until the series has enough scores of its own.
The hosts from which a series started are stored for ``perphctl model origin`` as long as the workload exists on
this host.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from perphd.agent.contribution_folder import ContributionFolder
from perphd.agent.forecast_scores import (
    Reader,
    origin_hosts,
    read_names,
    read_origins,
    write_names,
    write_origins,
    write_scores,
)
from perphd.domain.belief import ForecastOrigin
from perphd.domain.errors import PerphError
from perphd.federated.pooling import Asking
from perphd.forecast.fleet_scores import LOSS, MISSES, Key, Prior, contributed, prior, topic_of
from perphd.forecast.following import Followed

log = logging.getLogger("perphd.forecast")


class Exchange:
    """Exchanges scores with other hosts. ``folder``: the forecast worker's folder."""

    def __init__(self, reader: Reader, folder: Path) -> None:
        self._reader, self._folder = reader, folder
        self._contributions = ContributionFolder(reader.folder)
        self._seen: object = None
        self._priors: dict[Key, Prior] = {}
        self._problems: tuple[str, ...] = ()
        self._applications: Mapping[str, str] = {}
        self._names = self._kept_names = read_names(folder)
        self._kept = read_origins(folder)
        self._origins = {
            (workload, each.series): each for workload, found in self._kept.items() for each in found
        }

    def priors(
        self, young: Collection[Key], now_unix_s: float, applications: Mapping[str, str]
    ) -> Mapping[Key, Mapping[str, float]]:
        """The models' losses on other hosts, for each of these series that enough hosts have scored.

        ``applications``: the workloads on this host, each with the name by which other hosts know it.
        """
        self._applications = applications
        self._names = {**self._names, **applications}
        try:
            found = self._pooled(young, now_unix_s)
        except Exception as exc:  # forecasts work without a prior
            self._say((f"forecast scores of other hosts cannot be used: {exc!r}",))
            return {}
        self._keep_origins(young)
        return found

    def hand_over(self, series: Mapping[Key, Followed]) -> None:
        """Write the scores for the daemon's contribution, once the names of the applications are known.

        The series of a workload that is gone still count for its application. Series of workloads whose application
        name is unknown are left out.
        """
        if not self._applications:
            return
        workloads = {workload for workload, _ in series}
        self._names = {each: name for each, name in self._names.items() if each in workloads}
        named = {key: each for key, each in series.items() if key[0] in self._names}
        try:
            write_scores(self._folder, contributed(named, self._names))
            if self._names != self._kept_names:
                write_names(self._folder, self._names)
                self._kept_names = self._names
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
            known_as = {key: (self._applications.get(key[0], key[0]), key[1]) for key in new}
            topics = {topic_of(each, aspect) for each in known_as.values() for aspect in (LOSS, MISSES)}
            ledger, problems = self._contributions.read(topics)
            self._say(problems)
            here = self._reader
            for key in new:
                # Scores of another replica on this host count as well; a workload's own scores never do.
                name = here.name if known_as[key] == key else ""
                asking = Asking(name, here.hardware, now_unix_s, here.expire_s)
                self._priors[key] = found = prior(ledger, known_as[key], asking)
                self._note(key, found, now_unix_s)
                if found.losses:
                    ranked = ", ".join(found.ranked)
                    log.info(
                        "%s %s: initial ranking of forecast models, best first: %s "
                        "(hosts that contributed scores: %d)",
                        *key,
                        ranked,
                        len(found.hosts),
                    )
        return {key: self._priors[key].losses for key in wanted if self._priors[key].losses}

    def _note(self, key: Key, found: Prior, now_unix_s: float) -> None:
        hosts, left_out = origin_hosts(found.told)
        if hosts or left_out:
            self._origins[key] = ForecastOrigin(key[1], found.ranked, True, now_unix_s, hosts, left_out)
        else:
            self._origins.pop(key, None)

    def _keep_origins(self, young: Collection[Key]) -> None:
        """Write the origins of the forecasts for ``perphctl model origin``, if they have changed."""
        self._origins = {
            key: found if found.in_force == (key in young) else replace(found, in_force=key in young)
            for key, found in self._origins.items()
            if key[0] in self._applications
        }
        by: dict[str, list[ForecastOrigin]] = {}
        for (workload, _), found in sorted(self._origins.items()):
            by.setdefault(workload, []).append(found)
        kept = {workload: tuple(found) for workload, found in by.items()}
        if kept == self._kept:
            return
        try:
            write_origins(self._folder, kept)
            self._kept = kept
        except (PerphError, OSError) as exc:
            log.warning("the origins of the forecasts cannot be stored: %s", exc)

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
