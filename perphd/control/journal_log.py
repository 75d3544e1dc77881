"""Logging to systemd's journal: a sentence for people, and fields to search by.

``journalctl -u perphd`` shows sentences; ``journalctl -u perphd PERPHD_WORKLOAD=db PERPHD_EVENT=decision -o
json`` is for programs. Without systemd-python, or with a redirected standard error, the log goes to standard
error.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import cast

from perphd.domain.utf8 import encodable

Send = Callable[..., None]
"""systemd.journal.send(MESSAGE, FIELD=value, ...)."""

_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))


def start_logging(level: str, environment: Mapping[str, str] = os.environ) -> None:
    """Log to the journal if standard error is connected to it, else to standard error as text."""
    send = _journal_send(environment)
    if send is None:
        text = "%(asctime)s %(levelname)s %(message)s"
        logging.basicConfig(stream=sys.stderr, level=level.upper(), format=text, datefmt="%H:%M:%S")
    else:
        logging.basicConfig(handlers=[JournalHandler(send)], level=level.upper(), format="%(message)s")
    logging.getLogger("aiohttp").setLevel(logging.WARNING)


def is_journal(environment: Mapping[str, str], fd: int = 2) -> bool:
    """True if this descriptor is the journal stream named in JOURNAL_STREAM (systemd.exec(5))."""
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return environment.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class JournalHandler(logging.Handler):
    """Sends records with severity, source location, and the fields in ``record.fields`` as PERPHD_*."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record; on failure, write it to standard error."""
        try:
            given: Mapping[str, str] = getattr(record, "fields", {})
            fields = {f"PERPHD_{name.upper()}": value for name, value in given.items() if value}
            self._send(
                encodable(self.format(record)),
                PRIORITY=str(_priority(record.levelno)),
                SYSLOG_IDENTIFIER="perphd",
                LOGGER=record.name,
                CODE_FILE=record.pathname,
                CODE_LINE=record.lineno,
                CODE_FUNC=record.funcName,
                **fields,
            )
        except Exception:
            self.handleError(record)


def _priority(level: int) -> int:
    return next((priority for least, priority in _PRIORITIES if level >= least), 7)


def _journal_send(environment: Mapping[str, str]) -> Send | None:
    if not is_journal(environment):
        return None
    try:
        journal = importlib.import_module("systemd.journal")
    except ImportError:
        return None
    return cast(Send, journal.send)
