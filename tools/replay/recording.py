"""Records runs of the bench, and replays any recording: those of a daemon (``perphctl export --replay``) have the same
form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TextIO, get_type_hints

from perphd.agent.rounds import observed
from perphd.control.replay_routes import FORMAT, head, line, round_out, target_out
from perphd.control.tagged import decode_tagged
from perphd.domain.allocation import Allocation
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import PerphError
from perphd.domain.policy import HostView, Policy, Snapshot, TargetState, WorkloadView
from perphd.domain.sample import Sample
from perphd.domain.topology import Topology
from perphd.domain.wire import decode
from perphd.domain.workload import WorkloadSpec
from tools.replay.frozen import FrozenModel, NotAskedError


class RecordingError(Exception):
    """A file is not a recording, or has an unknown format; the text states the line and the reason."""


class Recorder:
    """A policy that calls another one and records everything that it saw and answered.

    It replaces the wrapped policy in the agent or in the bench.
    """

    def __init__(self, policy: Policy, file: TextIO) -> None:
        self._policy, self._file = policy, file
        self._begun = False

    @property
    def name(self) -> str:
        """The wrapped policy's."""
        return self._policy.name

    def decide(self, snapshot: Snapshot) -> TargetState:
        """Ask, write, answer."""
        if not self._begun:
            self._begun = True
            self._file.write(line(head(snapshot, self.name)))
        done = observed(self._policy, snapshot)
        self._file.write(line(round_out(done)))
        return done.target


@dataclass(frozen=True, slots=True)
class Head:
    """The first line: the origin of the decisions. ``settings``: the policy's, as JSON; ``memory``: at the start."""

    policy: str
    settings: Any
    topology: Topology
    memory: Any


_HOST: Final[dict[str, Any]] = {
    name: hint for name, hint in get_type_hints(HostView).items() if name != "topology"
}


@dataclass(frozen=True, slots=True)
class RecordedRound:
    """One line: the snapshot (its models frozen, its memory None) and the target as JSON values."""

    line: int
    snapshot: Snapshot
    target: Any


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of a replay: the tick, the place in the target, the recorded and the present value."""

    tick: int
    place: str
    recorded: str
    replayed: str

    def __str__(self) -> str:
        return f"tick {self.tick}, {self.place}: recorded {self.recorded}, replayed {self.replayed}"


def read(path: Path) -> tuple[Head, Iterator[RecordedRound]]:
    """The origin of the decisions, and the rounds. Raises RecordingError."""
    lines = path.read_text().splitlines()
    if not lines:
        raise RecordingError(f"{path} is empty")
    first = _parsed(path, 1, lines[0])
    if first.get("format") != FORMAT:
        raise RecordingError(f"{path}, line 1: format {first.get('format')!r}; this version reads {FORMAT}")
    try:
        topology, memory = decode(Topology, first["topology"]), decode_tagged(first["memory"])
        begin = Head(str(first["policy"]), first["settings"], topology, memory)
    except (KeyError, PerphError) as exc:
        raise RecordingError(f"{path}, line 1: {exc}") from exc
    return begin, _rounds(path, lines, topology)


def replay(path: Path, policy: Policy, most: int = 10) -> tuple[int, list[Difference]]:
    """Let ``policy`` decide on the recorded snapshots; its own memory travels from round to round.

    Returns the rounds replayed and the first ``most`` differences. A question that was not recorded ends the replay,
    because the policy's history differs from there on.
    """
    begin, rounds = read(path)
    memory = begin.memory
    differences: list[Difference] = []
    count = 0
    for item in rounds:
        try:
            target = policy.decide(replace(item.snapshot, memory=memory))
        except NotAskedError as exc:
            differences.append(Difference(item.snapshot.tick, "model", "not asked", str(exc)))
            return count, differences
        memory = target.memory
        count += 1
        now = _as_recorded(json.loads(json.dumps(target_out(target))), item.target)
        if now != item.target and len(differences) < most:
            differences.append(_difference(item.snapshot.tick, "target", item.target, now))
    return count, differences


def _as_recorded(now: Any, recorded: Any) -> Any:
    """The replayed target without fields of decisions that are newer than the recording."""
    pairs = zip(now["decisions"], recorded["decisions"], strict=False)
    known = [{name: item for name, item in made.items() if name in was} for made, was in pairs]
    return {**now, "decisions": [*known, *now["decisions"][len(known) :]]}


def _rounds(path: Path, lines: list[str], topology: Topology) -> Iterator[RecordedRound]:
    for number, text in enumerate(lines[1:], 2):
        value = _parsed(path, number, text)
        try:
            snapshot = _snapshot_in(value["snapshot"], value["answers"], topology)
            yield RecordedRound(number, snapshot, value["target"])
        except KeyError as exc:
            raise RecordingError(f"{path}, line {number}: {exc} is missing") from exc


def _parsed(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as exc:
        raise RecordingError(f"{path}, line {number}: {exc}") from exc
    if not isinstance(value, dict):
        raise RecordingError(f"{path}, line {number}: not an object")
    return value


def _snapshot_in(value: Mapping[str, Any], answers: Mapping[str, Any], topology: Topology) -> Snapshot:
    host = value["host"]
    views = tuple(_view_in(item, answers) for item in value["workloads"])
    return Snapshot(
        tick=value["tick"],
        at_s=value["at_s"],
        period_s=value["period_s"],
        host=HostView(topology, **{n: decode(hint, host[n]) for n, hint in _HOST.items() if n in host}),
        workloads=views,
    )


def _view_in(value: Mapping[str, Any], answers: Mapping[str, Any]) -> WorkloadView:
    spec = decode(WorkloadSpec, value["spec"])
    model = FrozenModel(answers[spec.name]) if spec.name in answers else None
    sample, protection = value["sample"], value["protection"]
    return WorkloadView(
        spec=spec,
        sample=None if sample is None else decode(Sample, sample),
        model=model,
        protection=None if protection is None else decode(Allocation, protection),
        protected_since_s=value["protected_since_s"],
        enforceable=frozenset(value["enforceable"]),
        enforced=value["enforced"],
        allowed=None if value.get("allowed") is None else decode(CpuSet, value["allowed"]),
        seen_domains=tuple(value.get("seen_domains", ())),
    )


def _difference(tick: int, place: str, was: Any, now: Any) -> Difference:
    """The innermost place at which two JSON values differ."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted(set(was) | set(now)):
            if was.get(key) != now.get(key):
                return _difference(tick, f"{place}.{key}", was.get(key), now.get(key))
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for index, (a, b) in enumerate(zip(was, now, strict=True)):
            if a != b:
                return _difference(tick, f"{place}[{index}]", a, b)
    return Difference(tick, place, json.dumps(was)[:200], json.dumps(now)[:200])
