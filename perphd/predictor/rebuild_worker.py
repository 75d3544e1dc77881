"""The worker process in which trees are rebuilt: ``python -m perphd.predictor.rebuild_worker``, jobs in, trees out.

Both directions are one .npz archive (numpy's, read without pickle) through a pipe: the parent starts the process when
there is something to do and it ends when that is done. It makes itself nice; where that is refused (a service's
system call filter) it works all the same.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

import numpy as np

from perphd.domain.errors import PerphError
from perphd.predictor.ogbrt.fit import FitSettings
from perphd.predictor.ogbrt.forest import Forest
from perphd.predictor.ogbrt.rebuild import RebuildJob, Rebuilt
from perphd.predictor.ogbrt.trees import Trees

NICENESS: Final = 15
_TREES: Final = tuple(f.name for f in fields(Trees) if f.name not in ("features", "monotone", "base"))


class RebuildFailed(PerphError):
    """A rebuild brought nothing that can be used; says why."""


def pack_jobs(jobs: Sequence[RebuildJob]) -> bytes:
    """The jobs as the worker reads them."""
    arrays: dict[str, Any] = {}
    about = []
    for i, job in enumerate(jobs):
        arrays |= {f"x{i}": job.x, f"y{i}": job.y, f"weight{i}": job.weight}
        about.append(
            {"features": job.features, "monotone": job.monotone, "settings": asdict(job.settings),
             "bags": job.bags, "seed": job.seed}
        )  # fmt: skip
    return _pack(about, arrays)


def unpack_jobs(data: bytes) -> list[RebuildJob]:
    """What ``pack_jobs`` made of them."""
    about, arrays = _unpack(data)
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
    """Rebuilt models as the parent reads them."""
    arrays: dict[str, Any] = {}
    about = []
    for i, result in enumerate(results):
        trees = result.forest.trees
        about.append({"features": trees.features, "monotone": trees.monotone, "base": trees.base})
        arrays |= {f"{name}{i}": getattr(trees, name) for name in _TREES}
        arrays |= {f"values{i}": result.values, f"bases{i}": result.base}
    return _pack(about, arrays)


def unpack_results(data: bytes) -> list[Rebuilt]:
    """The rebuilt models, compiled.

    Raises:
        RebuildFailed: the bytes are no such thing.
    """
    try:
        about, arrays = _unpack(data)
        found = []
        for i, item in enumerate(about):
            trees = Trees(
                tuple(item["features"]), tuple(item["monotone"]), item["base"],
                **{name: arrays[f"{name}{i}"] for name in _TREES},
            )  # fmt: skip
            forest = Forest.compile(trees)
            values, bases = arrays[f"values{i}"], arrays[f"bases{i}"]
            if values.shape != (len(bases), *forest.shape) or not np.isfinite(values).all():
                raise RebuildFailed(f"{values.shape} leaf values for trees of {forest.shape}")
            found.append(Rebuilt(forest, values, bases))
        return found
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as exc:
        raise RebuildFailed(f"the worker's answer cannot be read: {exc}") from exc


def _pack(about: object, arrays: Mapping[str, Any]) -> bytes:
    out = io.BytesIO()
    text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    np.savez(out, allow_pickle=False, about=text, **arrays)
    return out.getvalue()


def _unpack(data: bytes) -> tuple[Any, Mapping[str, Any]]:
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return json.loads(arrays.pop("about").tobytes()), arrays


def main() -> int:
    """Read jobs from standard input until it ends, write the results to standard output."""
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    jobs = unpack_jobs(sys.stdin.buffer.read())
    sys.stdout.buffer.write(pack_results(job.run() for job in jobs))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
