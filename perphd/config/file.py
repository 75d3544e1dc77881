"""The configuration: /etc/perphd/perphd.toml and its drop-ins, read strictly into frozen values.

Order: the main file, then ``conf.d/*.toml`` beside it by name, then the workloads that were added at run time
(``STATE_DIR/workloads.toml``). In tables, a later file's keys win; workloads accumulate.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from perphd.admission.settings import PolicySettings
from perphd.config.mistakes import mistakes
from perphd.config.schema import (
    TUNING,
    Key,
    expert_keys,
    keys_of,
    read_values,
    setting,
    show,
    unknown_key,
    usual_keys,
)
from perphd.config.tables import (
    NOTIFY,
    ContentionConfig,
    FederatedConfig,
    ForecastConfig,
    MetricsConfig,
    ModelConfig,
    NetworkConfig,
    NotifyConfig,
    OptInConfig,
    QueueConfig,
    SizingConfig,
    WakeConfig,
    WindowConfig,
    check_metrics,
    check_names,
    read_notify,
)
from perphd.config.workloads import Declared, check_workloads, read_runtime, read_workloads
from perphd.domain.errors import ConfigError
from perphd.domain.units import parse_size_bytes
from perphd.domain.workload import Kind, Mode, WorkloadSpec

__all__ = [
    "DEFAULT_PATH",
    "Config",
    "DaemonConfig",
    "HostConfig",
    "IsolationConfig",
    "ResctrlConfig",
    "SizingConfig",
    "StoreConfig",
    "load",
    "parse",
]

DEFAULT_PATH = "/etc/perphd/perphd.toml"
MAX_FILE_BYTES = 1 << 20
"""Largest configuration file that is read."""


@dataclass(frozen=True, slots=True)
class DaemonConfig:
    """Table ``[daemon]``: how the daemon runs."""

    mode: Mode = setting(
        Mode.OBSERVE,
        "observe: decide and report, but write nothing; enforce: write; each workload may override it",
    )
    period_s: float = setting(1.0, "time between two samples", low=0.1, high=60.0, unit="s")
    attentive_period_s: float = setting(
        0.25,
        "time between samples after an event (batch starts, a change is judged, an LRA degrades), if it is shorter; "
        "not while an LRA's indicators are pushed, come from a file or a command, or have few requests behind them",
        low=0.1,
        high=60.0,
        unit="s",
        expert=True,
    )
    attentive_for_s: float = setting(
        4.0,
        "time for which attentive_period_s applies after the last such event",
        low=0.0,
        high=60.0,
        unit="s",
        expert=True,
    )
    state_dir: str = setting(
        "/var/lib/perphd", "journal of original values, models, workloads added at run time", kind="path"
    )
    socket: str = setting("/run/perphd/perphd.sock", "Unix socket of the control API", kind="socket")
    read_group: str = setting("perphd", "members may read (status, explain, query ...)", kind="group")
    admin_group: str = setting(
        "perphd-admin", "members may also change (mode, workloads, restore ...)", kind="group"
    )
    policy: Literal["perph", "none", "static"] = setting(
        "perph",
        "the policy: perph; or for comparison none, or static (a fixed partition of the cores)",
        expert=True,
    )
    on_stop: Literal["restore", "keep"] = setting(
        "restore", "at stop: restore every kernel file's original value, or keep the values in force"
    )
    on_restart: Literal["restore", "keep"] = setting(
        "keep",
        "like daemon.on_stop, when systemd stops the daemon only to start it again (systemctl restart; an upgrade of "
        "the Debian package restores everything)",
        expert=True,
    )
    pause_file: str = setting(
        "/etc/perphd/pause",
        "while this file exists, perphd changes nothing and everything is restored; its first line is the "
        "reason",
        kind="path",
        expert=True,
    )
    model_save_s: float = setting(
        300.0,
        "interval at which models of LRAs are written to state_dir, also at stop; 0: never",
        low=0.0,
        high=86400.0,
        unit="s",
        expert=True,
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "least severity that is logged")


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Table ``[store]``: the local time-series store behind ``perphctl query`` and ``export``."""

    enabled: bool = setting(True, "keep samples, decisions and outcomes on disk")
    path: str = setting("", "the database; empty: perphd.db in state_dir", kind="optional-path", expert=True)
    retention_h: float = setting(168.0, "age from which rows are deleted", low=0.1, high=87600.0, unit="h")
    max_size_bytes: int = setting(
        parse_size_bytes("512M"), "size above which the oldest rows are deleted", kind="size", key="max_size"
    )


@dataclass(frozen=True, slots=True)
class HostConfig:
    """Table ``[host]``: the host that is controlled."""

    kind: Literal["auto", "simulated"] = setting(
        "auto", "auto: this machine. simulated: the embedded simulated host, which needs no root", expert=True
    )
    root: str = setting(
        "",
        "directory that contains the host's proc and sys, such as one of perphd sim mount; empty: this "
        "machine's own. perf events, taskstats and D-Bus are then not used, because they would report "
        "another machine",
        kind="optional-path",
        expert=True,
    )


@dataclass(frozen=True, slots=True)
class IsolationConfig:
    """Table ``[isolation]``: how settings are written."""

    units: Literal["systemd", "leave"] = setting(
        "systemd",
        "workloads that are systemd units, on cgroup v2: set through their run-time properties, or left "
        "unchanged",
        expert=True,
    )
    changes_per_s: float = setting(
        1.0,
        "maximum rate of changes of one knob, after a burst of 20 changes",
        low=0.01,
        high=100.0,
        unit="/s",
        expert=True,
    )
    adopt_s: float = setting(
        0.0,
        "time for which settings kept over a restart stay in force until the policy has decided; 0: they are restored "
        "at the first tick, so that learning does not mistake them for an unchanged host",
        low=0.0,
        high=3600.0,
        unit="s",
        expert=True,
    )
    deadline_s: float = setting(
        2.0,
        "time limit of all writes of one change, after which they are rolled back and repeated in smaller "
        "groups",
        low=0.1,
        high=60.0,
        unit="s",
        expert=True,
    )


@dataclass(frozen=True, slots=True)
class ResctrlConfig:
    """Table ``[resctrl]``: cache and memory bandwidth by Intel RDT or AMD QoS."""

    monitor_in_observe: bool = setting(
        False,
        "measure cache occupancy and memory bandwidth of observed workloads as well: their threads are moved "
        "into perphd's monitor groups, which does not change their resources",
        expert=True,
    )


TABLES: Mapping[str, type] = {
    "daemon": DaemonConfig,
    "isolation": IsolationConfig,
    "store": StoreConfig,
    "policy": PolicySettings,
    "host": HostConfig,
    "network": NetworkConfig,
    "resctrl": ResctrlConfig,
    "sizing": SizingConfig,
    "model": ModelConfig,
    "federated": FederatedConfig,
    "wake": WakeConfig,
    "metrics": MetricsConfig,
    "window": WindowConfig,
    "forecast": ForecastConfig,
    "queue": QueueConfig,
    "contention": ContentionConfig,
    "opt_in": OptInConfig,
}
"""Tables that may occur once per file; ``[[lra]]``, ``[[batch]]`` and ``[[notify]]`` may be repeated.

Their expert keys are in ``[tuning.NAME]``.
"""


@dataclass(frozen=True, slots=True)
class Config:
    """The operator's configuration.

    ``workloads``: those with a control group; ``matches``: those whose control groups must be found.
    ``sources``: the files, in order. ``warnings``: about accepted but questionable settings. ``runtime``: names of
    the workloads added at run time.
    """

    daemon: DaemonConfig = field(default_factory=DaemonConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    isolation: IsolationConfig = field(default_factory=IsolationConfig)
    policy: PolicySettings = field(default_factory=PolicySettings)
    host: HostConfig = field(default_factory=HostConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    resctrl: ResctrlConfig = field(default_factory=ResctrlConfig)
    sizing: SizingConfig = field(default_factory=SizingConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    federated: FederatedConfig = field(default_factory=FederatedConfig)
    wake: WakeConfig = field(default_factory=WakeConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    window: WindowConfig = field(default_factory=WindowConfig)
    notify: tuple[NotifyConfig, ...] = ()
    forecast: ForecastConfig = field(default_factory=ForecastConfig)
    queue: QueueConfig = field(default_factory=QueueConfig)
    contention: ContentionConfig = field(default_factory=ContentionConfig)
    opt_in: OptInConfig = field(default_factory=OptInConfig)
    workloads: tuple[WorkloadSpec, ...] = ()
    matches: tuple[WorkloadSpec, ...] = ()
    sources: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    runtime: tuple[str, ...] = ()

    @property
    def store_path(self) -> str:
        """Path of the time-series store."""
        return self.store.path or f"{self.daemon.state_dir}/perphd.db"

    @property
    def count(self) -> int:
        """Number of declared workloads."""
        return len(self.workloads) + len(self.matches)

    def of_kind(self, kind: Kind) -> tuple[WorkloadSpec, ...]:
        """The workloads of this kind, in the order of the files."""
        return tuple(spec for spec in self.workloads if spec.kind is kind)


def nothing_to_do(config: Config) -> str:
    """A sentence that explains why perphd could never change anything with this configuration; empty if it could."""
    kinds = {spec.kind for spec in (*config.workloads, *config.matches)}
    kinds |= {*config.opt_in.unit_kinds, *config.opt_in.container_kinds}
    if not kinds:
        return "no workload is declared: perphd only observes the host (perphctl init proposes workloads)"
    if Kind.BATCH not in kinds:
        return "no batch is declared: perphd has nothing to restrict for the LRAs"
    if Kind.LRA not in kinds:
        return "no LRA is declared: there is nothing to protect from batch"
    return ""


RELOADED_TABLES: Final = ("resctrl", "opt_in")
"""Tables that a reload applies as a whole."""
RELOADED: Final = ("mode", "on_stop", "on_restart")
"""Keys of ``[daemon]`` that a reload applies."""


def reloaded(running: Config, read: Config) -> tuple[Config, tuple[str, ...]]:
    """The configuration in force after a reload, and the changed keys that need a restart, as ``table.key``.

    A reload applies workloads with their own settings, and the tables and keys of ``RELOADED_TABLES`` and
    ``RELOADED``.
    """
    waiting: list[str] = []
    for table, cls in TABLES.items():
        before, after = getattr(running, table), getattr(read, table)
        if table in RELOADED_TABLES:
            continue
        changed = [key for key in keys_of(cls) if getattr(before, key.field) != getattr(after, key.field)]
        waiting += [place_of(table, key) for key in changed if table != "daemon" or key.name not in RELOADED]
    kept = {table: getattr(read if table in RELOADED_TABLES else running, table) for table in TABLES}
    kept["daemon"] = replace(running.daemon, **{name: getattr(read.daemon, name) for name in RELOADED})
    waiting += [NOTIFY] if running.notify != read.notify else []
    return replace(read, **kept, notify=running.notify), tuple(waiting)


def place_of(table: str, key: Key) -> str:
    """The path of a key: ``daemon.mode``, ``tuning.daemon.policy``."""
    return f"{TUNING}.{table}.{key.name}" if key.expert else f"{table}.{key.name}"


def parse(text: str, source: str) -> Config:
    """Read one file's text.

    Raises:
        ConfigError: it is not TOML, or a key or value is refused.
    """
    return _assemble([_parse_part(text, source)])


def load(path: str | Path = DEFAULT_PATH, *, runtime: bool = True) -> Config:
    """Read the configuration file, its drop-ins and (``runtime``) the workloads added at run time.

    A declared workload takes precedence, with a warning, over one added at run time with its name or cgroup.

    Raises:
        ConfigError: a file cannot be read, is world-writable, or contains something that is refused.
    """
    main = Path(path)
    parts = [_parse_part(_read(main), str(main))]
    parts += [_parse_part(_read(drop_in), str(drop_in)) for drop_in in drop_ins(main)]
    config = _assemble(parts)
    return _with_runtime(config) if runtime else config


def refusals(path: str | Path) -> tuple[ConfigError, ...]:
    """All mistakes that ``load`` would refuse, as far as they can be separated; empty if there are none."""
    main = Path(path)
    try:
        files = [main, *drop_ins(main)]
        raws = [(file, read_toml(file)) for file in files]
    except ConfigError as exc:
        return (exc,)
    found: list[ConfigError] = []
    for file, raw in raws:

        def read(raw: dict[str, Any], source: str = str(file)) -> None:
            part = _part(raw, source)
            if len(files) == 1:  # otherwise other files may complete it
                _assemble([part])

        found += mistakes(raw, read)
    if not found:
        try:
            load(path)
        except ConfigError as exc:
            found.append(exc)
    return tuple(found)


def drop_ins(main: Path) -> list[Path]:
    """The files in ``conf.d`` beside the main file, in the order in which they are read.

    Raises:
        ConfigError: the folder cannot be listed.
    """
    directory = main.parent / "conf.d"
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(".toml") and name[0] != ".")
    except (FileNotFoundError, NotADirectoryError):
        names = []
    except OSError as exc:
        raise ConfigError(str(directory), "", f"cannot be listed: {exc.strerror}") from exc
    return [directory / name for name in names]


def read_toml(path: Path) -> dict[str, Any]:
    """The content of one file, unchecked.

    Raises:
        ConfigError: it cannot be read, is world-writable, or is not TOML.
    """
    return _toml(_read(path), str(path))


@dataclass(frozen=True, slots=True)
class _Part:
    source: str
    tables: Mapping[str, Mapping[str, Any]]
    workloads: tuple[Declared, ...]
    notify: tuple[NotifyConfig, ...]


def _parse_part(text: str, source: str) -> _Part:
    return _part(_toml(text, source), source)


def _part(raw: dict[str, Any], source: str) -> _Part:
    known = [*TABLES, NOTIFY, *(kind.value for kind in Kind), TUNING]
    for name in raw:
        if name not in known:
            raise _unknown_table(source, name, name, known)
    tuning = raw.get(TUNING, {})
    if not isinstance(tuning, Mapping):
        raise ConfigError(
            source, TUNING, f"{show(tuning)} is not a table", f"tables such as [{TUNING}.daemon]"
        )
    for name in tuning:
        if name in (NOTIFY, *Kind):
            problem = f"belongs to one of the tables [[{name}]]"
            raise ConfigError(source, f"{TUNING}.{name}", problem, f"[{name}.{TUNING}] below it")
        if name not in TABLES:
            raise _unknown_table(source, f"{TUNING}.{name}", name, list(TABLES))
    tables: dict[str, dict[str, Any]] = {}
    for name, table in TABLES.items():
        place = f"{TUNING}.{name}"
        if name in raw:
            tables[name] = read_values(table, raw[name], source, name, keys=usual_keys(table), others=place)
        if name in tuning:
            expert = read_values(table, tuning[name], source, place, keys=expert_keys(table), others=name)
            tables[name] = tables.get(name, {}) | expert
    return _Part(source, tables, read_workloads(raw, source), read_notify(raw, source))


def _unknown_table(source: str, where: str, name: str, known: list[str]) -> ConfigError:
    # A key above the first [table] header is a common mistake: name the table to which it belongs.
    homes = [
        place_of(table, key) for table, cls in TABLES.items() for key in keys_of(cls) if key.name == name
    ]
    if homes:
        problem = f"belongs in a table: write it below [{homes[0].rpartition('.')[0]}]"
        return ConfigError(source, where, problem, ", ".join(known))
    return unknown_key(source, where, name, known)


def _toml(text: str, source: str) -> dict[str, Any]:
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError(source, "", "is too large", f"at most {MAX_FILE_BYTES} bytes")
    try:
        return tomllib.loads(text)
    except ValueError as exc:  # TOMLDecodeError, and the error of int() for very long numbers
        raise ConfigError(source, "", f"is not TOML: {exc}") from exc
    except RecursionError as exc:
        raise ConfigError(source, "", "is nested too deeply") from exc


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise ConfigError(str(path), "", f"cannot be read: {exc.strerror}") from exc
    except ValueError as exc:  # a NUL in the name
        raise ConfigError(show(str(path)), "", f"cannot be read: {exc}") from exc
    if status.st_mode & stat.S_IWOTH and stat.S_ISREG(status.st_mode):
        # The file can name commands that run with the daemon's rights.
        raise ConfigError(str(path), "", "is world-writable; remove that permission (chmod o-w)")
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise ConfigError(str(path), "", f"is not UTF-8 text (byte {exc.start})") from exc


def _assemble(parts: list[_Part]) -> Config:
    merged: dict[str, dict[str, Any]] = {name: {} for name in TABLES}
    for part in parts:
        for name, values in part.tables.items():
            merged[name].update(values)
    declared = [item for part in parts for item in part.workloads]
    check_workloads(declared)
    tables: dict[str, Any] = {name: table(**merged[name]) for name, table in TABLES.items()}
    source = next((part.source for part in reversed(parts) if "metrics" in part.tables), "")
    check_metrics(tables["metrics"], source)
    receivers = tuple(receiver for part in parts for receiver in part.notify)
    check_names(receivers, parts[-1].source)
    return Config(
        **tables,
        notify=receivers,
        workloads=tuple(item.spec for item in declared if item.spec.cgroup),
        matches=tuple(item.spec for item in declared if not item.spec.cgroup),
        sources=tuple(part.source for part in parts),
    )


def _with_runtime(config: Config) -> Config:
    added = read_runtime(config.daemon.state_dir)
    if not added:
        return config
    # Declared files take precedence: each addition is checked against all before it.
    kept = [Declared(spec, "the configuration", spec.name) for spec in (*config.workloads, *config.matches)]
    warnings, names = list(config.warnings), []
    for item in added:
        try:
            check_workloads([*kept, item])
        except ConfigError as exc:
            warnings.append(f"workload {item.spec.name!r}, added at run time, is ignored: {exc}")
        else:
            kept.append(item)
            names.append(item.spec.name)
    return replace(
        config,
        workloads=tuple(item.spec for item in kept if item.spec.cgroup),
        matches=tuple(item.spec for item in kept if not item.spec.cgroup),
        sources=(*config.sources, added[0].source),
        warnings=tuple(warnings),
        runtime=tuple(names),
    )
