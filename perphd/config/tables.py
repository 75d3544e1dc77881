"""Tables of the configuration file that need no more than their keys."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from perphd.config.schema import read_values, setting, show
from perphd.domain.endpoint import parse_endpoint
from perphd.domain.errors import ConfigError
from perphd.domain.incident import IncidentKind, NoticeRule
from perphd.domain.learning import DEFAULT_LEARNER, GATE_MAPE, Learner
from perphd.domain.units import parse_size_bytes
from perphd.domain.workload import Kind

NOTIFY: Final = "notify"


@dataclass(frozen=True, slots=True)
class NotifyConfig:
    """Table ``[[notify]]``: one receiver of notices, a webhook or a command."""

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
    tables = raw.get(NOTIFY, [])
    if not isinstance(tables, list):
        allowed = f"any number of tables, each beginning with [[{NOTIFY}]]"
        raise ConfigError(source, NOTIFY, f"{show(tables)} is not a list of tables", allowed)
    return tuple(_read_one(table, source, f"{NOTIFY}[{n}]") for n, table in enumerate(tables))


def check_names(receivers: tuple[NotifyConfig, ...], source: str) -> None:
    """Refuse two receivers of one name. Raises ConfigError."""
    names = [receiver.name for receiver in receivers]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ConfigError(source, f"{NOTIFY}: name", f"{name!r} is there twice", "another name")


def _read_one(raw: object, source: str, key: str) -> NotifyConfig:
    receiver = NotifyConfig(**read_values(NotifyConfig, raw, source, key))
    if bool(receiver.url) == bool(receiver.command):
        problem = "has both url and command" if receiver.url else "has neither url nor command"
        raise ConfigError(source, key, problem, "one of url and command")
    if receiver.bearer_token_file and not receiver.url:
        raise ConfigError(source, f"{key}.bearer_token_file", "has no effect without url", "url as well")
    return receiver


@dataclass(frozen=True, slots=True)
class WindowConfig:
    """Table ``[window]``. Without ``allow`` the window is always open."""

    allow: str = setting(
        "",
        "days and local times at which perphd may change the own settings of LRAs, and try steps that no need calls "
        "for. At other times an LRA's own settings stay as they are, and LRAs are relieved by batch's settings alone",
        kind="window",
    )


@dataclass(frozen=True, slots=True)
class ContentionConfig:
    """Table ``[contention]``."""

    disks: bool = setting(
        False,
        "watch every disk, and back batch off for some rounds of 5 s where it keeps LRAs from their bandwidth: by "
        "io.max, a CPU ceiling, standing still at times. In the mode observe perphd says what it would have done",
    )
    links: bool = setting(
        False,
        "the same for the devices of [network], by egress ceilings first. What workloads get across is read from their "
        "TCP connections once a second",
    )
    memory_bandwidth: bool = setting(
        False,
        "the same for memory bandwidth, by MBA steps first; needs resctrl's monitors, and counters or an LRA's cycles "
        "per instruction",
    )


@dataclass(frozen=True, slots=True)
class ForecastConfig:
    """Table ``[forecast]``."""

    enabled: bool = setting(
        False,
        "once a minute a niced process of its own forecasts every workload's use and the host's peak from the store; "
        "the resource shaper sizes memory by it, nothing else acts on it",
    )
    history_rows: int = setting(
        40_000,
        "with enabled: runs of batch are recorded in the job history (perphctl predict), which keeps so many rows, one "
        "of about 4.6 KiB for each feature and quantity; 0: runs are not recorded",
        low=0,
        high=10_000_000,
        expert=True,
    )


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Table ``[model]``."""

    learner: Learner = setting(
        DEFAULT_LEARNER,
        "what corrects the prior: staged, one level for all places and stages that keep their signs; ogbrt, online "
        "boosted trees below a local correction; residual, the local correction alone",
    )
    rebuild: bool = setting(
        True,
        "with ogbrt: trees are rebuilt now and then, in a niced process of half a second; false: what was learned only "
        "moves their leaves",
        expert=True,
    )
    gate_mape_pct: float = setting(
        100.0 * GATE_MAPE,
        "mean error at the current allocation from which a model only advises: what has not been measured is then "
        "believed as little as before anything was learned; 0: never",
        low=0.0,
        high=1000.0,
        unit="%",
        expert=True,
    )


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Table ``[network]``. Without ``devices`` no network device is ever touched."""

    devices: str = setting(
        "",
        "network devices on which batch may be given a traffic class, between commas; their root qdisc is replaced "
        "while a ceiling is in force, and only if it is the kernel's own. Empty: none",
        kind="devices",
    )
    batch_egress_max_bytes: int = setting(
        0,
        "bytes per second that all batch together may send on each of these devices, rounded down to a multiple of "
        "1000, at least 10000; 0: no ceiling",
        kind="rate",
        key="batch_egress_max",
    )
    batch_egress_when: Literal["always", "saturated"] = setting(
        "always",
        "always: the ceiling holds while an LRA is there; saturated: only once a link was filled to saturated_pct, "
        "until it was filled to less than release_pct for release_s",
    )
    saturated_pct: float = setting(
        85.0, "a link counts as full from here on, of its speed", low=10.0, high=100.0, unit="%", expert=True
    )
    release_pct: float = setting(
        60.0, "and as free again below this", low=1.0, high=100.0, unit="%", expert=True
    )
    release_s: float = setting(
        30.0, "for so long, before the ceiling is taken away", low=0.0, high=3600.0, unit="s", expert=True
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The devices, each once."""
        return tuple(dict.fromkeys(name for name in self.devices.split(",") if name))


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Table ``[queue]``."""

    enabled: bool = setting(
        False, "perphctl run takes jobs; they start when the host has room for them, as batch workloads"
    )
    group: str = setting(
        "perphd",
        "members may submit jobs, and see and cancel their own; to reach the socket they are also in daemon.read_group",
        kind="group",
    )
    most_running: int = setting(32, "jobs that run at the same time", low=1, high=256)
    most_waiting: int = setting(20_000, "further jobs are refused", low=1, high=100_000, expert=True)
    default_memory_bytes: int = setting(
        parse_size_bytes("1G"),
        "memory that a job without --memory is taken to need; it is not limited to it",
        kind="size",
        key="default_memory",
    )
    cpu_risk: float = setting(
        0.1,
        "a job starts if the probability that the host then lacks CPUs is at most this",
        low=0.001,
        high=1.0,
    )
    memory_bandwidth_bytes: int = setting(
        0,
        "memory traffic that the host can move, in bytes a second: jobs then start only if it is enough as well (needs "
        "resctrl's monitors); 0: it is not considered",
        kind="size",
        key="memory_bandwidth",
        expert=True,
    )
    memory_risk: float = setting(
        0.01,
        "a job starts if the probability that the host then lacks memory is at most this",
        low=0.0001,
        high=1.0,
    )
    keep_h: float = setting(
        168.0, "jobs that have ended and their logs are deleted", low=0.1, high=8760.0, unit="h", expert=True
    )


@dataclass(frozen=True, slots=True)
class SizingConfig:
    """Table ``[sizing]``. Workloads with ``reserved_memory`` take part; only those with ``shape`` are changed."""

    shaper: Literal["off", "observe", "optimistic", "pessimistic"] = setting(
        "off",
        "observe: say what each workload should hold, write nothing; pessimistic: shrink workloads to their forecast, "
        "and decide before the kernel does who freezes or ends when forecasts collide; optimistic: shrink alone, for "
        "comparison. The last two need the mode enforce as well",
    )
    interval_s: float = setting(
        60.0,
        "forecasts and plans are made so often, from the greatest use",
        low=1.0,
        high=3600.0,
        unit="s",
        expert=True,
    )
    k1_pct: float = setting(
        5.0,
        "share of the reservation that is always kept above the forecast",
        low=0.0,
        high=100.0,
        unit="%",
        expert=True,
    )
    k2: float = setting(
        3.0, "spreads of the forecast that are kept above it", low=0.0, high=10.0, expert=True
    )
    memory_bytes: int = setting(
        0,
        "memory that the workloads with reserved_memory have together; 0: what the host, or the limit of a group that "
        "they all lie in, has left for them",
        kind="size",
        key="memory",
    )
    hard_limit: bool = setting(
        False, "memory.max follows the target as well: above it the kernel kills, not only slows down"
    )


@dataclass(frozen=True, slots=True)
class OptInConfig:
    """Table ``[opt_in]``. Nobody declares itself by default."""

    units: str = setting(
        "",
        "the kinds that a unit may declare itself, by a section [X-Perphd] in its file or a drop-in; empty: none",
        kind="kinds",
    )
    containers: str = setting(
        "",
        "the kinds that a container or pod may declare itself, by labels or annotations perphd.io/KEY; empty: none",
        kind="kinds",
    )
    bands: str = setting(
        "",
        "the bands that these may claim besides the usual ones (silver for an LRA, copper for batch); empty: none",
        kind="bands",
    )

    least_latency_ms: float = setting(
        0.0,
        "the least max_latency_ms that a container or pod may ask for; 0: it may not ask for any",
        unit="ms",
        low=0,
        high=60_000,
    )

    @property
    def is_on(self) -> bool:
        """True if anybody may declare itself."""
        return bool(self.units or self.containers)

    @property
    def unit_kinds(self) -> tuple[Kind, ...]:
        """What a unit may be."""
        return tuple(Kind(name) for name in self.units.split(",") if name)

    @property
    def container_kinds(self) -> tuple[Kind, ...]:
        """What a container may be."""
        return tuple(Kind(name) for name in self.containers.split(",") if name)

    @property
    def more_bands(self) -> tuple[str, ...]:
        """Bands that may be claimed beside the usual one."""
        return tuple(name for name in self.bands.split(",") if name)


NOBODY: Final = OptInConfig()


_LISTENER_KEYS = ("tls_cert", "tls_key", "bearer_token_file")


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Table ``[metrics]``. Nothing listens and nothing is written unless it says so."""

    listen: str = setting(
        "",
        "address and port that answer GET /metrics over TCP. Beyond loopback, tls_cert, tls_key and bearer_token_file "
        "are required. Empty: only the control socket answers",
        kind="endpoint",
    )
    tls_cert: str = setting("", "certificate with its chain, PEM; empty: no TLS", kind="optional-path")
    tls_key: str = setting("", "private key of the certificate, PEM", kind="optional-path")
    bearer_token_file: str = setting(
        "",
        "file whose first line is the token that clients must send (Authorization: Bearer ...); empty: none",
        kind="optional-path",
    )
    textfile: str = setting(
        "",
        "file that is replaced every textfile_period_s with the metrics, for node_exporter's textfile collector, such "
        "as /var/lib/prometheus/node-exporter/perphd.prom. Empty: none",
        kind="optional-path",
    )
    textfile_period_s: float = setting(
        15.0, "time between two versions of the textfile", low=1.0, high=3600.0, unit="s", expert=True
    )


def check_metrics(metrics: MetricsConfig, source: str) -> None:
    """Refuse a listener that shows the host to the network without TLS and a token.

    Raises:
        ConfigError: a key is missing, or stands without the one that it belongs to.
    """
    if bool(metrics.tls_cert) != bool(metrics.tls_key):
        missing = "tls_key" if metrics.tls_cert else "tls_cert"
        raise ConfigError(source, f"metrics.{missing}", "is missing", "tls_cert together with tls_key")
    if not metrics.listen:
        for key in _LISTENER_KEYS:
            if getattr(metrics, key):
                raise ConfigError(source, f"metrics.{key}", "has no effect without listen", "listen as well")
        return
    address, _ = parse_endpoint(metrics.listen)
    missing_keys = [key for key in _LISTENER_KEYS if not getattr(metrics, key)]
    if missing_keys and not ipaddress.ip_address(address).is_loopback:
        text = f"{metrics.listen!r} can be reached from other hosts, and {', '.join(missing_keys)} is not set"
        allowed = "a loopback address such as 127.0.0.1:9464, or tls_cert, tls_key and bearer_token_file"
        raise ConfigError(source, "metrics.listen", text, allowed)


@dataclass(frozen=True, slots=True)
class WakeConfig:
    """Table ``[wake]``: early ticks between two samples."""

    enabled: bool = setting(
        True,
        "tick at once, not at the next period, on pressure on an LRA (the kernel's PSI triggers), batch that starts "
        "(cgroup v2) and pushed readings that miss an objective",
    )
    stall_ms: int = setting(
        150,
        "stall time of an LRA's tasks within one window that triggers an early tick",
        low=1,
        high=10000,
        unit="ms",
        expert=True,
    )
    window_ms: int = setting(
        500,
        "the window; without CAP_SYS_RESOURCE the kernel takes multiples of 2000 only, and 2000 is used instead",
        low=500,
        high=10000,
        unit="ms",
        expert=True,
    )
    min_interval_ms: int = setting(
        200,
        "shortest time between two ticks",
        low=50,
        high=10000,
        unit="ms",
        expert=True,
    )
