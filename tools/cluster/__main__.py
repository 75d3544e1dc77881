"""``make cluster``: perphd's real agent on 50 simulated hosts of a real cluster, against the stock scheduler."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

import click

from perphd.cluster.scheduling.placement import POLICIES
from tools.cluster.control_plane import program
from tools.cluster.engines import NoProgram, build
from tools.cluster.fleet import SCHEMES, Fleet, table
from tools.cluster.trace import trace_of


@click.command()
@click.option("--hosts", type=click.IntRange(2, 500), default=50, show_default=True)
@click.option(
    "--seconds", type=click.IntRange(60, 3600), default=110, show_default=True, help="Virtual time."
)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--scheme", "only", type=click.Choice([each.name for each in SCHEMES]), multiple=True)
@click.option("--policy", type=click.Choice(sorted(POLICIES)), default="optum", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Write the table here as well.")
def main(hosts: int, seconds: int, seed: int, only: tuple[str, ...], policy: str, out: Path | None) -> None:
    """Run the same trace under each scheme and print one table."""
    try:
        program()
    except NoProgram as exc:
        if shutil.which("go") is None:
            raise click.ClickException(str(exc)) from exc
        print("building the control plane, once: 20 minutes of CPU time", file=sys.stderr)
        try:
            build("kubelab")
        except NoProgram as failed:
            raise click.ClickException(str(failed)) from failed
    began = time.monotonic()
    trace = trace_of(seed, hosts, seconds)
    results = []
    for scheme in SCHEMES:
        if only and scheme.name not in only:
            continue
        print(
            f"{scheme.name}: {hosts} hosts, {len(trace.lras)} LRAs, {len(trace.copper)} copper pods",
            file=sys.stderr,
        )
        with tempfile.TemporaryDirectory(prefix="perphd-cluster-") as folder:
            fleet = Fleet(scheme, hosts, 1000 * seed, Path(folder), policy)
            results.append(asyncio.run(fleet.run(trace, seconds)))
        print("  " + "  ".join(table(results)[-1]), file=sys.stderr)
    rows = table(results)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]))
    minutes = (time.monotonic() - began) / 60.0
    lines.append(f"{hosts} hosts, seed {seed}, {seconds} virtual seconds each, {minutes:.1f} minutes in all")
    text = "\n".join(lines)
    print(text)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")


if __name__ == "__main__":
    main()
