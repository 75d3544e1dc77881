"""Indicators of PostgreSQL: transactions per second, read by a role without any privileges.

A backend reports its counts when a transaction ends, but at most once a second (PGSTAT_MIN_INTERVAL). The
source reads the counts several times a second between readings, and computes rates between reports
(``monitor.sli.flushes``). It calls functions only: PostgreSQL 15 and later do not report transactions of a backend that
touches no table, so perphd's own queries are not counted.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final

from perphd.domain.reading import Unavailable, available
from perphd.domain.workload import SliSpec
from perphd.monitor.rates import WENT_BACKWARDS
from perphd.monitor.sli.flushes import FlushLook, FlushWindow
from perphd.monitor.sli.mysql import database_reading
from perphd.monitor.sli.options import resolution_of, seconds, setting
from perphd.monitor.sli.polled import SliError, read_password
from perphd.monitor.sli.reading import SliReading
from perphd.monitor.sli.resolution import Counted, Origin, Resolution
from perphd.monitor.sli.threaded import WatchedSource

REPORTS: Final = Resolution(1.0, Origin.STATED)
OLDER: Final = 150000
"""Server version before which counts are written to a file, at most every half second (PostgreSQL 15)."""
OLDER_PAUSE_S: Final = 0.5
NEW_DATABASES_S: Final = 10.0
"""Seconds between two searches for databases created after the connection."""

_DATABASES: Final = "SELECT oid::int8, datname FROM pg_database"
_IN_USE: Final = "SELECT DISTINCT pg_stat_get_backend_dbid(b)::int8 FROM pg_stat_get_backend_idset() b"


class PostgreSqlSource(WatchedSource):
    """Commits and rollbacks per second, of one database or of all."""

    def __init__(self, spec: SliSpec) -> None:
        super().__init__("postgresql", seconds(spec, "timeout_s"), resolution_of(spec, REPORTS))
        self._spec = spec
        self._database = setting(spec, "database")
        self._connection: Any = None
        self._count: Any = None
        self._known: set[int] = set()
        self._checked_s = 0.0
        self._total = 0
        self._least_pause_s = 0.0
        self._window = FlushWindow(self.resolution)

    def _look(self) -> float:
        if self._connection is None:
            self._connection = self._connect()
            self._prepare()
        elif time.monotonic() - self._checked_s > NEW_DATABASES_S and self._has_new_databases():
            # Listing databases on this connection would make the server report perphd's own transactions.
            self._disconnect()
            return self._look()
        asked_s = time.monotonic()
        total = int(self._count.run()[0][0])
        self._window.look(FlushLook(asked_s, time.monotonic(), total))
        if total < self._total:
            self._disconnect()  # a database was dropped, or the server has reset its counts
        self._total = total
        return max(self._least_pause_s, self._window.pause_s)

    @property
    def ended_s(self) -> float:
        """End of the last reading's window, on the clock of ``time.monotonic``."""
        return self._window.ended_s

    def _take(self) -> SliReading:
        counted = self._window.take()
        if counted.rate is WENT_BACKWARDS:
            counted = Counted(Unavailable("the server was restarted or its statistics were reset"))
        late_s = max(self.resolution.seconds, self._window.age_s)
        reading = database_reading(counted, self.resolution)
        return replace(reading, resolution_s=late_s) if available(counted.rate) else reading

    def _prepare(self) -> None:
        version = int(self._connection.run("SHOW server_version_num")[0][0])
        self._least_pause_s = OLDER_PAUSE_S if version < OLDER else 0.0
        found = {int(oid): name for oid, name in self._connection.run(_DATABASES)}
        counted = [oid for oid, name in found.items() if self._database in ("", name)]
        if not counted:
            raise SliError(f"there is no database {self._database!r}")
        if found.keys() != self._known and self._known and not self._database:
            self._window = FlushWindow(self.resolution)  # earlier work of new databases must not count now
        self._known, self._checked_s = set(found), time.monotonic()
        oids = ",".join(map(str, counted))
        self._count = self._connection.prepare(
            "SELECT sum(pg_stat_get_db_xact_commit(o) + pg_stat_get_db_xact_rollback(o))::int8 "
            f"FROM unnest('{{{oids}}}'::oid[]) o"
        )

    def _has_new_databases(self) -> bool:
        self._checked_s = time.monotonic()
        return any(oid and oid not in self._known for (oid,) in self._connection.run(_IN_USE))

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
