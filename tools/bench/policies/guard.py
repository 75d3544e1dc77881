"""Detects altered decisions: runs the quick scenarios without optima, and compares with the last run.

    python -m tools.bench.policies.guard [--policies perph,parties] [--seeds 1] [--kept out/guard.jsonl]

Prints seconds missed, batch's work and changes per minute of every scenario beside those of the stored run; a run that
differs in the last digit is marked. The exit status is 1 if any run differs, and 0 if none does or no run was stored.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from tools.bench.policies import measure, scenarios  # noqa: E402
from tools.bench.policies.catalogue import entrant  # noqa: E402
from tools.bench.policies.scene import Scenario  # noqa: E402


def figures(scenario: Scenario, policy: str, seed: int) -> tuple[float, float, float]:
    """Seconds missed, batch's work relative to its work alone, knobs changed per minute."""
    who, drawn = entrant(policy), scenario.drawn(seed)
    found = measure.measure(who.run(drawn, who.make(drawn, seed), seed), {})
    return found.violation_s, found.batch, found.churn


def table(found: dict[str, tuple[float, float, float]], kept: dict[str, tuple[float, float, float]]) -> str:
    """A line for each run, with the earlier figures if they differ."""
    lines = [f"{'run':44} {'missed s':>9} {'batch':>7} {'changes/min':>12}"]
    for key, (missed_s, batch, churn) in found.items():
        line = f"{key:44} {missed_s:9.2f} {batch:7.4f} {churn:12.2f}"
        if key in kept and kept[key] != (missed_s, batch, churn):
            was = kept[key]
            line += f"   DIFFERS: was {was[0]:.2f} {was[1]:.4f} {was[2]:.2f}"
        lines.append(line)
    return "\n".join(lines)


def read(path: Path) -> dict[str, tuple[float, float, float]]:
    """The stored figures of an earlier run, by scenario, policy and seed; empty without a file."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["key"]: (row["missed_s"], row["batch"], row["churn"]) for row in rows}


def main(words: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="tools.bench.policies.guard", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--policies", default="perph,parties", help="names of policies, separated by commas")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each policy in each scenario")
    parser.add_argument(
        "--kept", type=Path, default=Path("out/guard.jsonl"), help="file of the last run's figures"
    )
    options = parser.parse_args(words)
    kept = read(options.kept)
    found = {
        f"{scenario.name}|{policy}|{seed}": figures(scenario, policy, seed)
        for scenario in scenarios.quick()
        for policy in options.policies.split(",")
        for seed in range(options.seeds)
    }
    print(table(found, kept))
    options.kept.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"key": k, "missed_s": m, "batch": b, "churn": c} for k, (m, b, c) in (kept | found).items()]
    options.kept.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return int(any(key in kept and kept[key] != value for key, value in found.items()))


if __name__ == "__main__":
    raise SystemExit(main())
