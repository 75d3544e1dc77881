"""Limits that protect the daemon from its clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_PAUSE_S: Final = 366 * 86400.0
"""The longest temporary pause, in seconds."""
MAX_REASON: Final = 500
"""Maximum number of characters in the reason for a pause."""


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Limits; the defaults suit one host's operators and its monitoring.

    ``reserved``, ``reserved_streams``, ``reserved_queries``: the part of the connections, event streams and
    concurrent queries that only administrators can use. ``idle_s``: time without a complete request head
    after which a connection is closed. ``body_s``: time for a request's body. ``write_s``: time for the
    client to receive an answer or one event. ``heartbeat_s``: interval of keep-alives on an event stream.
    ``query_spill_bytes``: size of a query's temporary files, in which SQLite sorts and groups.
    ``queries_cpu_s``: CPU time that all queries may use within ``queries_cpu_within_s``;
    ``reserved_queries_cpu_s`` of it is for administrators only. ``query_nice``: niceness of the query threads. It
    is not higher, because batch could keep such a thread from its CPU while the thread holds the interpreter lock,
    which would delay the loop as well. ``rest``: after each answer to a reader, all readers wait for this multiple
    of the answer's CPU time (at least ``least_answer_s``). Since readers are served one at a time, all readers
    together use at most a fifth of a core.
    """

    connections: int = 64
    reserved: int = 8
    streams: int = 16
    reserved_streams: int = 4
    body_bytes: int = 512 * 1024
    idle_s: float = 30.0
    body_s: float = 10.0
    write_s: float = 20.0
    heartbeat_s: float = 15.0
    shutdown_s: float = 2.0
    queries: int = 3
    reserved_queries: int = 1
    query_s: float = 10.0
    query_rows: int = 100_000
    query_spill_bytes: int = 256 << 20
    query_nice: int = 0
    queries_cpu_s: float = 12.0
    reserved_queries_cpu_s: float = 4.0
    queries_cpu_within_s: float = 60.0
    rest: float = 4.0
    least_answer_s: float = 0.001
