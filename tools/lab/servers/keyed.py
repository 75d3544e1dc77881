"""Servers whose load is native/ask.c: Redis, memcached and an HTTP service."""

from __future__ import annotations

import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence

from tools.lab.load import Load, Reporting, Running
from tools.lab.servers.seam import NATIVE, Place, compiled, family, free_port, listens, need, run, wait_until

REDIS_CLIENTS, REDIS_RATE = 8, 4000
MEMCACHED_CLIENTS, MEMCACHED_RATE = 8, 4000
HTTP_CLIENTS, HTTP_RATE = 4, 150
OPEN_CONNECTIONS = 32
"""Connections of an open loop: enough that waiting requests are not delayed by the generator."""


def _pair(server: str, unit: str, what: str, clients: int, rate: int) -> tuple[Load, Load]:
    return (
        Load(f"{server}-closed", server, unit, f"{what}, closed loop, {clients} connections"),
        Load(f"{server}-open", server, unit,
             f"{what}, open loop, {rate} requests/s ({OPEN_CONNECTIONS} connections); latency counts from arrival",
             open_loop=True),
    )  # fmt: skip


LOADS = (
    *_pair("redis", "commands", "reads, writes and ranges of a sorted set", REDIS_CLIENTS, REDIS_RATE),
    *_pair(
        "memcached", "requests", "reads of 16 keys at once, and writes", MEMCACHED_CLIENTS, MEMCACHED_RATE
    ),
    *_pair("http", "requests", "pages that cost about a millisecond each", HTTP_CLIENTS, HTTP_RATE),
)
_LOOPS = {
    "redis": (REDIS_CLIENTS, REDIS_RATE),
    "memcached": (MEMCACHED_CLIENTS, MEMCACHED_RATE),
    "http": (HTTP_CLIENTS, HTTP_RATE),
}


class Asked:
    """One server program, and native/ask.c for its load."""

    def __init__(
        self,
        place: Place,
        protocol: str,
        command: Callable[[int], Sequence[str]],
    ) -> None:
        self._ledger, self._scale, self._protocol = place.ledger, place.scale, protocol
        self._ask = compiled("ask", place.folder)
        self.port = free_port()
        log = place.folder / f"{protocol}.log"
        with log.open("wb") as output:
            self.process = self._ledger.start(
                command(self.port), groups=place.groups, stdout=output, stderr=output
            )
        wait_until(lambda: listens(self.port), self.process, log, protocol)

    @property
    def pids(self) -> Sequence[int]:
        """The program's processes."""
        return family(self.process.pid)

    def prepare(self, load: Load) -> None:
        """Do nothing, because the generator fills the keys."""

    def start(self, load: Load, groups: list[str]) -> Running:
        """Start the generator."""
        clients, rate = (number * self._scale for number in _LOOPS[self._protocol])
        loop = [str(OPEN_CONNECTIONS * self._scale), str(rate)] if load.open_loop else [str(clients), "0"]
        return Reporting(self._ledger, [self._ask, self._protocol, str(self.port), *loop], groups)

    def stop(self) -> None:
        """End the server."""
        self._ledger.end(self.process, signal.SIGTERM)


class Redis(Asked):
    """A Redis without persistence."""

    def __init__(self, place: Place) -> None:
        need(("redis-server",), "redis-server")
        super().__init__(
            place, "redis",
            lambda port: ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
                          "--appendonly", "no", "--dir", str(place.data)],
        )  # fmt: skip

    def version(self) -> str:
        """Its version."""
        return f"Redis {run('redis-server', '--version').split('v=')[1].split()[0]}"

    def sli(self) -> str:
        """Commands per second."""
        return f'source = "redis"\nhost = "127.0.0.1"\nport = {self.port}\n'


class Memcached(Asked):
    """A memcached with four threads."""

    def __init__(self, place: Place) -> None:
        need(("memcached",), "memcached")
        super().__init__(
            place, "memcached",
            lambda port: ["memcached", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-m", "64", "-u", "nobody"],
        )  # fmt: skip

    def version(self) -> str:
        """Its version."""
        return run("memcached", "-V").strip()

    def sli(self) -> str:
        """None, because perphd judges it by its TCP connections if the kernel allows that."""
        return f'source = "tcp"\nports = "{self.port}"\n'


class Http(Asked):
    """native/service.py: an aiohttp application with metrics for Prometheus."""

    def __init__(self, place: Place) -> None:
        super().__init__(
            place, "http", lambda port: [sys.executable, str(NATIVE / "service.py"), str(port)]
        )  # fmt: skip

    def version(self) -> str:
        """The service's framework."""
        return f"aiohttp {run(sys.executable, '-c', 'import aiohttp; print(aiohttp.__version__)').strip()}"

    def sli(self) -> str:
        """Requests and their latency, as exposed by the application."""
        return (
            f'source = "prometheus"\nurl = "http://127.0.0.1:{self.port}/metrics"\n'
            'work = "pages_seconds_count"\nlatency_histogram = "pages_seconds"\n'
        )


def answers(url: str) -> bool:
    """True if a GET succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=1.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
