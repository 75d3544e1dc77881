"""Tables ``[[notify]]``: who hears of degraded LRAs, unreachable targets, pauses, conflicts and lost indicators."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perphd.agent.config_schema import read_values, setting, show
from perphd.domain.errors import ConfigError
from perphd.domain.incident import IncidentKind, NoticeRule

TABLE = "notify"


@dataclass(frozen=True, slots=True)
class NotifyConfig:
    """One receiver: a webhook or a command."""

    name: str = setting(doc="its name in the log", kind="name")
    url: str = setting(
        "", "webhook that gets each notice as JSON by POST; http:// or https://", kind="optional-url"
    )
    command: str = setting(
        "",
        "command that gets each notice as JSON on standard input; run without a shell, with the daemon's rights",
        kind="optional-command",
    )
    on: str = setting(
        ",".join(IncidentKind),
        "what is told, between commas; the end of a condition is told if its beginning was",
        kind="incidents",
    )
    bearer_token_file: str = setting(
        "", "file whose first line is sent to the webhook as bearer token", kind="optional-path"
    )
    after_s: float = setting(
        60.0, "how long a condition must last before perphd tells it", low=0.0, high=86400.0, unit="s"
    )
    pause_s: float = setting(
        900.0, "least time between two notices about the same condition", low=1.0, high=604800.0, unit="s"
    )
    most_per_h: int = setting(20, "notices within an hour, of all conditions together", low=1, high=3600)
    timeout_s: float = setting(
        10.0,
        "how long the webhook or the command may take; a failure is retried twice",
        low=0.1,
        high=300.0,
        unit="s",
    )

    @property
    def rule(self) -> NoticeRule:
        """What is told, and how often."""
        kinds = frozenset(IncidentKind(kind) for kind in self.on.split(","))
        return NoticeRule(kinds, self.after_s, self.pause_s, self.most_per_h)

    @property
    def argv(self) -> tuple[str, ...]:
        """The command's words."""
        return tuple(shlex.split(self.command))


def read_notify(raw: Mapping[str, Any], source: str) -> tuple[NotifyConfig, ...]:
    """The ``[[notify]]`` tables of a parsed file.

    Raises:
        ConfigError: a key or value is refused, or a receiver has neither or both of url and command.
    """
    tables = raw.get(TABLE, [])
    if not isinstance(tables, list):
        allowed = f"any number of tables, each beginning with [[{TABLE}]]"
        raise ConfigError(source, TABLE, f"{show(tables)} is not a list of tables", allowed)
    return tuple(_read_one(table, source, f"{TABLE}[{n}]") for n, table in enumerate(tables))


def check_names(receivers: tuple[NotifyConfig, ...], source: str) -> None:
    """Refuse two receivers of one name. Raises ConfigError."""
    names = [receiver.name for receiver in receivers]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ConfigError(source, f"{TABLE}: name", f"{name!r} is there twice", "another name")


def _read_one(raw: object, source: str, key: str) -> NotifyConfig:
    receiver = NotifyConfig(**read_values(NotifyConfig, raw, source, key))
    if bool(receiver.url) == bool(receiver.command):
        problem = "has both url and command" if receiver.url else "has neither url nor command"
        raise ConfigError(source, key, problem, "one of url and command")
    if receiver.bearer_token_file and not receiver.url:
        raise ConfigError(source, f"{key}.bearer_token_file", "has no effect without url", "url as well")
    return receiver
