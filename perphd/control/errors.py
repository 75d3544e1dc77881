"""Errors of the control API."""

from __future__ import annotations

from enum import Enum

from perphd.domain.errors import PerphError


class Code(Enum):
    """Kinds of errors: the ``code`` in the body and the HTTP status."""

    REFUSED = ("refused", 400)  # a value is not acceptable
    NOT_PERMITTED = ("not-permitted", 403)
    NOT_FOUND = ("not-found", 404)  # no such workload, job or other object
    NO_ROUTE = ("no-route", 404)  # this API has no such path
    METHOD = ("method-not-allowed", 405)
    TIMEOUT = ("timeout", 408)  # the client or the query was too slow
    CONFLICT = ("conflict", 409)  # conflicts with an existing object
    TOO_LARGE = ("too-large", 413)
    BUSY = ("busy", 503)  # too many connections or streams
    UNAVAILABLE = ("unavailable", 503)  # disabled or not running
    FAILED = ("failed", 500)  # accepted, but the operation failed

    @property
    def text(self) -> str:
        """The code in the body."""
        return self.value[0]

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.value[1]


class ApiError(PerphError):
    """An error that is sent to the client. ``key`` and ``allowed`` have the meaning that they have in ConfigError."""

    def __init__(self, code: Code, message: str, key: str = "", allowed: str = "") -> None:
        self.code, self.message, self.key, self.allowed = code, message, key, allowed
        super().__init__(message)

    def body(self) -> dict[str, dict[str, str]]:
        """The JSON body of the answer."""
        return {
            "error": {
                "code": self.code.text,
                "message": self.message,
                "key": self.key,
                "allowed": self.allowed,
            }
        }
