"""HTTP over a Unix socket. Separate from ``client``, because http.client is slow to import."""

from __future__ import annotations

import http.client
import socket


class UnixConnection(http.client.HTTPConnection):
    """A connection to the daemon's socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the path instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
