"""The few requests to YARN's REST interfaces that perphd needs, over aiohttp.

Error classes tell the caller what to do:
    YarnUnreachable  no answer, a late one, a server's own error, or no active ResourceManager: retry after a pause
    YarnMissing      the object does not exist (404)
    YarnRefused      the request is not permitted or invalid: a person must act
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from perphd.adapters.bodies import whole_body
from perphd.domain.errors import PerphError

TIMEOUT_S: Final = 5.0
_SHOWN: Final = 200
_MOST_BYTES: Final = 64 << 20
"""Maximum size of an answer in bytes: a node that is named by its host is looked up in the list of all nodes, which may
be thousands.
"""


class YarnError(PerphError):
    """A request that YARN did not fulfil."""


class YarnUnreachable(YarnError):
    """No usable answer: retry after a pause."""


class YarnMissing(YarnError):
    """The object does not exist."""


class YarnRefused(YarnError):
    """The request is not permitted or invalid."""


def checked_url(text: str) -> str:
    """The address of a web interface, without a trailing slash.

    Raises:
        YarnError: it is not an http or https address.
    """
    parts = urlsplit(text)
    try:
        is_address = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if parts.scheme not in ("http", "https") or not is_address or parts.path.strip("/") or parts.query:
        raise YarnError(
            f"{text!r} is not an accepted address (allowed: http://HOST:PORT or https://HOST:PORT, without a path)"
        )
    return f"{parts.scheme}://{parts.netloc}"


def part(answer: Any, name: str, *, optional: bool = False) -> Any:
    """The member of an answer; None if it is ``optional`` and missing.

    Raises:
        YarnUnreachable: the answer has another form, such as that of a proxy or of a manager that starts.
    """
    if isinstance(answer, Mapping) and (optional or name in answer):
        return answer.get(name)
    raise YarnUnreachable(f"YARN's answer has no {name!r}: {str(answer)[:_SHOWN]}")


class YarnClient:
    """Sends requests to a ResourceManager, or the active one of several, and to NodeManagers.

    Args:
        addresses: addresses of the ResourceManagers' web interfaces.
        user: sent as ``user.name`` if the cluster has simple authentication; empty: not sent.
        ca_file: certificate authority for https; empty: the system's.
        timeout_s: time-out of each request.
    """

    def __init__(
        self, addresses: Sequence[str], user: str = "", ca_file: str = "", timeout_s: float = TIMEOUT_S
    ) -> None:
        self._addresses = [checked_url(each) for each in addresses]
        self._query = {"user.name": user} if user else {}
        self._ca_file, self._timeout_s = ca_file, timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> YarnClient:
        context: ssl.SSLContext | bool = True
        if self._ca_file:
            try:
                context = ssl.create_default_context(cafile=self._ca_file)
            except OSError as exc:
                raise YarnError(
                    f"{self._ca_file}: cannot be read as certificates of an authority (PEM): {exc}"
                ) from exc
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=4),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str) -> Any:
        """Read an object from the active ResourceManager; ``path``: the part after /ws/v1/cluster/.

        The address that answered is asked first the next time.

        Raises:
            YarnError: its class tells the caller what to do.
        """
        problems = []
        for address in tuple(self._addresses):
            try:
                answer = await self.request("GET", f"{address}/ws/v1/cluster/{path}")
            except YarnUnreachable as exc:
                problems.append(str(exc))
            else:
                self._addresses.remove(address)
                self._addresses.insert(0, address)
                return answer
        raise YarnUnreachable("; ".join(problems))

    async def post(self, path: str, body: object) -> Any:
        """Send an object to the ResourceManager that answered last, and to no other.

        If no answer comes, the outcome is unknown: read before the next write.

        Raises:
            YarnError: its class tells the caller what to do.
        """
        return await self.request("POST", f"{self._addresses[0]}/ws/v1/cluster/{path}", body)

    async def request(self, method: str, url: str, body: object = None) -> Any:
        """Send one request; returns the JSON answer.

        Redirects are not followed: a standby ResourceManager redirects to the active one, which is in the list.

        Raises:
            YarnError: its class tells the caller what to do.
        """
        assert self._session is not None, "used outside its context manager"
        shown = f"{method} {url}"
        try:
            async with self._session.request(
                method, url, json=body, params=self._query, headers={"Accept": "application/json"},
                allow_redirects=False,
            ) as answer:  # fmt: skip
                text = (await whole_body(answer, _MOST_BYTES)).decode(errors="replace")
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
            raise YarnUnreachable(f"{shown}: {_reason(exc, self._timeout_s)}") from exc
        if 300 <= status < 400:
            raise YarnUnreachable(f"{shown}: redirected: this ResourceManager is not the active one")
        if status >= 400:
            raise _error(shown, status, text)
        try:
            return json.loads(text) if text else None
        except ValueError as exc:
            raise YarnUnreachable(
                f"{shown}: the answer is not JSON: {text[:_SHOWN].strip()!r} (a standby ResourceManager, or not "
                "YARN's web interface)"
            ) from exc


def _reason(exc: BaseException, timeout_s: float) -> str:
    if isinstance(exc, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    return str(exc) or type(exc).__name__


def _error(shown: str, status: int, text: str) -> YarnError:
    said = text.strip()
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, Mapping) and isinstance(remote := found.get("RemoteException"), Mapping):
        said = str(remote.get("message", said))
    message = f"{shown}: {status}: {said[:_SHOWN]}"
    if status == 404:
        return YarnMissing(message)
    if status in (401, 403):
        return YarnRefused(f"{message}: name a user of yarn.admin.acl with --user")
    return YarnUnreachable(message) if status >= 500 or status in (408, 429) else YarnRefused(message)
