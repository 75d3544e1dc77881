"""Runs of a bench in parallel, kept so that an interrupted bench can be continued, and their report.

    FOLDER/runs/NAME-ARGUMENTS.json   the result of one run; a run whose file exists is not repeated
    FOLDER/NAME.parquet               a row for each case and seed
    FOLDER/NAME.png                   each figure by case: a dot for each seed, a bar for the mean
    FOLDER/report.md                  the tables and plots

Without a folder nothing is written.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, get_type_hints

import msgspec

from perphd.dataset.stores import pyarrow

_PLOTS_A_ROW: Final = 3


@dataclass(frozen=True, slots=True)
class CaseRun:
    """The figures of one run. ``case``: its row of the table."""

    case: str
    seed: int
    figures: Any


class BenchRuns:
    """Runs of one bench. ``folder``: keeps results and the report; None: nothing is kept."""

    def __init__(self, pool: Executor, folder: Path | None) -> None:
        self._pool, self._folder = pool, folder
        self._lines: list[str] = []

    def of(
        self,
        name: str,
        function: Callable[..., Any],
        asked: Sequence[tuple[Any, ...]],
        pool: Executor | None = None,
    ) -> list[Any]:
        """The result of ``function`` for each tuple of arguments, in their order.

        ``function`` is defined at module level and annotated with the type of its result, a data class. ``pool``: used
        instead of the bench's own.
        """
        kind = get_type_hints(function)["return"]
        paths = [self._path(name, each) for each in asked]
        found = [_read(path, kind) for path in paths]
        missing = [place for place, each in enumerate(found) if each is None]
        with _progress(name, len(asked), len(asked) - len(missing)) as done:
            places = {(pool or self._pool).submit(function, *asked[place]): place for place in missing}
            for future in as_completed(places):
                place = places[future]
                found[place] = future.result()
                _write(paths[place], found[place])
                done()
        return found

    def say(self, line: str) -> None:
        """Print a line of the report."""
        print(line, flush=True)
        self._lines.append(line)

    def keep(self, name: str, runs: Sequence[CaseRun]) -> None:
        """Write the figures of these runs as a table and a plot, and show the plot in the report."""
        if self._folder is None:
            return
        rows = [{"case": run.case, "seed": run.seed, **_numbers(run.figures)} for run in runs]
        columns = {key: [row[key] for row in rows] for key in rows[0]}
        table = pyarrow("", "Parquet").table(columns)
        pyarrow("parquet", "Parquet").write_table(table, self._folder / f"{name}.parquet")
        plot(self._folder / f"{name}.png", columns)
        self._lines += ["", f"![{name}]({name}.png)", ""]
        (self._folder / "report.md").write_text("\n".join(self._lines) + "\n")

    def _path(self, name: str, arguments: tuple[Any, ...]) -> Path | None:
        if self._folder is None:
            return None
        words = [str(each) for each in arguments]
        clean = "".join(letter if letter.isalnum() or letter in "-.=_" else "_" for letter in "-".join(words))
        return self._folder / "runs" / f"{name}-{clean}.json"


def plot(path: Path, columns: dict[str, list[Any]]) -> None:
    """Draw each figure by case: a dot for each seed, a bar for the mean."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name in columns if name not in ("case", "seed")]
    cases = list(dict.fromkeys(columns["case"]))
    rows = -(-len(names) // _PLOTS_A_ROW)
    figure, axes = pyplot.subplots(
        rows, _PLOTS_A_ROW, figsize=(13, rows * (0.8 + 0.25 * len(cases))), layout="constrained", sharey=True,
        squeeze=False,
    )  # fmt: skip
    for axis in axes.flat[len(names) :]:
        axis.set_axis_off()
    for axis, name in zip(axes.flat, names, strict=False):
        values = [
            [v for v, own in zip(columns[name], columns["case"], strict=True) if own == case]
            for case in cases
        ]
        axis.barh(range(len(cases)), [sum(each) / len(each) for each in values], color="#1b6ca8", alpha=0.35)
        for place, each in enumerate(values):
            axis.plot(each, [place] * len(each), ".", color="#1b6ca8")
        axis.set(title=name.replace("_", " "), yticks=range(len(cases)), yticklabels=cases)
        axis.set_ylim(len(cases) - 0.5, -0.5)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _numbers(figures: Any) -> dict[str, float]:
    """The numeric fields of a data class."""
    return {
        name: float(value)
        for name, value in asdict(figures).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _read(path: Path | None, kind: Any) -> Any:
    if path is None or not path.exists():
        return None
    return msgspec.convert(json.loads(path.read_text()), kind)


def _write(path: Path | None, result: Any) -> None:
    """Write atomically, since an interrupted bench reads the file later."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(asdict(result)))
    partial.replace(path)


@contextmanager
def _progress(name: str, count: int, done: int) -> Iterator[Callable[[], None]]:
    """A progress bar on a terminal, else a line for each run; on stderr. Call the yielded function when a run has
    ended.
    """
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(name, total=count, completed=done)
            yield lambda: bar.advance(task)
        return
    ended = done

    def told() -> None:
        nonlocal ended
        ended += 1
        print(f"{name}: {ended} of {count} runs", file=sys.stderr, flush=True)

    yield told
