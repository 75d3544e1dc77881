"""perphctl query and export: the time-series store, through the daemon or directly from its file."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import click

from perphd.commands.base import Out, command
from perphd.control.client import MOST_ROUNDS, NotPermitted, Refused, Unreachable
from perphd.domain.errors import ConfigError, PerphError
from perphd.domain.units import format_bytes


def add_store_commands(cli: click.Group) -> None:
    """Add the commands to perphctl."""

    @command(cli)
    @click.argument("sql")
    @click.option(
        "--limit",
        type=click.IntRange(1, 100_000),
        default=1000,
        show_default=True,
        help="Maximum number of rows.",
    )
    @click.option("--store", metavar="FILE", help="Read this file instead of asking the daemon.")
    def query(out: Out, sql: str, limit: int, store: str | None) -> None:
        """Run one SQL SELECT on the store, read-only.

        Tables: samples, decisions, outcomes, writes, events, host; their columns: PRAGMA table_info(samples).
        Without a daemon the store's file is read.
        """
        data: Any = None
        if store is None:
            try:
                data = out.client.send("POST", "query", {"sql": sql, "limit": limit})
            except Unreachable:
                store = _configured_store()
        if store is not None:
            data = _query_file(store, sql, limit)
        _show(out, data)

    @command(cli)
    @click.argument("table", required=False)
    @click.option(
        "--format", "form", type=click.Choice(["csv", "jsonl", "parquet"]), default="csv", show_default=True
    )
    @click.option("-o", "--output", metavar="FILE", help="Output file; replaced if it exists.")
    @click.option(
        "--to", metavar="PLACE", help="Commit a dataset to this new folder, or s3://BUCKET/NAME, instead."
    )
    @click.option(
        "--store", metavar="FILE", help="The store's file [default: the daemon's, else as configured]."
    )
    @click.option("--replay", metavar="FILE", help="Record the daemon's next decisions to this file instead.")
    @click.option(
        "--rounds",
        type=click.IntRange(1, MOST_ROUNDS),
        default=60,
        show_default=True,
        help="Number of decision rounds to record with --replay.",
    )
    def export(
        out: Out, table: str | None, form: str, output: str | None, to: str | None, store: str | None,
        replay: str | None, rounds: int,
    ) -> None:  # fmt: skip
        """Write a table to a file or a dataset, or record decisions.

        TABLE is samples, decisions, outcomes, writes, events or host; with --to also models (the files of learned
        models) or all (every table and the models). The command opens the store's file itself, so this user must be
        able to read it. Parquet and object stores need pyarrow; without it, the error explains how to install it.

        With --to, parts are written first and a manifest last, so readers see the whole dataset or nothing.

        With --replay, each round's input, queries to models and decision are recorded as they happen; tools/replay can
        repeat the decisions bit for bit. Ctrl-C ends it early.
        """
        if replay is not None:
            if table is not None or output is not None or to is not None:
                raise click.UsageError(
                    "--replay records decisions: it cannot be combined with a table, --output or --to"
                )
            _record(out, replay, rounds)
            return
        if table is None or (output is None) == (to is None):
            raise click.UsageError("give either --replay FILE, or a table with --output FILE or --to PLACE")
        from perphd.monitor.export import export as write

        if store is None:
            try:
                store = str(out.client.get("config")["store_path"])
            except (Unreachable, Refused):
                store = _configured_store()
        if to is not None:
            _commit(out, table, form, to, store)
            return
        assert output is not None
        try:
            rows = write(store, table, output, form)
        except PermissionError as exc:
            raise _no_right(store) from exc
        out.say({"table": table, "rows": rows, "file": output}, f"{output}: {rows} rows of {table}")


def _commit(out: Out, table: str, form: str, to: str, store: str) -> None:
    from perphd.commands.shipping import commit, contents
    from perphd.dataset.stores import open_store

    place = open_store(to)
    try:
        manifest = commit(place, store, contents(table), form)
    except PermissionError as exc:
        raise _no_right(store) from exc
    shown = {
        "place": str(place),
        "attempt": manifest.attempt,
        "parts": len(manifest.parts),
        "bytes": manifest.bytes,
    }
    rows = sum(part.rows or 0 for part in manifest.parts)
    out.say(
        shown | {"rows": rows},
        f"{place}: {rows} rows in {len(manifest.parts)} parts, {format_bytes(manifest.bytes)}, committed",
    )


def _record(out: Out, path: str, rounds: int) -> None:
    part, count = f"{path}.part", -1
    try:
        with open(part, "w", encoding="utf-8") as file, suppress(KeyboardInterrupt):
            for text in out.client.recording(rounds):
                file.write(text + "\n")
                count += 1
        if count < 1:
            raise PerphError("the daemon ended the recording before the first round")
        os.replace(part, path)
    except OSError as exc:
        raise PerphError(f"{path}: cannot be written: {exc.strerror or exc}") from exc
    finally:
        with suppress(OSError):
            os.unlink(part)
    out.say({"rounds": count, "file": path}, f"{path}: {count} rounds of decisions")


def _query_file(store: str, sql: str, limit: int) -> dict[str, Any]:
    from perphd.control.sql import answer
    from perphd.monitor.query import run_query

    try:
        return answer(run_query(store, sql, limit))
    except PermissionError as exc:
        raise _no_right(store) from exc


def _configured_store() -> str:
    from perphd.config.file import load

    try:
        return load(runtime=False).store_path
    except ConfigError as exc:
        raise PerphError(
            f"no daemon answers, and the configured store cannot be determined: {exc}; name it with --store"
        ) from exc


def _no_right(store: str) -> NotPermitted:
    return NotPermitted(f"{store}: this user may not read the store; run as root, or use perphctl query")


def _show(out: Out, data: dict[str, Any]) -> None:
    from perphd.control.table import table

    rows = data["rows"]
    numbers = [
        i
        for i in range(len(data["columns"]))
        if rows and all(isinstance(row[i], int | float | None) for row in rows)
    ]
    shown = [["" if cell is None else str(cell) for cell in row] for row in rows]
    out.show(data, lambda: [table("", data["columns"], shown, right=numbers)])
    if data["truncated"]:
        out.warn([f"the result has more than these {len(rows)} rows: raise --limit, or narrow the query"])
