"""Access control of the dashboard: one-time links, sessions, and request checks. No I/O.

A link contains a token that is valid for one visit. It is exchanged for a session cookie, which scripts
cannot read and other sites cannot send. A request's Host must be a name of this machine's loopback interface. This
rejects names that an attacker's DNS resolves to 127.0.0.1.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from perphd.domain.errors import PerphError

TOKEN_BYTES: Final = 32
SESSION_S: Final = 12 * 3600.0
"""Seconds without use after which a session ends."""
MAX_SESSIONS: Final = 16
LOOPBACK_NAMES: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
CSRF_HEADER: Final = "X-Perphd-Csrf"
SAFE_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cache-Control": "no-store",
}


class RequestRefused(PerphError):
    """The request is refused; ``status``: the HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


@dataclass(slots=True)
class Session:
    """A browser session started by a valid link. ``csrf``: the token that its changing requests must repeat."""

    csrf: str
    seen_s: float


class Sessions:
    """Tokens and sessions of one server.

    Args:
        on_used: called with the next token after a token was used; None: there is only one token.
        now_s: a monotonic clock.
    """

    def __init__(
        self, on_used: Callable[[str], None] | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._on_used, self._now_s = on_used, now_s
        self._token = secrets.token_urlsafe(TOKEN_BYTES)
        self._used: set[str] = set()
        self._sessions: dict[str, Session] = {}

    @property
    def token(self) -> str:
        """The token of the valid link; empty if it was used and there is no next token."""
        return self._token

    def exchange(self, token: str) -> str:
        """A new session for this token, which becomes invalid.

        Raises:
            RequestRefused: the token was used before, or never issued.
        """
        if not self._token or not hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode()):
            if token in self._used:
                raise RequestRefused(403, "This link has been used. Each link opens the dashboard once.")
            raise RequestRefused(
                403, "This link is not valid. Copy the whole address that perphctl dashboard printed."
            )
        self._used.add(self._token)
        self._token = ""
        if self._on_used is not None:
            self._token = secrets.token_urlsafe(TOKEN_BYTES)
            self._on_used(self._token)
        self._forget_old()
        name = secrets.token_urlsafe(TOKEN_BYTES)
        self._sessions[name] = Session(secrets.token_urlsafe(TOKEN_BYTES), self._now_s())
        return name

    def find(self, name: str | None) -> Session:
        """The session of a cookie. Raises RequestRefused if there is none or it has expired."""
        found = self._sessions.get(name or "")
        now_s = self._now_s()
        if found is None or now_s - found.seen_s > SESSION_S:
            self._sessions.pop(name or "", None)
            raise RequestRefused(401, "Open the dashboard with the link that perphctl dashboard printed.")
        found.seen_s = now_s
        return found

    def _forget_old(self) -> None:
        """Remove expired sessions, and the oldest one if there are too many."""
        now_s = self._now_s()
        kept = {name: each for name, each in self._sessions.items() if now_s - each.seen_s <= SESSION_S}
        newest = sorted(kept.items(), key=lambda pair: pair[1].seen_s)[-(MAX_SESSIONS - 1) :]
        self._sessions = dict(newest)


def check_host(host: str) -> None:
    """Refuse a request for another host name. Raises RequestRefused."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name.lower() not in LOOPBACK_NAMES:
        allowed = ", ".join(sorted(LOOPBACK_NAMES))
        raise RequestRefused(
            403, f"The dashboard answers only to {allowed}, not to {host[:80] or 'no name'}."
        )


def check_origin(headers: Mapping[str, str]) -> None:
    """Refuse a request from another site's page. Raises RequestRefused."""
    origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site", "none")
    if site not in ("same-origin", "none") or (origin is not None and origin != f"http://{headers['Host']}"):
        raise RequestRefused(403, "This request came from another site.")


def check_change(headers: Mapping[str, str], session: Session, admin: bool) -> None:
    """Refuse a change that this server may not make, or that its page did not send. Raises RequestRefused."""
    if not admin:
        raise RequestRefused(403, "This dashboard is read-only. Start it with --admin to make changes here.")
    if "Origin" not in headers:
        raise RequestRefused(403, "A change must come from the dashboard's own page.")
    given = headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(given.encode("utf-8", "replace"), session.csrf.encode()):
        raise RequestRefused(403, "The page is older than this dashboard. Load it again.")
