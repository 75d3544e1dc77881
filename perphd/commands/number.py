"""Numbers as command-line options."""

from __future__ import annotations

import math
from typing import Any

import click


class Number(click.FloatRange):
    """A finite number. NaN must be refused explicitly, because range checks with it never fail."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return found

    def _describe_range(self) -> str:
        # For --help: click prints "x<=None" for a range without ends.
        return "" if self.min is self.max is None else super()._describe_range()
