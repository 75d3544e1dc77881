"""``python -m tools.bench.trial``: 200 synthetic trials of each kind, and some through the whole agent in virtual time.

Every result is a file in the output folder, so that an interrupted run can continue.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from perphd.trial.record import End
from tools.bench.trial import report
from tools.bench.trial.agent_world import AGENT_WORLDS, run_agent
from tools.bench.trial.world import WORLDS, Run, run


def main(words: Sequence[str] | None = None) -> None:
    """Run missing trials, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/trial"))
    parser.add_argument("--trials", type=int, default=200, help="made trials of each kind")
    parser.add_argument("--agent-trials", type=int, default=20, help="trials of each kind through the agent")
    parser.add_argument("--only", nargs="*", help="kinds of trials")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(words)
    given.out.mkdir(parents=True, exist_ok=True)
    kinds = [(name, given.trials) for name in WORLDS] + [(name, given.agent_trials) for name in AGENT_WORLDS]
    wanted = [
        (name, seed) for name, count in kinds if not given.only or name in given.only for seed in range(count)
    ]
    missing = [job for job in wanted if not _file(given.out, *job).exists()]
    with ProcessPoolExecutor(given.jobs) as pool:
        for (name, seed), found in zip(missing, pool.map(_one, missing, chunksize=4), strict=True):
            part = _file(given.out, name, seed).with_suffix(".part")
            part.write_text(json.dumps(found))
            part.rename(_file(given.out, name, seed))
    results = [json.loads(_file(given.out, *job).read_text()) for job in wanted]
    text = report.markdown(results)
    (given.out / "report.md").write_text(text)
    print(text)


def _file(folder: Path, name: str, seed: int) -> Path:
    return folder / f"{name}-{seed:04}.json"


def _one(job: tuple[str, int]) -> dict[str, Any]:
    name, seed = job
    made = run(WORLDS[name], seed) if name in WORLDS else run_agent(AGENT_WORLDS[name], seed)
    return summary(name, seed, made)


def summary(name: str, seed: int, made: Run) -> dict[str, Any]:
    """The data of one trial for the tables."""
    ending = made.record.ending
    return {
        "kind": name,
        "seed": seed,
        "harm": ending is not None and ending.how is End.HARM,
        "enforced_blocks": made.enforced_blocks,
        "metrics": [
            {
                "name": effect.metric.name,
                "truth_pct": made.truth_pct.get(effect.metric.name),
                "pct": effect.change.pct,
                "low_pct": effect.change.low_pct,
                "high_pct": effect.change.high_pct,
                "claimed": effect.claimed,
                "carried_over": effect.carried_over,
            }
            for effect in made.analysis.effects
            if effect.change is not None
        ],
    }


if __name__ == "__main__":
    main()
