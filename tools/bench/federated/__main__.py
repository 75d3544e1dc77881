"""Samples needed for a new application alone and with other hosts, unlike hardware, and lying hosts.

python -m tools.bench.federated --out out/bench/federated [--learner ogbrt] [--hosts 50] [--applications 10]

Writes two files for each host (results alone, results with others; existing files are kept) and
federated-LEARNER.md.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from perphd.domain.learning import Learner
from perphd.federated.contribution import Contribution, from_text, to_text
from perphd.federated.ledger import ContributionLedger, of_documents
from perphd.predictor import LraModel
from perphd.predictor.corrections import is_told
from tools.bench.federated.hosts import APPLICATIONS, ASKED, HOSTS, KINDS, LENGTH, Host, days, fleet
from tools.bench.federated.lies import table
from tools.bench.federated.meeting import contribution, meet, model

Floats = NDArray[np.float64]
Errors: TypeAlias = list[tuple[float, float]]
"""Mean squared errors nearby and anywhere, at each of ``ASKED``."""

TOLD_LENGTH: Final = 101
SETTLED_FROM: Final = 240
WITHIN: Final = 1.1
"""Factor on the mean error of the settled part below which an error counts as settled."""
LIES_EVERY: Final = 3
"""One in this many hosts decides with lies in its ledger."""
EARLY: Final = 101
"""Samples at which models with and without other hosts are compared on unlike hardware."""
RESAMPLES: Final = 400


@dataclass(frozen=True, slots=True)
class Meeting:
    """One host and application.

    Errors ``alone``, ``told`` (with the others' contributions), and ``mislabelled``: with contributions of hosts of the
    first kind, whose hardware this one claims to have (empty for them). ``began``: enough other hosts knew the
    application; ``kept``: the trial was won.
    """

    host: str
    kind: int
    application: int
    alone: Errors
    told: Errors
    mislabelled: Errors
    began: bool
    kept: bool
    kept_mislabelled: bool


def main() -> int:
    """Measure missing results, write, print."""
    parser = argparse.ArgumentParser(
        prog="tools.bench.federated", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench/federated"), help="folder of the results")
    parser.add_argument(
        "--learner", choices=["ogbrt", "staged", "residual"], default="ogbrt", help="of the models"
    )
    parser.add_argument("--hosts", type=int, default=HOSTS)
    parser.add_argument("--applications", type=int, default=APPLICATIONS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--sample", type=int, default=1, help="one host in this many is tested (all contribute)"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    hosts = fleet(options.seed, options.hosts, options.applications)
    contributions, alone = learned(options.out, options.learner, hosts, options.seed, options.applications)
    ledger = of_documents(contributions.values())
    first = of_documents(contributions[host.name] for host in hosts if host.kind == 0)
    meetings: list[Meeting] = []
    for host in hosts[:: options.sample]:
        kept = options.out / f"met-{options.learner}-{options.seed}-{options.applications}-{host.name}.json"
        if not kept.exists():
            met = [
                meeting(options.learner, host, a, ledger, first, alone[host.name, a], options.seed)
                for a in range(options.applications)
            ]
            kept.write_text(json.dumps([asdict(each) for each in met]))
        meetings += [Meeting(**each) for each in json.loads(kept.read_text())]
    lines = markdown(meetings, options.learner)
    asked, said = hosts[:: LIES_EVERY * options.sample], list(contributions.values())
    lines += table(asked, said, options.seed, options.applications)
    text = "\n".join(lines) + "\n"
    (options.out / f"federated-{options.learner}.md").write_text(text)
    print(text)
    return 0


def learned(
    out: Path, learner: Learner, hosts: list[Host], seed: int, applications: int
) -> tuple[dict[str, Contribution], dict[tuple[str, int], Errors]]:
    """Each host's contribution and its errors alone; stored per host, so that an interrupted run can continue."""
    contributions: dict[str, Contribution] = {}
    alone: dict[tuple[str, int], Errors] = {}
    for host in hosts:
        path = out / f"{learner}-{seed}-{applications}-{host.name}.json"
        if not path.exists():
            models: dict[str, LraModel] = {}
            errors: list[Errors] = []
            for a in range(applications):
                met = meet(model(learner, host, None, ""), days(host, a, seed), LENGTH)
                models[f"app-{a}"] = met.model
                errors.append(met.squares.tolist())
            said = to_text(contribution(host, models)).decode()
            path.write_text(json.dumps({"contribution": said, "errors": errors}))
        kept = json.loads(path.read_text())
        contributions[host.name] = from_text(kept["contribution"].encode())
        for a in range(applications):
            alone[host.name, a] = kept["errors"][a]
    return contributions, alone


def meeting(
    learner: Learner,
    host: Host,
    application: int,
    ledger: ContributionLedger,
    first: ContributionLedger,
    alone: Errors,
    seed: int,
) -> Meeting:
    """One host meets one application that the others know."""
    lra, met = f"app-{application}", days(host, application, seed, TOLD_LENGTH)
    made = model(learner, host, ledger, lra)
    began = bool(made.trials)
    told = meet(made, met, TOLD_LENGTH)
    mislabelled: Errors = []
    kept = False
    if host.kind:
        claims = model(learner, host, first, lra, KINDS[0].hardware)
        wrong = meet(claims, met, TOLD_LENGTH)
        mislabelled, kept = _pairs(wrong.squares), is_told(wrong.model.work_correction)
    return Meeting(
        host.name,
        host.kind,
        application,
        alone,
        _pairs(told.squares),
        mislabelled,
        began,
        is_told(told.model.work_correction),
        kept,
    )


def _pairs(squares: Floats) -> Errors:
    return [(float(near), float(anywhere)) for near, anywhere in squares]


# -- the tables -----------------------------------------------------------------------------------------------------


def markdown(meetings: Sequence[Meeting], learner: str) -> list[str]:
    """Samples to the settled error, and errors on unlike hardware."""
    rng = np.random.default_rng(0)
    lines = [
        f"## Meetings, learner {learner}",
        "",
        "| hosts | where | settled error, alone | samples alone | told | ratio | error at first, alone | told |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind, made in enumerate(KINDS):
        chosen = [m for m in meetings if m.kind == kind and m.began]
        if not chosen:
            continue
        for column, where in enumerate(("near by", "anywhere")):
            alone = np.array([[e[column] for e in m.alone] for m in chosen])
            told = np.array([[e[column] for e in m.told] for m in chosen])
            settled, first, second = needs(alone, told)
            drawn = [needs(alone[k], told[k])[1:] for k in _draws(len(chosen), rng)]
            low = [np.quantile([d[i] for d in drawn], (0.025, 0.975)) for i in (0, 1)]
            ratio = f"{second / first:.2f}" if first else "-"
            lines.append(
                f"| {made.hardware.cpu} ({len(chosen)}) | {where} | {settled:.3f} | {first:.0f} "
                f"({low[0][0]:.0f} to {low[0][1]:.0f}) | {second:.0f} ({low[1][0]:.0f} to {low[1][1]:.0f}) | {ratio} | "
                f"{_rms(alone[:, 0]):.3f} | {_rms(told[:, 0]):.3f} |"
            )
    lines += [
        "",
        f"## Error of the first {EARLY} samples against that alone (ratio, 95 % interval)",
        "",
        "| hosts | told by | trials won | near by | anywhere |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for kind, made in enumerate(KINDS):
        chosen = [m for m in meetings if m.kind == kind]
        if not chosen:
            continue
        lines.append(
            _against(made.hardware.cpu, "hosts alike", chosen, [m.told for m in chosen], "kept", rng)
        )
        if kind:
            wrong = [m.mislabelled for m in chosen]
            by = f"{KINDS[0].hardware.cpu}, whose label it has"
            lines.append(_against(made.hardware.cpu, by, chosen, wrong, "kept_mislabelled", rng))
    return [*lines, ""]


def needs(alone: Floats, told: Floats) -> tuple[float, float, float]:
    """Settled error, and the samples needed to come within ``WITHIN`` of it, alone and with others; rows are runs."""
    settled = _rms(alone[:, [k for k, at in enumerate(ASKED) if at >= SETTLED_FROM]])
    return settled, reached(alone, settled), reached(told, settled)


def reached(squares: Floats, settled: float) -> float:
    """The first question whose error is low enough, also on average with the next two; else the last question."""
    curve = squares.mean(axis=0)
    for k in range(len(curve) - 2):
        if max(curve[k], curve[k : k + 3].mean()) <= (WITHIN * settled) ** 2:
            return float(ASKED[k])
    return float(ASKED[len(curve) - 1])


def _against(
    name: str, by: str, chosen: Sequence[Meeting], told: Sequence[Errors], kept: str, rng: np.random.Generator
) -> str:
    count = sum(at < EARLY for at in ASKED)
    cells = []
    for column in (0, 1):
        one = np.array([np.mean([e[column] for e in m.alone[:count]]) for m in chosen])
        other = np.array([np.mean([e[column] for e in each[:count]]) for each in told])
        ratios = [math.sqrt(other[k].mean() / one[k].mean()) for k in _draws(len(chosen), rng)]
        low, high = np.quantile(ratios, (0.025, 0.975))
        cells.append(f"{math.sqrt(other.mean() / one.mean()):.2f} ({low:.2f} to {high:.2f})")
    share = np.mean([getattr(m, kept) for m in chosen])
    return f"| {name} ({len(chosen)}) | {by} | {share:.0%} | {cells[0]} | {cells[1]} |"


def _draws(count: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    for _ in range(RESAMPLES):
        yield rng.integers(0, count, count)


def _rms(squares: Floats) -> float:
    return math.sqrt(float(np.mean(squares)))


if __name__ == "__main__":
    raise SystemExit(main())
