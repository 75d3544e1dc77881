"""Keeps the statements (statistics) of applications' replicas on one host, by application and replica. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from perphd.federated.contribution import Statistic, spoken

EARLIER: Final = ""
"""Key, in place of an LRA's name, for replicas that are gone or that an earlier perphd process served."""
ABSENT_S: Final = 3600.0
"""Seconds for which statements stay about an application that is no longer here, or not yet here after a restart."""


def last_here(
    here_s: Mapping[str, float], said: Iterable[str], present: Iterable[str], now_s: float
) -> dict[str, float]:
    """Time at which each application was last on this host, without those that were gone longer than ``ABSENT_S``.

    ``here_s``: these times so far; ``said``: applications with statements; ``present``: those on this host now;
    ``now_s``: the time, in seconds since the epoch. A time in the future counts as now.
    """
    found = {each: min(here_s.get(each, now_s), now_s) for each in said} | dict.fromkeys(present, now_s)
    return {each: at_s for each, at_s in found.items() if now_s - at_s <= ABSENT_S}


def of_present(
    said: Mapping[str, Mapping[str, tuple[Statistic, ...]]],
    present: Mapping[str, str],
    taken_back: Collection[tuple[str, str]],
    absent: Collection[str] = (),
) -> dict[str, dict[str, tuple[Statistic, ...]]]:
    """Statements about the applications present on this host. Those of replicas that are gone become ``EARLIER``.

    ``present``: application by LRA. ``taken_back``: pairs of an application and an LRA. The LRA's statements are
    dropped, and so are those under ``EARLIER``, which may include them. ``absent``: applications that are not here now
    and may be back soon; statements about them are kept as well.
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
