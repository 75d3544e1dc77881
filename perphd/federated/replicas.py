"""Statements of the replicas of applications on one host, by application and replica. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from perphd.federated.contribution import Statistic, spoken

EARLIER: Final = ""
"""Key, in place of an LRA's name, for replicas that are gone or that an earlier perphd process served."""


def of_present(
    said: Mapping[str, Mapping[str, tuple[Statistic, ...]]],
    present: Mapping[str, str],
    taken_back: Collection[tuple[str, str]],
    absent: Collection[str] = (),
) -> dict[str, dict[str, tuple[Statistic, ...]]]:
    """Statements about the applications present on this host. Those of replicas that are gone become ``EARLIER``.

    ``absent``: applications that are not here now and may be back soon; statements about them are kept as well.
    """
    found: dict[str, dict[str, tuple[Statistic, ...]]] = {}
    reset = {application for application, _ in taken_back}
    for application in sorted({*present.values(), *absent} & said.keys()):
        by = dict(said[application])
        for each, lra in taken_back:
            if each == application:
                by.pop(lra, None)
        gone = [each for lra in sorted(by) if present.get(lra) != application for each in by.pop(lra)]
        by[EARLIER] = () if application in reset else spoken(gone)
        found[application] = by
    return found
