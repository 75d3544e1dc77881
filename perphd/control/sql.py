"""SQL on the store for the control API: in a thread, few at a time, so that no query delays a tick."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from perphd.agent.config import Config
from perphd.control.errors import ApiError, Code
from perphd.control.limits import Limits
from perphd.control.wire import json_of
from perphd.monitor.query import Cell, QueryError, QueryResult, run_query


class Queries:
    """Answers queries on the store that a configuration names."""

    def __init__(self, config: Config, limits: Limits) -> None:
        self._config, self._limits = config, limits
        self._running = 0

    async def answer(self, sql: str, limit: int, may_change: bool) -> bytes:
        """The JSON answer. ``may_change``: who asks has the reserved queries as well.

        Raises:
            ApiError: the store is switched off, the query is refused, or too many are running.
        """
        if not self._config.store.enabled:
            raise ApiError(Code.UNAVAILABLE, "no store is kept here", "store.enabled", "true")
        if self._running >= self._limits.queries - (0 if may_change else self._limits.reserved_queries):
            raise ApiError(Code.BUSY, f"{self._running} queries are running already; try again")
        self._running += 1
        try:
            return await asyncio.to_thread(self._run, sql, limit)
        finally:
            self._running -= 1

    def _run(self, sql: str, limit: int) -> bytes:
        try:
            result = run_query(self._config.store_path, sql, limit, self._limits.query_s)
        except QueryError as exc:
            raise ApiError(Code.REFUSED, str(exc), "sql", "one SELECT statement") from exc
        return json_of(answer(result)).encode()


def answer(result: QueryResult) -> dict[str, Any]:
    """A result as the API gives it."""
    return {
        "columns": list(result.columns),
        "rows": [[_cell(cell) for cell in row] for row in result.rows],
        "truncated": result.truncated,
    }


def _cell(value: Cell) -> str | float | int | None:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
