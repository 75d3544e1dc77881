"""Explore the simulated archetypes and merge those of each class: python -m tools.priors [--points N] [--out FOLDER].

Each prior is the pooled result of ``perphd profile --simulated`` for the archetypes of the class. The archetypes are
synthetic: a prior gives the shape (the value of more CPU or cache), never figures of an application.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from perphd.agent.profiling.explorer import ExplorationStep, Pacing
from perphd.agent.profiling.run import ProfileOptions, ProfilingPlan, profile_simulated
from perphd.predictor.profile import Profile, to_text
from perphd.predictor.profile.merge import merge

MEMBERS = {
    "database": ("mysql-oltp", "mysql-short", "mysql-olap"),
    "streaming": ("kafka-stream",),
    "web": ("specjbb", "xapian", "img-dnn"),
    "cache": ("memcached",),  # pooled with masstree it is useless: held-out R2 0.79
}


class _Quiet:
    def begin(self, plan: ProfilingPlan) -> None:
        del plan

    def step(self, step: ExplorationStep) -> None:
        del step

    def say(self, text: str) -> None:
        print(f"  {text}", file=sys.stderr)


def main() -> int:
    """Create all priors, or the named ones."""
    parser = argparse.ArgumentParser(prog="tools.priors")
    parser.add_argument("--points", type=int, default=200, help="allocations of each archetype")
    parser.add_argument("--out", type=Path, default=Path("profiles/priors"))
    parser.add_argument("classes", nargs="*", default=list(MEMBERS))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.classes:
        found = [_explore(archetype, options.points) for archetype in MEMBERS[name]]
        if len(found) > 1:
            merged = merge(found, name)
            made = merged.profile
            for contest in merged.contests:
                print(f"{name}: {contest}", file=sys.stderr)
        else:
            made = found[0]
        note = f"class prior, from simulated {', '.join(MEMBERS[name])}"
        made = replace(made, origin=replace(made.origin, app=name, made_at_unix_s=0.0, note=note))
        (options.out / f"{name}.json").write_text(to_text(made), encoding="utf-8")
        print(
            f"{name}: {len(made.y)} samples, R2 {made.metrics.r2:.4f}, {made.metrics.refusal or 'signed off'}"
        )
    return 0


def _explore(archetype: str, points: int) -> Profile:
    options = ProfileOptions(points=points, pacing=Pacing(3, 2))
    result = asyncio.run(profile_simulated(archetype, options, _Quiet()))
    assert result.profile is not None, archetype
    return result.profile


if __name__ == "__main__":
    raise SystemExit(main())
