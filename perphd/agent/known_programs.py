"""Known programs: servers with their indicators, batch programs, and system programs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from perphd.domain.host_facts import ProcessFact


@dataclass(frozen=True, slots=True)
class KnownServer:
    """One kind of server.

    ``source``: source of its indicators. ``socket``: part of its socket's path. ``default_socket``: path that the
    source uses by default. ``account``: the statement that creates the source's account. ``password``: the source
    needs a password. ``against``: reason why the latency of its TCP connections is unsuitable.
    """

    title: str
    app_class: str
    source: str
    socket: str = ""
    default_socket: str = ""
    account: str = ""
    password: bool = field(default=False)
    against: str = ""


_MANY_STREAMS: Final = "HTTP/2 with many streams at once: a burst of requests counts as one"
_DEFERRED: Final = "the first request of each connection is not seen (TCP_DEFER_ACCEPT)"
_BEHIND: Final = "its latency includes that of its backends"
_MYSQL: Final = KnownServer(
    "MariaDB or MySQL",
    "database",
    "mysql",
    "mysql",
    "/run/mysqld/mysqld.sock",
    "CREATE USER perphd@localhost IDENTIFIED BY '{password}';",
    password=True,
)
_POSTGRESQL: Final = KnownServer(
    "PostgreSQL",
    "database",
    "postgresql",
    ".s.PGSQL.",
    "/run/postgresql/.s.PGSQL.5432",
    "CREATE ROLE perphd LOGIN;   -- and let root in as this role: docs/how-to/indicators.md",
)
_REDIS: Final = KnownServer("Redis or Valkey", "cache", "redis", "redis", "/run/redis/redis-server.sock")

PROGRAMS: Final[Mapping[str, KnownServer]] = {
    "mariadbd": _MYSQL,
    "mysqld": _MYSQL,
    "postgres": _POSTGRESQL,
    "postmaster": _POSTGRESQL,
    "redis-server": _REDIS,
    "valkey-server": _REDIS,
    "memcached": KnownServer("memcached", "cache", "tcp"),
    "mongod": KnownServer("MongoDB", "database", "tcp"),
    "nginx": KnownServer("nginx", "web", "tcp", against=_BEHIND),
    "haproxy": KnownServer("HAProxy", "web", "tcp", against=_BEHIND),
    "envoy": KnownServer("Envoy", "web", "tcp", against=_MANY_STREAMS),
    "apache2": KnownServer("Apache httpd", "web", "tcp", against=_DEFERRED),
    "httpd": KnownServer("Apache httpd", "web", "tcp", against=_DEFERRED),
    "clickhouse-server": KnownServer("ClickHouse", "database", "tcp"),
    "etcd": KnownServer("etcd", "database", "tcp", against=_MANY_STREAMS),
    "beam.smp": KnownServer(
        "an Erlang server such as RabbitMQ",
        "streaming",
        "tcp",
        against="messages that it pushes are not counted",
    ),
}
"""Servers by program name."""

JAVA: Final[Mapping[str, KnownServer]] = {
    "kafka.Kafka": KnownServer(
        "Kafka", "streaming", "tcp", against="consumers that wait for messages look like slow requests"
    ),
    "org.elasticsearch": KnownServer("Elasticsearch", "database", "tcp"),
    "org.opensearch": KnownServer("OpenSearch", "database", "tcp"),
    "org.apache.cassandra": KnownServer("Cassandra", "database", "tcp"),
    "org.apache.zookeeper": KnownServer("ZooKeeper", "database", "tcp"),
    "org.apache.catalina": KnownServer("Tomcat", "web", "tcp"),
}
"""Java servers by the prefix of their main class."""

OTHER: Final = KnownServer("a server", "none", "tcp")
JAVA_OTHER: Final = KnownServer("a Java service", "none", "tcp")

SYSTEM: Final = frozenset(
    """
    systemd init sshd dbus-daemon dbus-broker dbus-broker-lau rsyslogd chronyd ntpd exim4 master cupsd
    avahi-daemon rpcbind dnsmasq named unbound containerd containerd-shim containerd-shim-runc-v2
    dockerd podman conmon crio kubelet kube-proxy node_exporter prometheus-node-exporter prometheus
    alertmanager grafana grafana-server agetty polkitd udisksd NetworkManager snapd snmpd zabbix_agentd
    zabbix_agent2 collectd telegraf fluentd fluent-bit vector salt-minion puppet chef-client tailscaled
    wpa_supplicant acpid irqbalance smartd multipathd iscsid qemu-ga vmtoolsd gdm lightdm Xorg
    gnome-shell ModemManager unattended-upgr apt packagekitd fwupd perphd perphctl auditd inetd xinetd
    inetutils-inetd
    """.split()
)
"""System programs: neither LRAs nor batch. Names with the prefix ``systemd-`` count as well."""

BATCH: Final = frozenset(
    """
    stress-ng stress ffmpeg make ninja cc1 cc1plus gcc g++ rustc cargo go compile link borg restic rsync
    tar xz gzip zstd pigz pbzip2 7z mysqldump mariadb-dump mariabackup xtrabackup pg_dump pg_basebackup
    pg_restore slurmstepd gitlab-runner handbrake blender hashcat boinc fio sysbench bacula-fd duplicity
    updatedb clamscan clamd
    """.split()
)
"""Batch programs."""

HOUSEKEEPING: Final = frozenset(
    """
    apt-daily.service apt-daily-upgrade.service logrotate.service man-db.service e2scrub_all.service
    fstrim.service systemd-tmpfiles-clean.service dpkg-db-backup.service anacron.service
    phpsessionclean.service motd-news.service exim4-base.service ua-timer.service
    update-notifier-download.service update-notifier-motd.service fwupd-refresh.service
    snapd.snap-repair.service xfs_scrub_all.service mdcheck_start.service mdcheck_continue.service
    mdmonitor-oneshot.service mlocate.service plocate-updatedb.service sysstat-collect.service
    sysstat-summary.service certbot.service apport-autoreport.service debsecan.service
    raid-check.service unbound-anchor.service dnf-makecache.service
    """.split()
)
"""Units that distributions start with timers; they are too short-lived to declare."""

BATCH_SLICE: Final = re.compile(
    r"(?:^|[-/])(batch|jobs?|background|spark|yarn|hadoop|slurm|nightly|ci|build)\.slice$"
)
CRON: Final = frozenset({"cron.service", "crond.service", "cronie.service"})
_MAIN_CLASS: Final = re.compile(r"[A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)+")


def program_of(process: ProcessFact) -> str:
    """The program's name. It comes from argv if possible, because the kernel truncates names to 15 characters."""
    title = re.split(r"[:\s]", process.argv[0], maxsplit=1)[0] if process.argv else ""
    first = title.rsplit("/", 1)[-1]
    return first if first and first.startswith(process.name[:15]) else process.name


def is_system(process: ProcessFact) -> bool:
    """True for a system program."""
    program = program_of(process)
    return program in SYSTEM or process.name in SYSTEM or program.startswith(("systemd-", "(sd-"))


def is_perphds(unit: str) -> bool:
    """True for units of perphd's package, and for units of the batch queue's jobs, which the queue limits anyway."""
    return unit.startswith(("perphd.", "perphd-"))


def server_of(process: ProcessFact) -> KnownServer | None:
    """The kind of server that this process is; None if it neither listens nor is a known server."""
    program = program_of(process)
    if is_system(process):
        return None
    known = PROGRAMS.get(program) or PROGRAMS.get(process.name)
    if known is not None:
        return known
    if program == "java":
        for word in process.argv[1:]:
            for prefix, server in JAVA.items():
                if word.startswith(prefix) and _MAIN_CLASS.match(word):
                    return server
        return JAVA_OTHER if process.ports else None
    return OTHER if process.ports else None
