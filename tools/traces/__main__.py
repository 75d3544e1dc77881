"""Import published traces of clusters, or those of your own hosts, and analyse them.

    python -m tools.traces import --format alibaba-v2018 DOWNLOADS PLACE
    python -m tools.traces analyze PLACE --json

Sources are files or folders as published (CSV or JSON lines; gzip, xz, tar) or datasets of perphctl trace export.
PLACE is a new folder, or s3://BUCKET/NAME; it appears completely or, after an error, not at all.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from perphd.control.table import Part, plain, table, text
from perphd.dataset.attempt import read_manifest
from perphd.dataset.stores import Folder, open_store
from perphd.domain.errors import PerphError
from perphd.domain.reading import Unavailable, available
from perphd.domain.trace import TraceRecord
from perphd.domain.units import format_bytes
from perphd.monitor.trace_export import export_trace
from tools.traces.analysis import ANALYSES
from tools.traces.fleet import MOST_ROWS, SLOT_S, Records, collect
from tools.traces.imported import FORMATS, facts_of, import_trace, read_records
from tools.traces.plots import plot
from tools.traces.rows import DISORDER_S, MOST_BAD, Tally, read_trace
from tools.traces.sources import TraceError

_SQLITE = b"SQLite format 3\0"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.traces",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    reads = commands.add_parser("import", help="read a trace and commit its records")
    reads.add_argument("--format", required=True, choices=sorted(FORMATS))
    reads.add_argument(
        "--as", dest="fmt", choices=("csv", "parquet"), default="csv", help="file format of the records"
    )
    reads.add_argument(
        "--most-bad", type=int, default=MOST_BAD, metavar="ROWS",
        help=f"end with an error at more bad rows than this (default: {MOST_BAD})",
    )  # fmt: skip
    reads.add_argument(
        "--disorder", type=float, default=DISORDER_S, metavar="SECONDS",
        help=f"rows of ordered tables that are older than this are bad (default: {DISORDER_S:g})",
    )  # fmt: skip
    reads.add_argument("source", nargs="+", type=Path)
    reads.add_argument("place")
    studies = commands.add_parser(
        "analyze", help="compute figures of an imported or published trace, or of a store"
    )
    studies.add_argument("--format", choices=sorted(FORMATS), help="read sources of this format")
    studies.add_argument(
        "--only", action="append", choices=sorted(ANALYSES), help="a figure to compute; repeatable"
    )
    studies.add_argument(
        "--share", type=_positive, metavar="SHARE",
        help=f"of the machines to look at (default: such that about {MOST_ROWS:,} rows are held)",
    )  # fmt: skip
    studies.add_argument(
        "--slot", type=_positive, default=SLOT_S, metavar="SECONDS", help=f"(default: {SLOT_S:g})"
    )
    studies.add_argument("--plots", type=Path, metavar="FOLDER", help="also write plots to this folder")
    studies.add_argument("--json", action="store_true")
    studies.add_argument("source", nargs="+")
    given = parser.parse_args(arguments)
    try:
        if given.command == "import":
            return _import(given)
        with tempfile.TemporaryDirectory() as folder:
            return _analyze(given, Path(folder))
    except PerphError as exc:
        print(f"traces: {exc}", file=sys.stderr)
        return 1


def _import(given: argparse.Namespace) -> int:
    tally = Tally(given.most_bad)
    place = open_store(given.place)
    manifest = import_trace(FORMATS[given.format](), given.source, place, given.fmt, tally, given.disorder)
    for name, count in tally.rows.items():
        print(f"{name}: {count} rows")
    if tally.bad:
        print(f"bad rows, left out: {tally.faults()}")
    if tally.unread:
        print(f"not read: {', '.join(tally.unread)}")
    print(f"{place}: {len(manifest.parts)} parts, {format_bytes(manifest.bytes)}, committed")
    return 0


def _positive(word: str) -> float:
    value = float(word)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{word} is not greater than 0")
    return value


def _is_store(path: Path) -> bool:
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def _analyze(given: argparse.Namespace, spare: Path) -> int:
    if given.format is None and _is_store(Path(given.source[0])):
        export_trace(given.source[0], Folder(spare / "trace"), platform.node(), {})
        given.format, given.source = "alibaba-v2023", [str(spare / "trace")]
    if given.format is None and len(given.source) > 1:
        raise TraceError("one imported trace is analysed at a time; import several sources together first")
    records: Records
    if given.format is None:
        place = open_store(given.source[0])
        rows = sum(part.rows or 0 for part in read_manifest(place).parts)
        share = given.share or min(1.0, MOST_ROWS / max(rows, 1))
        facts = facts_of(place)
        records = partial(read_records, place)
    else:
        form, share = FORMATS[given.format], given.share or 1.0
        facts = {"format": given.format}

        def records(*kinds: type[TraceRecord]) -> Iterator[TraceRecord]:
            found = read_trace(form(), [Path(each) for each in given.source], Tally())
            return (record for record in found if isinstance(record, kinds))

    fleet = collect(records, share, given.slot)
    answers = {
        name: analyse(fleet) for name, analyse in ANALYSES.items() if not given.only or name in given.only
    }
    if given.plots is not None:
        plot(fleet, given.plots)
    trace = {**facts, "machines": len(fleet.machines), "workloads": len(fleet.lives), "share": fleet.share}
    if given.json:
        figures_of = {
            name: {
                key: value.reason if isinstance(value, Unavailable) else value
                for key, value in figures.items()
            }
            for name, figures in answers.items()
        }
        print(json.dumps({"trace": trace, "analyses": figures_of}, indent=2))
        return 0
    parts: list[Part] = [table("", ["the trace", ""], [[key, str(value)] for key, value in trace.items()])]
    for name, figures in answers.items():
        lines = [[key, f"{value:.4g}"] for key, value in figures.items() if available(value)]
        shown = (
            table("", [name, "figure"], lines, right=[1])
            if lines
            else text(f"{name}: the trace does not say")
        )
        parts.append(shown)
    print(plain(parts), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
