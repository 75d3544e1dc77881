"""HTTP over the daemon's Unix socket for perphctl.

Uses only the standard library, so that perphctl starts quickly.
"""

from __future__ import annotations

import json
import os
import urllib.parse
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from perphd.domain.errors import PerphError

if TYPE_CHECKING:
    from http.client import HTTPResponse

DEFAULT_SOCKET = "/run/perphd/perphd.sock"
SOCKET_VARIABLE = "PERPHD_SOCKET"
TIMEOUT_S = 30.0
MOST_ROUNDS = 1_000_000
"""Maximum number of rounds in one recording."""
_UNREACHABLE = (
    FileNotFoundError,
    ConnectionRefusedError,
    ConnectionResetError,
    BrokenPipeError,
    TimeoutError,
)


class Unreachable(PerphError):
    """No daemon answers on the socket."""


class NotPermitted(PerphError):
    """This user may not open the socket, or the daemon denies the right."""


class Refused(PerphError):
    """The daemon answered with a refusal. ``error``: the error object of its answer."""

    def __init__(self, status: int, error: Mapping[str, str]) -> None:
        self.status, self.code = status, error.get("code", "")
        self.error = dict(error)
        text = error.get("message") or f"the daemon answered with HTTP status {status}"
        text, key = text.removeprefix("request: "), error.get("key", "")
        if self.code == "refused" and key and key not in text:
            text = f"{key}: {text}"
        if (allowed := error.get("allowed", "")) and allowed not in text:
            text += f" (allowed: {allowed})"
        super().__init__(text)


class Client:
    """Sends requests to one daemon. Each request uses its own connection."""

    def __init__(self, path: str, timeout_s: float = TIMEOUT_S) -> None:
        self.path, self._timeout_s = path, timeout_s

    def get(self, route: str, **query: str | int | None) -> Any:
        """The JSON answer to a GET of ``/v1/ROUTE``. Raises the errors of ``send``."""
        chosen = {key: value for key, value in query.items() if value is not None}
        suffix = f"?{urllib.parse.urlencode(chosen)}" if chosen else ""
        return self.send("GET", route + suffix)

    def send(
        self,
        method: str,
        route: str,
        body: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """The JSON answer to a request. ``timeout_s``: overrides the default.

        Raises:
            Unreachable: no daemon answers.
            NotPermitted: this user lacks the right.
            Refused: the daemon refused or failed.
        """
        with self._request(method, route, body, timeout_s) as response:
            return self._json(response, response.read())

    def events(self, **query: str | None) -> Generator[tuple[str, Any], None, None]:
        """Pairs of kind and data of the event stream's events, until the stream ends. Raises the errors of ``send``."""
        chosen = {key: value for key, value in query.items() if value}
        with self._request("GET", f"events?{urllib.parse.urlencode(chosen)}", None) as response:
            if response.status != 200:
                self._json(response, response.read())
            name = ""
            while raw := response.readline():
                line = raw.decode().rstrip("\n")
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    yield name, json.loads(line[6:])

    def recording(self, rounds: int) -> Generator[str, None, None]:
        """The lines of a recording of the next decision rounds, as they arrive. Raises the errors of ``send``."""
        with self._request("GET", f"recording?rounds={rounds}", None) as response:
            if response.status != 200:
                self._json(response, response.read())
            while raw := response.readline():
                if text := raw.decode().strip():
                    yield text

    @contextmanager
    def _request(
        self, method: str, route: str, body: Mapping[str, Any] | None, timeout_s: float | None = None
    ) -> Iterator[HTTPResponse]:
        from http.client import HTTPException  # imported here so that perphctl starts quickly

        from perphd.control.unix_http import UnixConnection

        connection = UnixConnection(self.path, self._timeout_s if timeout_s is None else timeout_s)
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            connection.request(method, f"/v1/{route}", data, headers)
            yield connection.getresponse()
        except PermissionError as exc:
            raise NotPermitted(
                f"{self.path}: this user may not connect: be root or a member of the daemon's read group "
                "(perphd, unless configured otherwise; changing anything requires the group perphd-admin as well)"
            ) from exc
        except _UNREACHABLE as exc:
            reason = (
                "the answer took too long" if isinstance(exc, TimeoutError) else os.strerror(exc.errno or 0)
            )
            raise Unreachable(
                f"no daemon answers on {self.path} ({reason}); "
                f"is perphd running? (--socket or {SOCKET_VARIABLE} names another socket)"
            ) from exc
        except (OSError, HTTPException) as exc:
            raise Unreachable(f"{self.path}: {exc}") from exc
        finally:
            connection.close()

    def _json(self, response: HTTPResponse, data: bytes) -> Any:
        try:
            answer = json.loads(data)
        except ValueError as exc:
            raise Unreachable(
                f"{self.path}: the program that answers there is not perphd (its answer is not JSON)"
            ) from exc
        if response.status < 400:
            return answer
        error = answer.get("error") if isinstance(answer, dict) else None
        error = error if isinstance(error, dict) else {}
        if response.status == 403:
            raise NotPermitted(str(error.get("message", "not permitted")))
        raise Refused(response.status, error)


def socket_path(given: str | None) -> str:
    """The socket to use: ``given``, else that of the environment, of the configuration, or the default."""
    if given or (given := os.environ.get(SOCKET_VARIABLE)):
        return given
    if not os.path.exists(DEFAULT_SOCKET):
        # The configuration may name another path. It is read only now, because reading it costs more than the request.
        from perphd.config.file import load
        from perphd.domain.errors import ConfigError

        try:
            return load(runtime=False).daemon.socket
        except ConfigError:
            pass
    return DEFAULT_SOCKET
