"""The tables ``[[notify]]`` of the configuration: who receives notices."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from perphd.config.schema import read_item, setting, show
from perphd.domain.errors import ConfigError
from perphd.domain.incident import IncidentKind, NoticeRule

NOTIFY: Final = "notify"


@dataclass(frozen=True, slots=True)
class NotifyConfig:
    """Table ``[[notify]]``: one receiver of notices, a webhook or a command."""

    name: str = setting(doc="its name in the log", kind="name")
    url: str = setting(
        "", "webhook that receives each notice as JSON by POST; http:// or https://", kind="optional-url"
    )
    command: str = setting(
        "",
        "command that receives each notice as JSON on standard input; run without a shell, with the daemon's "
        "rights",
        kind="optional-command",
    )
    on: str = setting(
        ",".join(IncidentKind),
        "kinds of notices, separated by commas; the end of a condition is reported if its beginning was",
        kind="incidents",
    )
    bearer_token_file: str = setting(
        "", "file whose first line is sent to the webhook as bearer token", kind="optional-path"
    )
    after_s: float = setting(
        60.0,
        "time for which a condition must last before perphd reports it",
        low=0.0,
        high=86400.0,
        unit="s",
        expert=True,
    )
    pause_s: float = setting(
        900.0,
        "minimum time between two notices about the same condition",
        low=1.0,
        high=604800.0,
        unit="s",
        expert=True,
    )
    most_per_h: int = setting(
        20,
        "maximum number of notices in an hour, for all conditions together",
        low=1,
        high=3600,
        expert=True,
    )
    timeout_s: float = setting(
        10.0,
        "time limit for the webhook or the command; a failure is retried twice",
        low=0.1,
        high=300.0,
        unit="s",
        expert=True,
    )

    @property
    def rule(self) -> NoticeRule:
        """The selection and the rate limit of notices."""
        kinds = frozenset(IncidentKind(kind) for kind in self.on.split(","))
        return NoticeRule(kinds, self.after_s, self.pause_s, self.most_per_h)

    @property
    def argv(self) -> tuple[str, ...]:
        """The command and its arguments."""
        return tuple(shlex.split(self.command))


def read_notify(raw: Mapping[str, Any], source: str) -> tuple[NotifyConfig, ...]:
    """The ``[[notify]]`` tables of a parsed file.

    Raises:
        ConfigError: a key or value is refused, or a receiver has neither or both of url and command.
    """
    tables = raw.get(NOTIFY, [])
    if not isinstance(tables, list):
        allowed = f"any number of tables, each beginning with [[{NOTIFY}]]"
        raise ConfigError(source, NOTIFY, f"{show(tables)} is not a list of tables", allowed)
    return tuple(_read_one(table, source, f"{NOTIFY}[{n}]") for n, table in enumerate(tables))


def check_names(receivers: tuple[NotifyConfig, ...], source: str) -> None:
    """Refuse two receivers with the same name. Raises ConfigError."""
    names = [receiver.name for receiver in receivers]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ConfigError(source, f"{NOTIFY}: name", f"{name!r} is used twice", "another name")


def _read_one(raw: object, source: str, key: str) -> NotifyConfig:
    receiver = NotifyConfig(**read_item(NotifyConfig, raw, source, key))
    if bool(receiver.url) == bool(receiver.command):
        problem = "has both url and command" if receiver.url else "has neither url nor command"
        raise ConfigError(source, key, problem, "one of url and command")
    if receiver.bearer_token_file and not receiver.url:
        raise ConfigError(source, f"{key}.bearer_token_file", "has no effect without url", "url as well")
    return receiver
