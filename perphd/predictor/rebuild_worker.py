"""Worker process that rebuilds trees: ``python -m perphd.predictor.rebuild_worker``, jobs in, trees out.

Both directions are plain arrays (``arrays``) on standard input and output. The parent starts the process when there is
work, and it exits afterwards. The worker returns compiled trees, so the parent need not compile them. The
worker lowers its priority; if that is refused (by a service's system call filter), it works at normal
priority.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

import numpy as np

from perphd.domain.errors import PerphError
from perphd.predictor.arrays import pack, unpack
from perphd.predictor.ogbrt.fit import FitSettings
from perphd.predictor.ogbrt.forest import Forest
from perphd.predictor.ogbrt.rebuild import RebuildJob, Rebuilt
from perphd.predictor.ogbrt.trees import Trees

NICENESS: Final = 15
_TREES: Final = tuple(f.name for f in fields(Trees) if f.name not in ("features", "monotone", "base"))
_FOREST: Final = ("table", "place", "valid", "above", "below")


class RebuildFailed(PerphError):
    """A rebuild has produced no usable result. The message says why."""


def pack_jobs(jobs: Sequence[RebuildJob]) -> bytes:
    """Encode jobs for the worker."""
    arrays: dict[str, Any] = {}
    about = []
    for i, job in enumerate(jobs):
        arrays |= {f"x{i}": job.x, f"y{i}": job.y, f"weight{i}": job.weight}
        about.append(
            {"features": job.features, "monotone": job.monotone, "settings": asdict(job.settings),
             "bags": job.bags, "seed": job.seed}
        )  # fmt: skip
    return pack(about, arrays)


def unpack_jobs(data: bytes) -> list[RebuildJob]:
    """Decode jobs encoded by ``pack_jobs``."""
    about, arrays = unpack(data)
    return [
        RebuildJob(
            tuple(item["features"]),
            tuple(item["monotone"]),
            arrays[f"x{i}"],
            arrays[f"y{i}"],
            arrays[f"weight{i}"],
            FitSettings(**item["settings"]),
            item["bags"],
            item["seed"],
        )
        for i, item in enumerate(about)
    ]


def pack_results(results: Iterable[Rebuilt]) -> bytes:
    """Encode rebuilt models for the parent."""
    arrays: dict[str, Any] = {}
    about = []
    for i, result in enumerate(results):
        forest = result.forest
        trees = forest.trees
        about.append(
            {"features": trees.features, "monotone": trees.monotone, "base": trees.base,
             "row_start": forest.row_start}
        )  # fmt: skip
        arrays |= {f"{name}{i}": getattr(trees, name) for name in _TREES}
        arrays |= {f"{name}{i}": getattr(forest, name) for name in _FOREST}
        arrays |= {f"edges{i}": np.concatenate([np.zeros(0), *forest.edges])}
        arrays |= {f"values{i}": result.values, f"bases{i}": result.base}
    return pack(about, arrays)


def unpack_results(data: bytes) -> list[Rebuilt]:
    """Decode rebuilt models. Their arrays are views of ``data``.

    Raises:
        RebuildFailed: the bytes are not a valid result.
    """
    try:
        about, arrays = unpack(data)
        found = []
        for i, item in enumerate(about):
            trees = Trees(
                tuple(item["features"]), tuple(item["monotone"]), item["base"],
                **{name: arrays[f"{name}{i}"] for name in _TREES},
            )  # fmt: skip
            forest = _forest(trees, tuple(item["row_start"]), arrays, i)
            values, bases = arrays[f"values{i}"], arrays[f"bases{i}"]
            if values.shape != (len(bases), *forest.shape) or not np.isfinite(values).all():
                raise RebuildFailed(f"{values.shape} leaf values for trees of {forest.shape}")
            found.append(Rebuilt(forest, values, bases))
        return found
    except (OSError, ValueError, KeyError, TypeError, EOFError) as exc:
        raise RebuildFailed(f"the worker's answer cannot be read: {exc}") from exc


def _forest(trees: Trees, row_start: tuple[int, ...], arrays: Mapping[str, Any], i: int) -> Forest:
    """The worker's compiled form, checked only for consistency."""
    parts = {name: arrays[f"{name}{i}"] for name in _FOREST}
    rows, edges, at, start = len(parts["table"]), [], 0, (*row_start, len(parts["table"]))
    for first, end in itertools.pairwise(start):  # every feature has a row per bin and one for missing values
        edges.append(arrays[f"edges{i}"][at : at + end - first - 2])
        at += end - first - 2
    shapes = {parts[name].shape for name in ("valid", "above", "below")}
    fits = len(row_start) == len(trees.features) and at == len(arrays[f"edges{i}"]) and len(shapes) == 1
    if not fits or parts["table"].shape != (rows, trees.count) or parts["place"].shape != trees.value.shape:
        raise RebuildFailed(
            "the worker's answer cannot be read: its trees and their compiled form do not match"
        )
    return Forest(trees, tuple(edges), row_start, **parts)


def main() -> int:
    """Read jobs from standard input until it ends, and write the results to standard output."""
    os.chdir("/")  # so that no file system stays in use
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    jobs = unpack_jobs(sys.stdin.buffer.read())
    sys.stdout.buffer.write(pack_results(job.run() for job in jobs))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
