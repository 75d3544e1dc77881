"""Sizes and times that protect the daemon from its clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_PAUSE_S: Final = 366 * 86400.0
"""The longest pause that ends by itself; a longer one is one without an end."""
MAX_REASON: Final = 500
"""Characters of the reason for a pause."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Defaults fit one host's operators and its monitoring.

    ``reserved``, ``reserved_streams``, ``reserved_queries``: of the connections, event streams and queries at a time,
    so many only those can have who may change something. ``idle_s``: a connection
    that sends no complete request head for so long is closed. ``body_s``: for a request's body. ``write_s``: for the
    client to take an answer or one event. ``heartbeat_s``: between signs of life on an event stream.

    ``queries_cpu_s``: of CPU time all queries may use within ``queries_cpu_within_s``, of which
    ``reserved_queries_cpu_s`` only those who may change something. ``query_nice``: of the threads that answer them; not
    more, since one that batch keeps from its CPU while it holds the interpreter keeps the loop waiting as well.
    ``rest``: who may only read is answered one after the other, and after each answer nobody of them for so many times
    the CPU time that it took, at least ``least_answer_s``: a fifth of a core for all of them, whatever they ask.
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
    query_nice: int = 0
    queries_cpu_s: float = 12.0
    reserved_queries_cpu_s: float = 4.0
    queries_cpu_within_s: float = 60.0
    rest: float = 4.0
    least_answer_s: float = 0.001
