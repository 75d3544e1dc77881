"""PostgreSQL: transactions per second from pg_stat_database, by a role without any privileges.

A backend reports its counts when a transaction ends, but not within a second of its last report (PGSTAT_MIN_INTERVAL):
nothing is read over less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from perphd.domain.reading import Unavailable
from perphd.domain.workload import SliSpec
from perphd.monitor.rates import WENT_BACKWARDS
from perphd.monitor.sli.mysql import database_reading
from perphd.monitor.sli.options import resolution_of, seconds, setting
from perphd.monitor.sli.polled import SliError, read_password
from perphd.monitor.sli.reading import SliReading
from perphd.monitor.sli.resolution import Counted, CountWindow, Origin, Resolution
from perphd.monitor.sli.threaded import ThreadedSource

REPORTS: Final = Resolution(1.0, Origin.STATED)
_ALL = "SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database"
_ONE = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = :name"


class PostgreSqlSource(ThreadedSource):
    """Commits and rollbacks per second, of one database or of all."""

    def __init__(self, spec: SliSpec) -> None:
        super().__init__("postgresql", seconds(spec, "timeout_s"), resolution_of(spec, REPORTS))
        self._spec = spec
        self._database = setting(spec, "database")
        self._connection: Any = None
        self._window = CountWindow()
        # Its own questions are transactions of the database that it is connected to.
        self._own = 1.0 if self._database in ("", setting(spec, "connect_database")) else 0.0

    def _query(self) -> Mapping[str, int]:
        if self._connection is None:
            self._connection = self._connect()
        if self._database:
            rows = self._connection.run(_ONE, name=self._database)
        else:
            rows = self._connection.run(_ALL)
        return {"transactions": int(rows[0][0])} if rows and rows[0][0] is not None else {}

    def _connect(self) -> Any:
        import pg8000.native

        where: dict[str, object] = {"unix_sock": setting(self._spec, "socket")}
        if self._spec.get("host"):
            where = {"host": self._spec.get("host"), "port": int(setting(self._spec, "port"))}
        return pg8000.native.Connection(
            setting(self._spec, "user"),
            **where,
            password=read_password(setting(self._spec, "password_file")) or None,
            database=setting(self._spec, "connect_database"),
            timeout=self._timeout_s,
            application_name="perphd",
        )

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _reading(self, counters: Mapping[str, int], at_s: float) -> SliReading:
        if "transactions" not in counters:
            raise SliError(f"there is no database {self._database!r}")
        counted = self._window.update(counters["transactions"], at_s, self.resolution, own=self._own)
        if counted.rate is WENT_BACKWARDS:
            counted = Counted(Unavailable("the server was restarted or its statistics were reset"))
        return database_reading(counted, self.resolution)
