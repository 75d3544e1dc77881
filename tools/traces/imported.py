"""Imported traces: tables of records as a committed dataset, complete or absent."""

from __future__ import annotations

import contextlib
import csv
import io
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, cast

from perphd.dataset.attempt import PART_BYTES, Attempt, attempt, read_manifest, read_part
from perphd.dataset.manifest import Manifest, NotCommitted
from perphd.dataset.stores import ObjectStore, pyarrow
from perphd.domain.trace import RECORD_TABLES, TraceRecord, columns, from_row, to_row
from perphd.monitor.export import TableWriter, table_writer
from tools.traces import alibaba, azure, google
from tools.traces.rows import DISORDER_S, Format, Tally, read_trace
from tools.traces.sources import TraceError

FORMATS: Final = {
    "alibaba-v2017": alibaba.v2017, "alibaba-v2018": alibaba.v2018, "alibaba-v2023": alibaba.v2023,
    "google-2011": google.v2011, "google-2019": google.v2019, "azure-v1": azure.v1, "azure-v2": azure.v2,
}  # fmt: skip
IMPORTED: Final = "perphd trace 1"
_BATCH_ROWS: Final = 2000
_NAMES: Final = {kind: name for name, kind in RECORD_TABLES.items()}


def import_trace(
    form: Format,
    paths: Sequence[Path],
    place: ObjectStore,
    fmt: str,
    tally: Tally,
    disorder_s: float = DISORDER_S,
) -> Manifest:
    """Read a published trace and commit its records; after an error nothing remains.

    Raises:
        TraceError: as of ``read_trace``.
        DatasetError: the place holds a dataset, or refuses.
    """
    with contextlib.suppress(NotCommitted):
        raise TraceError(
            f"{place}: holds a dataset already (attempt {read_manifest(place).attempt}); choose another name"
        )
    with attempt(place) as made:
        write_records(read_trace(form, paths, tally, disorder_s), made, fmt)
        units = {"cpu_unit": form.cpu_unit, "memory_unit": form.memory_unit}
        units |= {key: value for key, value in tally.facts.items() if key in units}
        return made.commit(
            {"trace": IMPORTED, "format": form.name, **units, "bad_rows": str(sum(tally.bad.values()))}
        )


def write_records(records: Iterable[TraceRecord], made: Attempt, fmt: str) -> None:
    """Add these records to an attempt, table by table, in parts of bounded size."""
    with contextlib.ExitStack() as stack:
        spools = {kind: stack.enter_context(_Spool(kind, made, fmt)) for kind in _NAMES}
        for record in records:
            spools[type(record)].add(record)
        for spool in spools.values():
            spool.flush()


class _Spool:
    """Buffers records of one table in an unnamed file until they fill a part."""

    def __init__(self, kind: type[TraceRecord], made: Attempt, fmt: str) -> None:
        self._kind, self._made, self._fmt = kind, made, fmt
        self._batch: list[Any] = []
        self._rows = 0
        self._file: IO[bytes] | None = None
        self._writer: TableWriter | None = None

    def __enter__(self) -> _Spool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, record: TraceRecord) -> None:
        self._batch.append(to_row(record))
        if len(self._batch) == _BATCH_ROWS:
            self._write()

    def _write(self) -> None:
        if self._file is None or self._writer is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by flush
            self._writer = table_writer(self._fmt, cast("Any", self._file), columns(self._kind))
        self._writer.write(self._batch)
        self._rows += len(self._batch)
        self._batch = []
        if self._file.tell() >= PART_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered records as a part, if there are any."""
        if self._batch:
            self._write()
        file, writer = self._file, self._writer
        if file is None or writer is None:
            return
        writer.close()
        file.seek(0)
        rows, self._rows, self._file, self._writer = self._rows, 0, None, None
        with file:

            def copy(part: Any) -> int:
                while piece := file.read(1 << 20):
                    part.write(piece)
                return rows

            self._made.add(_NAMES[self._kind], f".{self._fmt}", copy)


def read_records(place: ObjectStore, *kinds: type[TraceRecord]) -> Iterator[TraceRecord]:
    """The records of an imported trace. Each part's digest is verified before its first record is returned.

    Raises:
        TraceError: it is not an imported trace, or a row is invalid.
        DatasetError: its content differs from what was committed.
    """
    manifest = read_manifest(place)
    if manifest.facts.get("trace") != IMPORTED:
        raise TraceError(f"{place}: is not an imported trace; import it first")
    for part in manifest.parts:
        kind = RECORD_TABLES.get(part.source)
        if kind is None or (kinds and kind not in kinds):
            continue
        with tempfile.TemporaryFile() as file:
            for piece in read_part(place, part):
                file.write(piece)
            file.seek(0)
            rows = _parquet_rows(file) if part.name.endswith(".parquet") else _csv_rows(file)
            try:
                for row in rows:
                    yield from_row(kind, row)
            except (TypeError, ValueError) as exc:
                raise TraceError(f"{place}: {part.name}: a row is not a record of a trace: {exc}") from exc


def _csv_rows(file: IO[bytes]) -> Iterator[tuple[Any, ...]]:
    reader = csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
    next(reader, None)
    yield from map(tuple, reader)


def _parquet_rows(file: IO[bytes]) -> Iterator[tuple[Any, ...]]:
    for batch in pyarrow("parquet", "Parquet").ParquetFile(file).iter_batches(_BATCH_ROWS):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def facts_of(place: ObjectStore) -> Mapping[str, str]:
    """The import's facts about the trace: format, units, bad rows."""
    return read_manifest(place).facts
