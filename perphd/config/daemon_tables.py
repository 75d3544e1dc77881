"""Tables of the configuration about the daemon itself and its host: daemon, store, host, isolation and resctrl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perphd.config.schema import setting
from perphd.domain.units import parse_size_bytes
from perphd.domain.workload import Mode


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
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "lowest severity that is logged"
    )


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
        "directory that contains the host's proc and sys, such as one mounted by perphd sim mount; if set, perf "
        "events, taskstats and D-Bus are not used, because they would report another machine. Empty: this "
        "machine's own proc and sys",
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
