"""Creates SLI sources from their configuration."""

from __future__ import annotations

from perphd.domain.workload import SliSpec
from perphd.host.cgroup.hierarchy import Hierarchies, Layout
from perphd.monitor.sli.options import validate_options
from perphd.monitor.sli.reading import SliSource

_NOWHERE = Hierarchies(Layout.NONE, None, {})


def open_source(spec: SliSpec, cgroup: str = "", hierarchies: Hierarchies = _NOWHERE) -> SliSource:
    """Create the source of the workload with this control group.

    Nothing is contacted yet: connections are made at the first reading, and again after failures.

    Raises:
        ConfigError: the spec did not come from ``validate_options`` and is invalid.
    """
    validate_options(spec.source, dict(spec.options))
    if spec.get("latency") == "tcp":
        from perphd.monitor.sli.tcp import WithTcpLatency, tcp_source

        return WithTcpLatency(_open(spec), tcp_source(SliSpec("tcp"), cgroup, hierarchies))
    if spec.source == "tcp":
        from perphd.monitor.sli.tcp import tcp_source

        return tcp_source(spec, cgroup, hierarchies)
    return _open(spec)


def _open(spec: SliSpec) -> SliSource:
    # Modules are imported here, so that an unused source costs no memory.
    match spec.source:
        case "mysql":
            from perphd.monitor.sli.mysql import MySqlSource

            return MySqlSource(spec)
        case "postgresql":
            from perphd.monitor.sli.postgresql import PostgreSqlSource

            return PostgreSqlSource(spec)
        case "redis":
            from perphd.monitor.sli.redis import RedisSource

            return RedisSource(spec)
        case "prometheus":
            from perphd.monitor.sli.prometheus import PrometheusSource

            return PrometheusSource(spec)
        case "file":
            from perphd.monitor.sli.file import FileSource

            return FileSource(spec)
        case "command":
            from perphd.monitor.sli.command import CommandSource

            return CommandSource(spec)
        case _:
            from perphd.monitor.sli.push import PushSource

            return PushSource(spec)
