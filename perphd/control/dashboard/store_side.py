"""The store as the dashboard reads it: its file, or where this user may not read that, the daemon's queries.

Either way a query is one SELECT, read-only and bounded in time. The daemon also bounds the CPU time of all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from perphd.control.client import Client, Refused
from perphd.domain.errors import PerphError
from perphd.monitor.query import run_query

Rows: TypeAlias = list[list[Any]]
Query: TypeAlias = Callable[[str], Rows]
"""Answers one SELECT. Raises PerphError."""

MAX_ROWS: Final = 100_000
QUERY_S: Final = 30.0
"""For one query on the file, in a thread of this process."""


class StoreSide:
    """Queries on the store of one daemon, one after the other."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._path: str | None = None
        self._turn = asyncio.Lock()

    async def run(self, work: Callable[[Query], Any]) -> Any:
        """What ``work`` makes of its queries, in a thread. Raises PerphError."""
        async with self._turn:
            return await asyncio.to_thread(work, self.query)

    def query(self, sql: str) -> Rows:
        """The rows of one SELECT. Blocks."""
        if self._path is None:
            self._path = self._where()
        if self._path:
            return [list(row) for row in run_query(self._path, sql, MAX_ROWS, QUERY_S).rows]
        try:
            answer = self._client.send("POST", "query", {"sql": sql, "limit": MAX_ROWS})
        except Refused as exc:
            raise PerphError(f"the daemon's store: {exc}") from exc
        return list(answer["rows"])

    def _where(self) -> str:
        """The file, or nothing where it cannot be read by this user."""
        path = str(self._client.get("config")["store_path"])
        try:
            with open(path, "rb"):
                return path
        except OSError:
            return ""


def quoted(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"
