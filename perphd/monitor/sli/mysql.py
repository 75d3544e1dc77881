"""MariaDB and MySQL: status counters over the unix socket, by an account without any privileges.

Both add up all threads' counters when they are asked: the counts are exact at any moment.
The server does not know how much it is *asked* (clients wait for it), so there is no load; latency would need
plug-ins that are off by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perphd.domain.reading import Unavailable
from perphd.domain.workload import SliSpec
from perphd.monitor.rates import WENT_BACKWARDS
from perphd.monitor.sli.options import resolution_of, seconds, setting
from perphd.monitor.sli.polled import SliError, read_password
from perphd.monitor.sli.reading import SliReading, behind
from perphd.monitor.sli.resolution import EXACT, Counted, CountWindow, Resolution
from perphd.monitor.sli.threaded import ThreadedSource

NO_LOAD = Unavailable("a database server knows what it answered, not what is asked of it")
NO_LATENCY = Unavailable("not offered by this source")

_COUNTERS = {"queries": ("Queries",), "transactions": ("Com_commit", "Com_rollback")}


class MySqlSource(ThreadedSource):
    """Queries or transactions per second from SHOW GLOBAL STATUS; its own statement is not counted."""

    def __init__(self, spec: SliSpec) -> None:
        super().__init__("mysql", seconds(spec, "timeout_s"), resolution_of(spec, EXACT))
        self._spec = spec
        self._metric = setting(spec, "metric")
        self._connection: Any = None
        self._window = CountWindow()
        self._uptime_s = 0
        self._own_statements = 0
        names = ", ".join(f"'{name}'" for name in ("Uptime", *_COUNTERS[self._metric]))
        self._statement = f"SHOW GLOBAL STATUS WHERE Variable_name IN ({names})"

    def _query(self) -> Mapping[str, int]:
        if self._connection is None:
            self._connection = self._connect()
        with self._connection.cursor() as cursor:
            cursor.execute(self._statement)
            return {str(name): int(value) for name, value in cursor.fetchall()}

    def _connect(self) -> Any:
        import pymysql

        where: dict[str, object] = {"unix_socket": setting(self._spec, "socket")}
        if self._spec.get("host"):
            where = {"host": self._spec.get("host"), "port": int(setting(self._spec, "port"))}
        return pymysql.connect(
            **where,
            user=setting(self._spec, "user"),
            password=read_password(setting(self._spec, "password_file")),
            connect_timeout=self._timeout_s,
            read_timeout=self._timeout_s,
            write_timeout=self._timeout_s,
            autocommit=True,
            program_name="perphd",
        )

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _reading(self, counters: Mapping[str, int], at_s: float) -> SliReading:
        missing = [name for name in ("Uptime", *_COUNTERS[self._metric]) if name not in counters]
        if missing:
            raise SliError(f"the server has no status variable {', '.join(missing)}")
        work = sum(counters[name] for name in _COUNTERS[self._metric])
        if self._metric == "queries":
            # SHOW counts itself before it answers.
            self._own_statements += 1
            work -= self._own_statements
        restarted = counters["Uptime"] < self._uptime_s
        self._uptime_s = counters["Uptime"]
        if restarted:
            self._window = CountWindow()  # the new server may have counted further than the old one
        counted = self._window.update(work, at_s, self.resolution)
        if restarted or counted.rate is WENT_BACKWARDS:
            counted = Counted(Unavailable("the server was restarted or its status was reset"))
        return database_reading(counted, self.resolution)


def database_reading(counted: Counted, resolution: Resolution) -> SliReading:
    """What a database server can tell: completed work."""
    return SliReading(
        counted.rate,
        NO_LOAD,
        NO_LATENCY,
        NO_LATENCY,
        NO_LATENCY,
        work=behind(counted),
        resolution_s=resolution.reading,
    )
