"""Options of each SLI source: keys, meaning and allowed values.

Configuration, documentation and the sources all use this table.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from perphd.domain.errors import ConfigError
from perphd.domain.workload import SliSpec
from perphd.monitor.sli.resolution import Origin, Resolution

METRIC_SELECTOR: Final = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[^{}"]|"(?:[^"\\]|\\.)*")*)\})?')
MOST_PORTS: Final = 16
_ACCOUNT: Final = re.compile(r"\A([a-z]+://)?.*@", re.DOTALL)
"""User and password in a refused URL. It may be refused because of them, so they end at its last ``@``."""


@dataclass(frozen=True, slots=True)
class Option:
    """One key of a source. ``default``: used when it is not given (empty: none). ``allowed``: accepted values
    in words.
    """

    key: str
    meaning: str
    allowed: str
    accepts: Callable[[str], bool]
    default: str = ""
    required: bool = False


def _is_text(text: str) -> bool:
    return text != "" and text.isprintable()


def _is_path(text: str) -> bool:
    return text.startswith("/") and text.isprintable()


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535


def _is_ports(text: str) -> bool:
    words = [word.strip() for word in text.split(",")]
    return len(words) <= MOST_PORTS and all(map(_is_port, words))


def _is_seconds(text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return math.isfinite(value) and 0.0 < value <= 86400.0


def _is_url(text: str) -> bool:
    if re.fullmatch(r"https?://[^\s/?#]+(?:[/?][^\s#]*)?", text) is None:
        return False
    try:
        parts = urlsplit(text)
        # If the password contains "/", the parser takes part of it for the port, and errors would show it.
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _is_selector(text: str) -> bool:
    return METRIC_SELECTOR.fullmatch(text) is not None


def _is_command(text: str) -> bool:
    try:
        words = shlex.split(text)
    except ValueError:
        return False
    return bool(words) and words[0].startswith("/")


def _one_of(*words: str) -> tuple[str, Callable[[str], bool]]:
    return f"{', '.join(words[:-1])} or {words[-1]}", lambda text: text in words


def _path(key: str, meaning: str, default: str = "", required: bool = False) -> Option:
    return Option(key, meaning, "an absolute path", _is_path, default, required)


def _seconds(key: str, meaning: str, default: str) -> Option:
    return Option(key, meaning, "seconds, more than 0 and at most 86400", _is_seconds, default)


def _text(key: str, meaning: str, default: str = "") -> Option:
    return Option(key, meaning, "printable text, not empty", _is_text, default)


def _selector(key: str, meaning: str) -> Option:
    allowed = 'a metric name, optionally with labels: http_requests_total{code="200"}'
    return Option(key, meaning, allowed, _is_selector)


_TCP_LATENCY: Final = Option(
    "latency",
    "tcp: latency as the source tcp measures it, of connections over TCP (see below); none: no latency",
    *_one_of("none", "tcp"),
    default="none",
)


_OWN_LATENCY: Final = Option(
    "latency",
    "server: as the server measures it, with the setup in docs/how-to/indicators.md; tcp: as the source tcp "
    "measures it, of connections over TCP (see below); none: no latency",
    *_one_of("none", "tcp", "server"),
    default="none",
)


def _server(default_socket: str, default_port: str) -> tuple[Option, ...]:
    return (
        _path("socket", "unix socket of the server; not together with host", default_socket),
        _text("host", "host name or address, if there is no unix socket"),
        Option("port", "TCP port, with host", "1 to 65535", _is_port, default_port),
        _path("password_file", "file whose first line is the password; read at every connect"),
        _seconds("timeout_s", "time limit for an answer", "1"),
    )


def _resolution(default: str) -> Option:
    meaning = (
        f"interval at which the source's figures change; no rate covers a shorter time; default: {default}"
    )
    return Option("resolution_s", meaning, "seconds, more than 0 and at most 86400", _is_seconds)


_EXACT = "none, as they are exact at any moment"
_FOUND = "found from its readings"
OPTIONS: Final[Mapping[str, tuple[Option, ...]]] = MappingProxyType(
    {
        "mysql": (
            *_server("/run/mysqld/mysqld.sock", "3306"),
            _text("user", "account; needs no privileges except for latency = server", "perphd"),
            Option(
                "metric",
                "unit of work: commits and rollbacks, or all statements (an application in autocommit has no commits)",
                *_one_of("queries", "transactions"),
                default="queries",
            ),
            _OWN_LATENCY,
            _resolution(_EXACT),
        ),
        "postgresql": (
            *_server("/run/postgresql/.s.PGSQL.5432", "5432"),
            _text("user", "role; needs no privileges", "perphd"),
            _text("connect_database", "database to connect to", "postgres"),
            _text("database", "count the transactions of this database only; default: of all"),
            _TCP_LATENCY,
            _resolution("1, the default of servers"),
        ),
        "redis": (
            *_server("/run/redis/redis-server.sock", "6379"),
            _text("user", "ACL user; needs the command info, and latency|histogram for latency = server"),
            _OWN_LATENCY,
            _resolution(_EXACT),
        ),
        "prometheus": (
            Option(
                "url",
                "where the application exposes its metrics",
                "an http:// or https:// URL",
                _is_url,
                required=True,
            ),
            _selector(
                "work",
                "completed requests: a counter gives its rate, a gauge its value; matching series are added",
            ),
            _selector("load", "offered requests per second; read like work"),
            Option(
                "kind",
                "how work and load are read; auto: as the endpoint declares them, untyped ones by their name (_total)",
                *_one_of("auto", "counter", "gauge"),
                default="auto",
            ),
            _selector("latency_p50", "median latency; of several matching series the largest"),
            _selector("latency_p95", "95th percentile of latency; of several matching series the largest"),
            _selector("latency_p99", "99th percentile of latency; of several matching series the largest"),
            _selector(
                "latency_histogram",
                "a histogram of latency: its growth in the interval gives all three percentiles",
            ),
            Option("latency_unit", "unit of the latency metrics", *_one_of("s", "ms"), default="s"),
            _resolution(_FOUND),
            _seconds("timeout_s", "time limit for an answer", "1"),
        ),
        "tcp": (
            Option(
                "ports",
                "only connections to these local ports; default: all that clients opened, on whatever port",
                f"one to {MOST_PORTS} ports from 1 to 65535, separated by commas",
                _is_ports,
            ),
            Option(
                "from",
                "segment of a request from which its latency counts: last leaves out slow uploads and messages that "
                "get no answer; first includes requests that wait behind others of their connection (pipelining)",
                *_one_of("last", "first"),
                default="last",
            ),
        ),
        "file": (
            _path("path", "file with the indicators", required=True),
            _seconds("max_age_s", "age of the file from which its indicators are stale", "10"),
            _resolution(_FOUND),
        ),
        "command": (
            Option(
                "command",
                "command line that prints the indicators; run directly (no shell) as the daemon's user",
                "an absolute path with arguments, quoted as in a shell",
                _is_command,
                required=True,
            ),
            _seconds("timeout_s", "time limit, after which the command is killed", "2"),
            _seconds("every_s", "minimum time between two runs; the last indicators hold in between", "1"),
            _resolution(_FOUND),
        ),
        "push": (_seconds("max_age_s", "age of the last push from which the indicators are stale", "10"),),
    }
)
"""Options by source name."""


def validate_options(source: str, options: Mapping[str, str]) -> SliSpec:
    """Check a source's name and options.

    Returns:
        The spec, with exactly the options that were given.

    Raises:
        ConfigError: the source or a key is unknown, a required key is missing, or a value is refused. The error's
            ``key`` is the option's key.
    """
    known = OPTIONS.get(source)
    if known is None:
        raise ConfigError("sli", "source", f"{source!r} is not an SLI source", ", ".join(OPTIONS))
    by_key = {option.key: option for option in known}
    for key, value in options.items():
        option = by_key.get(key)
        if option is None:
            raise ConfigError("sli", key, f"the source {source} has no such option", ", ".join(by_key))
        if not option.accepts(value):
            shown = _ACCOUNT.sub(r"\1***@", value) if key == "url" else value
            raise ConfigError("sli", key, f"{shown!r} is refused", option.allowed)
    for option in known:
        if option.required and option.key not in options:
            raise ConfigError(
                "sli", option.key, f"required by the source {source}: {option.meaning}", option.allowed
            )
    if "socket" in options and "host" in options:
        raise ConfigError("sli", "host", "socket and host are both given", "one of the two")
    if "port" in options and "host" not in options:
        raise ConfigError("sli", "port", "a port is given without a host", "host and port, or socket")
    if source == "prometheus" and not options.keys() - {
        "url",
        "kind",
        "latency_unit",
        "timeout_s",
        "resolution_s",
    }:
        metrics = ", ".join(
            key for key in by_key if key.startswith(("work", "load", "latency_p", "latency_h"))
        )
        raise ConfigError("sli", "work", "no metric is named", f"at least one of {metrics}")
    return SliSpec(source, tuple(sorted(options.items())))


def plain_value(source: str, key: str, text: str) -> str | int | float:
    """The option's value as a file has it: a number where the option is one and the number is written like the text."""
    accepts = next((option.accepts for option in OPTIONS.get(source, ()) if option.key == key), None)
    if accepts not in (_is_port, _is_seconds):
        return text
    value = int(text) if text.isdecimal() else float(text)
    return value if str(value) == text else text


def ports_of(text: str) -> tuple[int, ...]:
    """The ports in the text of the option ``ports``; empty for an empty text."""
    return tuple(int(word) for word in text.split(",")) if text else ()


def measured_percentiles(spec: SliSpec) -> frozenset[str]:
    """The latency percentiles that this source can provide with its options."""
    everything = frozenset({"p50", "p95", "p99"})
    if any(option in (_TCP_LATENCY, _OWN_LATENCY) for option in OPTIONS.get(spec.source, ())):
        return everything if setting(spec, "latency") != "none" else frozenset()
    if spec.source == "prometheus" and not spec.get("latency_histogram"):
        return frozenset(name for name in everything if spec.get(f"latency_{name}"))
    return everything


def setting(spec: SliSpec, key: str) -> str:
    """The option's value, or its default."""
    default = next(option.default for option in OPTIONS[spec.source] if option.key == key)
    return spec.get(key, default)


def seconds(spec: SliSpec, key: str) -> float:
    """The option's value or default as seconds."""
    return float(setting(spec, key))


def resolution_of(spec: SliSpec, known: Resolution | None = None) -> Resolution | None:
    """The configured resolution, else ``known``, the resolution of this kind of source.

    None means that perphd finds the resolution while it reads the source.
    """
    text = setting(spec, "resolution_s")
    return Resolution(float(text), Origin.CONFIGURED) if text else known
