"""Record a bench scenario, or replay a recording through a policy.

python -m tools.replay record SCENARIO POLICY FILE [--seed 0] [--seconds 120]
perphctl export --replay FILE [--rounds 600]     (of a running daemon)
python -m tools.replay run FILE [--policy NAME]

``run`` exits with 1 if a decision differs from the recording, and prints the first differences.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from perphd.admission.perph import PerphPolicy
from perphd.admission.settings import PolicySettings
from perphd.domain.policy import Policy
from perphd.domain.wire import decode
from tools.bench.policies import scenarios
from tools.bench.policies.catalogue import ENTRANTS
from tools.bench.policies.driver import run
from tools.bench.policies.peers.perph_literal import PerphLiteralPolicy
from tools.bench.policies.scene import Scenario
from tools.replay.recording import Head, Recorder, RecordingError, read, replay


def record(scenario: Scenario, policy: str, seed: int, path: Path) -> int:
    """Run a scenario of the bench and write its recording; returns the number of rounds."""
    entrant = ENTRANTS[policy]
    with path.open("w") as file:
        recorder = Recorder(entrant.make(scenario, seed), file)
        done = run(scenario, recorder, entrant.period_s, seed, models=entrant.models)
    return len(done.rounds)


_WITH_SETTINGS: dict[str, Callable[[PolicySettings], Policy]] = {
    "perph": PerphPolicy,
    "perph-literal": PerphLiteralPolicy,
}


def policy_of(name: str, seed: int = 0, head: Head | None = None) -> Policy:
    """The policy of this name with a recording's settings, else the bench's, without facts about a scenario."""
    if head is not None and head.settings is not None and name in _WITH_SETTINGS:
        return _WITH_SETTINGS[name](decode(PolicySettings, head.settings))
    nothing = scenarios.infeasible()[0]
    return ENTRANTS[name].make(nothing, seed)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="tools.replay", description="Record and replay decisions.")
    actions = parser.add_subparsers(dest="action", required=True)
    recording = actions.add_parser("record", help="record a scenario of the policy bench")
    recording.add_argument("scenario")
    recording.add_argument("policy", choices=list(ENTRANTS))
    recording.add_argument("file", type=Path)
    recording.add_argument("--seed", type=int, default=0)
    recording.add_argument("--seconds", type=float, default=None)
    running = actions.add_parser("run", help="replay a recording")
    running.add_argument("file", type=Path)
    running.add_argument("--policy", choices=list(ENTRANTS), default=None, help="default: the recorded one")
    running.add_argument("--seed", type=int, default=0, help="the policy's own, if it has one")
    options = parser.parse_args()
    try:
        if options.action == "record":
            known = {s.name: s for s in scenarios.standard()}
            if options.scenario not in known:
                parser.error(f"{options.scenario!r} is not a scenario (allowed: {', '.join(known)})")
            scenario = known[options.scenario]
            if options.seconds is not None:
                scenario = replace(scenario, duration_s=options.seconds)
            count = record(scenario, options.policy, options.seed, options.file)
            print(f"{count} rounds of {options.policy} in {options.file}")
            return 0
        head, _ = read(options.file)
        name = options.policy or head.policy
        count, differences = replay(options.file, policy_of(name, options.seed, head))
    except (RecordingError, OSError) as exc:
        print(f"replay: {exc}", file=sys.stderr)
        return 2
    for difference in differences:
        print(difference)
    print(
        f"{count} rounds replayed through {name}: {'as recorded' if not differences else 'not as recorded'}"
    )
    return 1 if differences else 0


if __name__ == "__main__":
    raise SystemExit(main())
