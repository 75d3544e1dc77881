"""TPC-H on MariaDB: the standard's 22 queries, and a client that sends them in streams.

python -m tools.lab.servers.tpch PORT USER load FOLDER     make the tables from the files of tpchgen-cli
python -m tools.lab.servers.tpch PORT USER run STREAMS     closed loop until killed: one report a second

The password is in LAB_PASSWORD. Every stream repeats all queries in its own order, with the parameters by which the
standard validates answers, so two runs of a scheme do the same work.
"""

from __future__ import annotations

import bisect
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pymysql

from tools.lab.servers.seam import NATIVE, Unavailable, run

SCALE_FACTOR: Final = 0.1
QUERIES: Final = 22
DATABASE: Final = "tpch"

TABLES: Final = {
    "region": "r_regionkey int primary key, r_name char(25), r_comment varchar(152)",
    "nation": "n_nationkey int primary key, n_name char(25), n_regionkey int, n_comment varchar(152)",
    "supplier": "s_suppkey int primary key, s_name char(25), s_address varchar(40), s_nationkey int, s_phone char(15), "
    "s_acctbal decimal(15,2), s_comment varchar(101), key (s_nationkey)",
    "part": "p_partkey int primary key, p_name varchar(55), p_mfgr char(25), p_brand char(10), p_type varchar(25), "
    "p_size int, p_container char(10), p_retailprice decimal(15,2), p_comment varchar(23)",
    "partsupp": "ps_partkey int, ps_suppkey int, ps_availqty int, ps_supplycost decimal(15,2), "
    "ps_comment varchar(199), primary key (ps_partkey, ps_suppkey), key (ps_suppkey)",
    "customer": "c_custkey int primary key, c_name varchar(25), c_address varchar(40), c_nationkey int, "
    "c_phone char(15), c_acctbal decimal(15,2), c_mktsegment char(10), c_comment varchar(117), key (c_nationkey)",
    "orders": "o_orderkey int primary key, o_custkey int, o_orderstatus char(1), o_totalprice decimal(15,2), "
    "o_orderdate date, o_orderpriority char(15), o_clerk char(15), o_shippriority int, o_comment varchar(79), "
    "key (o_custkey), key (o_orderdate)",
    "lineitem": "l_orderkey int, l_partkey int, l_suppkey int, l_linenumber int, l_quantity decimal(15,2), "
    "l_extendedprice decimal(15,2), l_discount decimal(15,2), l_tax decimal(15,2), l_returnflag char(1), "
    "l_linestatus char(1), l_shipdate date, l_commitdate date, l_receiptdate date, l_shipinstruct char(25), "
    "l_shipmode char(10), l_comment varchar(44), primary key (l_orderkey, l_linenumber), key (l_partkey), "
    "key (l_suppkey), key (l_shipdate)",
}


def queries() -> dict[str, str]:
    """The queries by number: those of native/tpch.sql, each after a line ``-- Qn``."""
    found: dict[str, str] = {}
    for part in (NATIVE / "tpch.sql").read_text().split("-- Q")[1:]:
        number, _, text = part.partition("\n")
        found[f"Q{number.strip()}"] = text.strip().rstrip(";")
    return found


def fill(folder: Path, client: Sequence[str], env: dict[str, str], wait_s: float) -> None:
    """Generate the tables' files and load them; ``client``: the command of this module, with its environment.

    Raises:
        Unavailable: the generator is not installed.
    """
    generator = shutil.which("tpchgen-cli") or shutil.which(
        "tpchgen-cli", path=str(Path(sys.executable).parent)
    )
    if generator is None:
        raise Unavailable("tpchgen-cli is not installed: pip install tpchgen-cli (in the extra lab)")
    files = folder / "tpch"
    run(generator, "-s", str(SCALE_FACTOR), "--output-dir", str(files), wait_s=wait_s)
    run(*client, "load", str(files), wait_s=wait_s, env=env)
    shutil.rmtree(files)


@contextmanager
def _connected(port: int, user: str) -> Iterator[Any]:
    connection = pymysql.connect(
        host="127.0.0.1", port=port, user=user, password=os.environ["LAB_PASSWORD"], database=DATABASE,
        local_infile=True, autocommit=True,
    )  # fmt: skip
    try:
        yield connection.cursor()
    finally:
        connection.close()


def _load(port: int, user: str, folder: Path) -> None:
    with _connected(port, user) as cursor:
        for table, columns in TABLES.items():
            cursor.execute(f"CREATE TABLE {table} ({columns})")
            path = folder / f"{table}.tbl"
            cursor.execute(f"LOAD DATA LOCAL INFILE '{path}' INTO TABLE {table} FIELDS TERMINATED BY '|'")
            cursor.execute(f"ANALYZE TABLE {table}")
            cursor.fetchall()


_BOUNDS_MS: Final = [round(1.02**step, 3) for step in range(900)]
"""Upper bounds of the histogram's buckets; the smallest query takes about a millisecond."""


class Streams:
    """Completed queries, counted by bucket of latency, with the stream and time of those not yet reported."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[float, int] = {}
        self._ends: list[tuple[int, float]] = []
        self.done = 0

    def add(self, stream: int, seconds: float, at_s: float) -> None:
        """Count a query of a stream with this latency, which ended at this monotonic time."""
        bound = _BOUNDS_MS[min(bisect.bisect_left(_BOUNDS_MS, seconds * 1e3), len(_BOUNDS_MS) - 1)]
        with self._lock:
            self._counts[bound] = self._counts.get(bound, 0) + 1
            self._ends.append((stream, at_s))
            self.done += 1

    def report(self, began_s: float, elapsed_s: float, interval_s: float, before: int) -> int:
        """Print a report in sysbench's format, and each query's end; returns the number of queries so far."""
        with self._lock:
            counts, done = dict(self._counts), self.done
            ends, self._ends = self._ends, []
        lines = [f"second {elapsed_s:.3f} interval {interval_s:.6f} events {done - before} errors 0"]
        lines += [f"client {stream} at {at_s - began_s:.6f}" for stream, at_s in ends]
        lines += [f"{bound:.3f} | {count}" for bound, count in sorted(counts.items())]
        print("\n".join([*lines, "end"]), flush=True)
        return done


def _stream(port: int, user: str, number: int, streams: Streams) -> None:
    order = list(queries().values())
    random.Random(number).shuffle(order)
    try:
        with _connected(port, user) as cursor:
            while True:
                for text in order:
                    began_s = time.monotonic()
                    cursor.execute(text)
                    cursor.fetchall()
                    ended_s = time.monotonic()
                    streams.add(number, ended_s - began_s, ended_s)
    except BaseException:
        os._exit(1)  # a partial load is useless


def _run(port: int, user: str, count: int) -> None:
    streams, began_s, done = Streams(), time.monotonic(), 0
    for number in range(count):
        threading.Thread(target=_stream, args=(port, user, number, streams), daemon=True).start()
    last_s = began_s
    while True:
        time.sleep(max(0.0, last_s + 1.0 - time.monotonic()))
        now_s = time.monotonic()
        done = streams.report(began_s, now_s - began_s, now_s - last_s, done)
        last_s = now_s


if __name__ == "__main__":
    _port, _user, _what, _argument = int(sys.argv[1]), *sys.argv[2:5]
    if _what == "load":
        _load(_port, _user, Path(_argument))
    else:
        _run(_port, _user, int(_argument))
