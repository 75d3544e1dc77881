"""A client that knows the truth: kernel timestamps of each request's sending and of its answer's coming.

Closed loop: every connection asks again when it has its answer. Open loop: requests at random times, asked by
whichever connection is free.
"""

from __future__ import annotations

import errno
import random
import selectors
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

SO_TIMESTAMPING = 37
_TX_SOFTWARE, _RX_SOFTWARE, _SOFTWARE, _TIMESTAMP_ONLY = 1 << 1, 1 << 3, 1 << 4, 1 << 11
_ERRQUEUE = 0x2000
_STAMPS = struct.Struct("qqqqqq")


def enable(connection: socket.socket) -> None:
    """Have the kernel stamp what is sent and what comes."""
    flags = _TX_SOFTWARE | _RX_SOFTWARE | _SOFTWARE | _TIMESTAMP_ONLY
    connection.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, flags)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)


def _stamp_ns(ancillary: Sequence[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPING:
            seconds, nanoseconds, *_ = _STAMPS.unpack(data)
            return int(seconds * 10**9 + nanoseconds)
    return None


@dataclass
class Asker:
    """One connection; ``answer_bytes``: how long each answer is."""

    connection: socket.socket
    request: bytes
    answer_bytes: int
    missing: int = 0
    sent_ns: int | None = None
    first_ns: int | None = None

    def ask(self) -> None:
        self.missing, self.sent_ns, self.first_ns = self.answer_bytes, None, None
        self.connection.sendall(self.request)

    def see(self) -> bool:
        """Take what has come; True: the answer is complete."""
        try:
            while True:
                _, ancillary, _, _ = self.connection.recvmsg(0, 512, _ERRQUEUE)
                self.sent_ns = _stamp_ns(ancillary) or self.sent_ns
        except BlockingIOError:
            pass
        try:
            data, ancillary, _, _ = self.connection.recvmsg(1 << 16, 512)
        except BlockingIOError:
            return False
        if not data:
            raise ConnectionError(errno.ECONNRESET, "the server closed the connection")
        self.first_ns = self.first_ns or _stamp_ns(ancillary)
        self.missing -= len(data)
        return self.missing <= 0


def path_ms(rate_per_s: float = 0.0, times: int = 100) -> float:
    """The median time of one datagram to oneself over loopback, at the pace of a load; cold caches make it longer.

    A request's time at the client holds the way of two packets that its time at the server does not.
    """
    taken_ns = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.bind(("127.0.0.1", 0))
        own.connect(own.getsockname())
        for _ in range(times):
            if rate_per_s:
                time.sleep(1.0 / rate_per_s)
            before_ns = time.monotonic_ns()
            own.send(b"x")
            own.recv(1)
            taken_ns.append(time.monotonic_ns() - before_ns)
    return float(np.median(taken_ns)) / 1e6


@dataclass
class Wire:
    """What the client saw: each request's time on the wire, and those without both stamps."""

    times_ns: list[int] = field(default_factory=list)
    answered: int = 0

    def percentile_ms(self, share: float) -> float:
        return float(np.quantile(self.times_ns, share, method="inverted_cdf")) / 1e6


def load(askers: Sequence[Asker], duration_s: float, rate_per_s: float = 0.0, seed: int = 1) -> Wire:
    """Ask for so long, then wait for what is still unanswered. ``rate_per_s``: open loop."""
    wire, chance = Wire(), random.Random(seed)
    idle = list(askers)
    with selectors.DefaultSelector() as selector:
        for asker in askers:
            selector.register(asker.connection, selectors.EVENT_READ, asker)
        now = time.monotonic()
        end, due = now + duration_s, now
        while now < end or len(idle) < len(askers):
            if now < end:
                while idle and (rate_per_s == 0.0 or due <= now):
                    idle.pop().ask()
                    due += chance.expovariate(rate_per_s) if rate_per_s else 0.0
            wait_s = min(end, due) - now if rate_per_s and idle and now < end else 0.1
            for key, _ in selector.select(max(0.0, wait_s)):
                asker = key.data
                if asker not in idle and asker.see():
                    wire.answered += 1
                    if asker.sent_ns is not None and asker.first_ns is not None:
                        wire.times_ns.append(asker.first_ns - asker.sent_ns)
                    idle.append(asker)
            now = time.monotonic()
    return wire
