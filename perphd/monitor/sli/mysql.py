"""Indicators of MariaDB and MySQL, from status counters that an account without any privileges may read.

Both servers sum all threads' counters on request, so counts are exact at any moment. They count completed requests but
not offered ones, so the load is unavailable. The latency is that of statements. It comes from the server's histogram:
MariaDB's plug-in query_response_time, or MySQL's performance schema.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from perphd.domain.reading import Unavailable
from perphd.domain.workload import SliSpec
from perphd.monitor.rates import WENT_BACKWARDS
from perphd.monitor.sli.options import resolution_of, seconds, setting
from perphd.monitor.sli.polled import SliError, read_password
from perphd.monitor.sli.reading import SliReading, behind
from perphd.monitor.sli.resolution import EXACT, Counted, CountWindow, Resolution
from perphd.monitor.sli.server_latency import ServerLatency, Totals, totals_of
from perphd.monitor.sli.threaded import ThreadedSource

NO_LOAD = Unavailable("a database server reports completed requests, not offered ones")
NO_LATENCY = Unavailable("this source does not report latency")

ENDLESS_S: Final = 1e6
_OF_MARIADB: Final = (
    "SELECT TIME, COUNT, @@GLOBAL.query_response_time_stats FROM information_schema.QUERY_RESPONSE_TIME"
)
_OF_MYSQL: Final = (
    "SELECT BUCKET_TIMER_HIGH / 1000000000000, COUNT_BUCKET, 1 "
    "FROM performance_schema.events_statements_histogram_global"
)
"""Queries for every bucket's upper bound in seconds, its number of statements, and whether the histogram is enabled."""
_COUNTERS = {"queries": ("Queries",), "transactions": ("Com_commit", "Com_rollback")}


class MySqlSource(ThreadedSource):
    """Queries or transactions per second from SHOW GLOBAL STATUS; perphd's own statement is not counted."""

    def __init__(self, spec: SliSpec) -> None:
        super().__init__("mysql", seconds(spec, "timeout_s"), resolution_of(spec, EXACT))
        self._spec = spec
        self._metric = setting(spec, "metric")
        self._connection: Any = None
        self._window = CountWindow()
        self._uptime_s = 0
        self._own_statements = 0
        self._latency = ServerLatency() if setting(spec, "latency") == "server" else None
        self._totals: Totals | Unavailable = NO_LATENCY
        names = ", ".join(f"'{name}'" for name in ("Uptime", *_COUNTERS[self._metric]))
        self._statement = f"SHOW GLOBAL STATUS WHERE Variable_name IN ({names})"

    def _query(self) -> Mapping[str, int]:
        if self._connection is None:
            self._connection = self._connect()
        with self._connection.cursor() as cursor:
            cursor.execute(self._statement)
            counters = {str(name): int(value) for name, value in cursor.fetchall()}
            if self._latency is not None:
                self._totals = self._histogram(cursor)
                self._own_statements += 1
            return counters

    def _histogram(self, cursor: Any) -> Totals | Unavailable:
        import pymysql

        is_mariadb = "mariadb" in self._connection.get_server_info().lower()
        try:
            cursor.execute(_OF_MARIADB if is_mariadb else _OF_MYSQL)
        except pymysql.MySQLError as exc:  # missing or not permitted; the result of SHOW stays valid
            return Unavailable(f"the server's histogram of latency cannot be read: {exc.args[-1]}")
        rows = cursor.fetchall()
        if not all(counts for _, _, counts in rows):
            return Unavailable("the server has no histogram of latency: query_response_time_stats is off")
        return totals_of((_bound_ms(bound), float(count)) for bound, count, _ in rows)

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
            # SHOW has already counted itself.
            self._own_statements += 1
            work -= self._own_statements
        restarted = counters["Uptime"] < self._uptime_s
        self._uptime_s = counters["Uptime"]
        if restarted:
            self._window = CountWindow()  # the new server's counter may already be higher than the old one's
        counted = self._window.update(work, at_s, self.resolution)
        if restarted or counted.rate is WENT_BACKWARDS:
            counted = Counted(Unavailable("the server was restarted or its status was reset"))
        reading = database_reading(counted, self.resolution)
        return reading if self._latency is None else self._latency.joined(reading, self._totals, at_s)


def _bound_ms(seconds: object) -> float:
    """A bucket's upper bound in ms; infinite for the last bucket.

    The last bucket has no bound, or the largest possible number.
    """
    try:
        bound_s = float(str(seconds))
    except ValueError:
        return math.inf
    return bound_s * 1000.0 if bound_s < ENDLESS_S else math.inf


def database_reading(counted: Counted, resolution: Resolution) -> SliReading:
    """The indicators of a database server: it reports completed work, but no load and no latency."""
    return SliReading(
        counted.rate,
        NO_LOAD,
        NO_LATENCY,
        NO_LATENCY,
        NO_LATENCY,
        work=behind(counted),
        resolution_s=resolution.reading,
    )
