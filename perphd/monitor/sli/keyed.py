"""The text format of indicators from files and commands.

Either one number, the work rate per second, or lines ``name = value``. Names are those of ``SliReading`` and
``work_total``, a growing count of completed work from which perphd computes the rate. ``work_events`` and
``latency_events`` may state how many requests are behind the rate and the percentiles. ``#`` begins a
comment.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from perphd.domain.errors import ParseError
from perphd.monitor.sli.reading import PUSHED_FIELDS, SLI_FIELDS, SliReading, behind, told
from perphd.monitor.sli.resolution import CountWindow, Resolution, ResolutionFinder

WORK_TOTAL: Final = "work_total"
MAX_BYTES: Final = 65536
_NAMES: Final = (*PUSHED_FIELDS, WORK_TOTAL)
_ALLOWED: Final = f"one number, or lines name = value with the names {', '.join(_NAMES)}, values not negative"


def parse_indicators(text: str) -> dict[str, float]:
    """Parse the format above; a single number is ``work_rate_per_s``.

    Raises:
        ParseError: the text is empty or of another form, a name is repeated, or a value is negative or infinite.
    """
    lines = [line for line in (raw.partition("#")[0].strip() for raw in text.splitlines()) if line]
    if len(lines) == 1 and "=" not in lines[0]:
        return {"work_rate_per_s": _number(lines[0], text)}
    found: dict[str, float] = {}
    for line in lines:
        name, equals, value = line.partition("=")
        name = name.strip()
        if not equals or name not in _NAMES or name in found:
            raise ParseError("a set of indicators", line, _ALLOWED)
        found[name] = _number(value.strip(), line)
    if not found:
        raise ParseError("a set of indicators", text, _ALLOWED)
    if not found.keys() & {*SLI_FIELDS, WORK_TOTAL}:
        raise ParseError("a set of indicators", text, _ALLOWED)
    if WORK_TOTAL in found and "work_rate_per_s" in found:
        raise ParseError("a set of indicators", text, "work_rate_per_s or work_total, not both")
    return found


def _number(text: str, shown: str) -> float:
    # float() would accept "1_000", "nan", "infinity" and digits of other scripts too.
    plain = text.isascii() and "_" not in text and not text[-1:].isspace()
    try:
        value = float(text) if plain else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0.0:
        raise ParseError("a set of indicators", shown, _ALLOWED)
    return value


class KeyedReader:
    """Parses successive texts of one source, and computes the rate of ``work_total`` between them.

    ``delivered``: True if perphd reads each text as soon as it is written.
    """

    def __init__(self, finder: ResolutionFinder, *, delivered: bool) -> None:
        self._finder = finder
        self._work = CountWindow(delivered=delivered)

    def reading(self, text: str, at_s: float, every: Resolution | None = None) -> SliReading:
        """The indicators in ``text``, which was written at ``at_s``. Raises ParseError if it has another format.

        ``every``: how often such texts are delivered; None if perphd requests them.
        """
        values = parse_indicators(text)
        reading, resolution = told(values), every
        if WORK_TOTAL in values:
            resolution = self._finder.update(values[WORK_TOTAL], at_s)
            counted = self._work.update(values[WORK_TOTAL], at_s, resolution)
            reading = replace(reading, work_rate_per_s=counted.rate, work=behind(counted))
        return reading if resolution is None else replace(reading, resolution_s=resolution.reading)
