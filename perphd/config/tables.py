"""Tables of the configuration file whose keys need no further checks."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from perphd.config.schema import setting
from perphd.domain.endpoint import parse_endpoint
from perphd.domain.errors import ConfigError
from perphd.domain.learning import DEFAULT_LEARNER, GATE_MAPE, Learner
from perphd.domain.units import parse_size_bytes
from perphd.domain.workload import Kind


@dataclass(frozen=True, slots=True)
class WindowConfig:
    """Table ``[window]``. Without ``allow`` the window is always open."""

    allow: str = setting(
        "",
        "days and local times at which perphd may change the LRAs' own settings and explore. At other times "
        "the LRAs' own settings stay unchanged, and perphd relieves LRAs only through batch's settings",
        kind="window",
    )


@dataclass(frozen=True, slots=True)
class ContentionConfig:
    """Table ``[contention]``. By default, no device is watched."""

    REPLACED: ClassVar[Mapping[str, str]] = {
        "disks": 'devices = "disks"',
        "links": 'devices = "links"',
        "memory_bandwidth": 'devices = "memory_bandwidth"',
    }

    devices: str = setting(
        "",
        "devices to watch, separated by commas; if batch takes bandwidth that LRAs need, perphd backs it off in rounds "
        "of 5 s. disks: every disk, by io.max, a CPU ceiling, then a freeze in a duty cycle; links: the devices of "
        "[network], by egress ceilings first, from the throughput of the workloads' TCP connections; memory_bandwidth: "
        "by MBA steps first; needs resctrl's monitors, and counters or an LRA's cycles per instruction. In the mode "
        "observe, perphd only reports the steps that it would have taken. Empty: none",
        kind="contended",
    )

    @property
    def disks(self) -> bool:
        """True if every disk is watched."""
        return "disks" in self.devices.split(",")

    @property
    def links(self) -> bool:
        """True if the network devices of ``[network]`` are watched."""
        return "links" in self.devices.split(",")

    @property
    def memory_bandwidth(self) -> bool:
        """True if memory bandwidth is watched."""
        return "memory_bandwidth" in self.devices.split(",")


@dataclass(frozen=True, slots=True)
class ForecastConfig:
    """Table ``[forecast]``."""

    enabled: bool = setting(
        False,
        "once a minute, a low-priority process forecasts every workload's use and the host's peak from the "
        "store; only the resource shaper acts on it, to size memory",
    )
    history_rows: int = setting(
        40_000,
        "rows of the job history (perphctl predict), which records runs of batch if forecast.enabled is set; about "
        "4.6 KiB each, one for each feature and quantity; 0: runs are not recorded",
        low=0,
        high=10_000_000,
        expert=True,
    )


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Table ``[model]``."""

    learner: Learner = setting(
        DEFAULT_LEARNER,
        "correction of the prior: staged, one level for all allocations and stages that keep their signs; ogbrt, "
        "online boosted trees with a local correction on top; residual, only the local correction",
        expert=True,
    )
    rebuild: bool = setting(
        True,
        "with ogbrt: trees are rebuilt from time to time, in a low-priority process that takes half a second; "
        "false: learning only moves their leaves",
        expert=True,
    )
    gate_mape_pct: float = setting(
        100.0 * GATE_MAPE,
        "mean error at the current allocation from which a model only advises: its predictions for "
        "unmeasured allocations then have the confidence of an untrained model; 0: never",
        low=0.0,
        high=1000.0,
        unit="%",
        expert=True,
    )


@dataclass(frozen=True, slots=True)
class FederatedConfig:
    """Table ``[federated]``. Without ``folder``, hosts exchange nothing."""

    folder: str = setting(
        "",
        "folder with the contributions of other hosts, one file each; the model of an LRA that is new here starts "
        "from those of similar hosts. Empty: models learn alone",
        kind="optional-path",
    )
    contribute: bool = setting(
        False,
        "write this host's own contribution into the folder whenever models are saved: estimates, no samples",
    )
    expire_days: float = setting(
        30.0, "age from which a contribution is ignored", low=0.01, high=3650.0, unit="days", expert=True
    )


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Table ``[network]``. Without ``devices`` no network device is ever touched."""

    devices: str = setting(
        "",
        "network devices on which batch may get a traffic class, separated by commas; their root qdisc is "
        "replaced while a ceiling is in force, and only if it is the kernel's own. Empty: none",
        kind="devices",
    )
    batch_egress_max_bytes: int = setting(
        0,
        "bytes per second that all batch together may send on each of these devices, rounded down to a "
        "multiple of 1000, at least 10000; 0: no ceiling",
        kind="rate",
        key="batch_egress_max",
    )
    batch_egress_when: Literal["always", "saturated"] = setting(
        "always",
        "always: the ceiling applies while an LRA exists; saturated: only after a link has been filled to "
        "saturated_pct, until it has been filled to less than release_pct for release_s",
        expert=True,
    )
    saturated_pct: float = setting(
        85.0,
        "share of a link's speed from which it counts as full",
        low=10.0,
        high=100.0,
        unit="%",
        expert=True,
    )
    release_pct: float = setting(
        60.0, "share below which a link counts as free again", low=1.0, high=100.0, unit="%", expert=True
    )
    release_s: float = setting(
        30.0,
        "time for which a link must be free before the ceiling is removed",
        low=0.0,
        high=3600.0,
        unit="s",
        expert=True,
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The devices, without duplicates."""
        return tuple(dict.fromkeys(name for name in self.devices.split(",") if name))


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Table ``[queue]``."""

    enabled: bool = setting(
        False, "perphctl run accepts jobs; they start as batch workloads when the host has room for them"
    )
    group: str = setting(
        "perphd",
        "members may submit jobs, and see and cancel their own; they must be in daemon.read_group as well to "
        "reach the socket",
        kind="group",
    )
    most_running: int = setting(32, "maximum number of running jobs", low=1, high=256, expert=True)
    most_waiting: int = setting(
        20_000, "maximum number of waiting jobs; further ones are refused", low=1, high=100_000, expert=True
    )
    default_memory_bytes: int = setting(
        parse_size_bytes("1G"),
        "memory that a job without --memory is assumed to need; it is not a limit",
        kind="size",
        key="default_memory",
        expert=True,
    )
    cpu_risk: float = setting(
        0.1,
        "highest accepted probability that the host lacks CPUs while a job runs; a job above it waits",
        low=0.001,
        high=1.0,
        expert=True,
    )
    memory_bandwidth_bytes: int = setting(
        0,
        "memory bandwidth of the host, in bytes per second: jobs then start only if it suffices as well (needs "
        "resctrl's monitors); 0: the value from perphctl calibrate; without one, bandwidth is not considered",
        kind="size",
        key="memory_bandwidth",
        expert=True,
    )
    memory_risk: float = setting(
        0.01,
        "highest accepted probability that the host lacks memory while a job runs; a job above it waits",
        low=0.0001,
        high=1.0,
        expert=True,
    )
    keep_h: float = setting(
        168.0,
        "time for which ended jobs and their logs are kept",
        low=0.1,
        high=8760.0,
        unit="h",
        expert=True,
    )


@dataclass(frozen=True, slots=True)
class SizingConfig:
    """Table ``[sizing]``. Workloads with ``reserved_memory`` take part; only those with ``shape`` are changed."""

    shaper: Literal["off", "observe", "optimistic", "pessimistic"] = setting(
        "off",
        "observe: recommend a size for each workload, write nothing; pessimistic: shrink workloads to their "
        "forecast, and decide before the kernel does which ones freeze or end if memory runs short; "
        "optimistic: only shrink, for comparison. The last two need the mode enforce as well",
    )
    interval_s: float = setting(
        60.0,
        "interval between forecasts and plans, which use the maximum within it",
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
        3.0, "number of spreads of the forecast that are kept above it", low=0.0, high=10.0, expert=True
    )
    memory_bytes: int = setting(
        0,
        "memory for all workloads with reserved_memory together; 0: the amount that the host, or the limit of a group "
        "that contains them all, leaves for them",
        kind="size",
        key="memory",
        expert=True,
    )
    hard_limit: bool = setting(
        False,
        "memory.max follows the target as well: the kernel then kills above it, instead of only slowing it down",
        expert=True,
    )


@dataclass(frozen=True, slots=True)
class OptInConfig:
    """Table ``[opt_in]``. By default, no workload may declare itself."""

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
        "further bands that such workloads may claim, besides silver for an LRA and copper for batch; empty: none",
        kind="bands",
    )

    least_latency_ms: float = setting(
        0.0,
        "the lowest max_latency_ms that a container or pod may set; 0: it may not set one",
        unit="ms",
        low=0,
        high=60_000,
        expert=True,
    )

    @property
    def is_on(self) -> bool:
        """True if any workload may declare itself."""
        return bool(self.units or self.containers)

    @property
    def unit_kinds(self) -> tuple[Kind, ...]:
        """Kinds of workload that a unit may declare itself to be."""
        return tuple(Kind(name) for name in self.units.split(",") if name)

    @property
    def container_kinds(self) -> tuple[Kind, ...]:
        """Kinds of workload that a container may declare itself to be."""
        return tuple(Kind(name) for name in self.containers.split(",") if name)

    @property
    def more_bands(self) -> tuple[str, ...]:
        """Bands that may be claimed besides the default one."""
        return tuple(name for name in self.bands.split(",") if name)


NOBODY: Final = OptInConfig()


_LISTENER_KEYS = ("tls_cert", "tls_key", "bearer_token_file")


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Table ``[metrics]``. By default, perphd opens no listener and writes no file."""

    listen: str = setting(
        "",
        "address and port that serve GET /metrics over TCP. Except on loopback, tls_cert, tls_key and "
        "bearer_token_file are required. Empty: only the control socket serves metrics",
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
        "file that is replaced every 15 s with the metrics, for node_exporter's textfile "
        "collector, such as /var/lib/prometheus/node-exporter/perphd.prom. Empty: none",
        kind="optional-path",
    )
    textfile_period_s: float = setting(
        15.0, "time between two versions of metrics.textfile", low=1.0, high=3600.0, unit="s", expert=True
    )


def check_metrics(metrics: MetricsConfig, source: str) -> None:
    """Refuse a listener that exposes the host to the network without TLS and a token.

    Raises:
        ConfigError: a key is missing, or given without its counterpart.
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
        text = f"{metrics.listen!r} can be reached from other hosts; keys not set: {', '.join(missing_keys)}"
        allowed = "a loopback address such as 127.0.0.1:9464, or tls_cert, tls_key and bearer_token_file"
        raise ConfigError(source, "metrics.listen", text, allowed)


@dataclass(frozen=True, slots=True)
class WakeConfig:
    """Table ``[wake]``: early ticks between two samples."""

    enabled: bool = setting(
        True,
        "tick at once, without waiting for the next period, when an LRA is under pressure (the kernel's PSI "
        "triggers), batch starts (cgroup v2) or pushed readings miss an objective",
        expert=True,
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
        "length of the window of stall_ms; without CAP_SYS_RESOURCE the kernel accepts only multiples of "
        "2000, and 2000 is used instead",
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
