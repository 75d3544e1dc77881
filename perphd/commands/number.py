"""Numbers as options of a command line."""

from __future__ import annotations

import math
from typing import Any

import click


class Number(click.FloatRange):
    """A finite number: NaN lies in every range, because it compares false with both ends."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return found

    def _describe_range(self) -> str:
        # For --help; click says "x<=None" of a range without ends.
        return "" if self.min is self.max is None else super()._describe_range()
