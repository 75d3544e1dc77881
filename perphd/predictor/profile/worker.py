"""Trains in a separate niced process, because LightGBM takes 45 MiB and occupies a CPU for a while.

``python -m perphd.predictor.profile.worker`` reads a job as JSON from standard input and writes the result as JSON to
standard output; ``train_apart`` starts it and waits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from perphd.domain.errors import PerphError
from perphd.predictor.ogbrt.trees import Floats
from perphd.predictor.profile.file import Metrics, trees_from_json, trees_to_json
from perphd.predictor.profile.training import Engine, Trained, train

TIMEOUT_S: Final = 600.0
_NICE: Final = 15


def train_apart(
    x: Floats,
    y: Floats,
    features: Sequence[str],
    monotone: Sequence[int],
    *,
    seed: int = 0,
    engine: Engine | None = None,
    weight: Floats | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Trained:
    """``training.train`` in a worker process.

    Raises:
        PerphError: the worker failed or timed out; the text contains its message.
    """
    job = {
        "x": x.tolist(),
        "y": y.tolist(),
        "weight": None if weight is None else weight.tolist(),
        "features": list(features),
        "monotone": list(monotone),
        "seed": seed,
        "engine": engine,
    }
    command = [sys.executable, "-m", "perphd.predictor.profile.worker"]
    # Let the worker find this perphd, whatever its working directory.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path}
    try:
        done = subprocess.run(
            command, input=json.dumps(job), capture_output=True, text=True, timeout=timeout_s, env=environment,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as exc:
        raise PerphError(f"training took more than {timeout_s:g} s and was stopped") from exc
    except OSError as exc:
        raise PerphError(f"the training process could not be started: {exc.strerror}") from exc
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise PerphError(f"training failed: {said[-1] if said else f'status {done.returncode}'}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return Trained(
        trees_from_json(answer["trees"], "trees"),
        answer["engine"],
        answer["rounds"],
        Metrics(**answer["metrics"]),
    )


def main() -> int:
    """Run one job from standard input."""
    os.nice(_NICE)
    job: dict[str, Any] = json.load(sys.stdin)
    weight = None if job["weight"] is None else np.array(job["weight"], dtype=np.float64)
    x = np.array(job["x"], dtype=np.float64)
    trained = train(
        x, np.array(job["y"]), job["features"], job["monotone"], seed=job["seed"], engine=job["engine"], weight=weight
    )  # fmt: skip
    answer = {
        "trees": trees_to_json(trained.trees),
        "engine": trained.engine,
        "rounds": trained.rounds,
        "metrics": asdict(trained.metrics),
    }
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
