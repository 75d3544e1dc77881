"""Finds the control groups that the declared matches denote at present.

Only searches and compares; the agent adds, follows and drops the workloads. A group that cannot be accepted is reported
and does not prevent others from being found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from perphd.config.match import Match, MatchKind, instance_name, is_wild, parse_match, slice_path
from perphd.config.opt_in import DECLARATION, OptIn
from perphd.config.tables import NOBODY, OptInConfig
from perphd.config.workloads import is_inside, relation_of
from perphd.domain.errors import ParseError
from perphd.domain.workload import WorkloadSpec
from perphd.host.cgroup.hierarchy import check_cgroup_path, own_cgroups
from perphd.host.fs import KernelFs
from perphd.host.lookup import Container, LocalPod, Lookup

MAX_INSTANCES: Final = 64
"""Maximum number of workloads from one match with wildcards; the first ones by path are accepted."""
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search. ``specs``: by name, each with its control group.

    ``declared_as``: name -> name of the declaration. ``problems``: name of a declaration -> why it, or part of what it
    matches, is left out. ``overruled``: sentences about workloads that declare themselves although the operator
    declares them as well.
    """

    specs: Mapping[str, WorkloadSpec] = field(default_factory=dict)
    declared_as: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    overruled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Hit:
    """A group that matches. ``identity``: distinguishes groups with equal ``captured``; empty: their paths distinguish
    them.
    """

    cgroup: str
    captured: tuple[str, ...] = ()
    identity: str = ""


class Discovery:
    """Searches one host. Remembers the process behind each ``pid:``, because its number may be reused."""

    def __init__(self, fs: KernelFs, lookup: Lookup) -> None:
        self._fs, self._lookup = fs, lookup
        self._starts: dict[int, int] = {}
        self._opt_in = OptIn(fs, lookup)
        self._offered: dict[str, None] = {}

    def look(
        self,
        declared: Sequence[WorkloadSpec],
        others: Sequence[WorkloadSpec],
        opt_in: OptInConfig = NOBODY,
    ) -> Found:
        """Find the control groups of the declarations. ``others``: workloads whose control groups are given.

        ``opt_in``: the workloads that may declare themselves as well. Never raises: an unreadable place yields no
        groups.
        """
        self._lookup.look_anew()
        own = [path for _, path in own_cgroups(self._fs)]
        taken = {spec.cgroup: spec.name for spec in others}
        names = {spec.name for spec in (*others, *declared)}
        self.forget_processes(declared)
        specs: dict[str, WorkloadSpec] = {}
        declared_as: dict[str, str] = {}
        problems: dict[str, str] = {}
        for spec in declared:
            match = parse_match(spec.match)
            hits, problem = self._hits(match)
            said = [problem] if problem else []
            if not match.is_many and len(hits) > 1:
                shown = ", ".join(hit.cgroup for hit in hits[:_SHOWN])
                said.append(
                    f"{match} matches {len(hits)} control groups ({shown} ...): name one of them, or "
                    "use a wildcard so that each becomes a workload"
                )
                hits = []
            if len(hits) > MAX_INSTANCES:
                said.append(
                    f"{match} matches {len(hits)} control groups; the first {MAX_INSTANCES} are taken"
                )
                hits = hits[:MAX_INSTANCES]
            for hit in hits:
                identity = hit.identity or hit.cgroup
                name = instance_name(spec.name, hit.captured, identity) if match.is_many else spec.name
                if reason := _refusal(hit.cgroup, name if match.is_many else "", own, taken, names):
                    said.append(reason)
                    continue
                taken[hit.cgroup] = name
                names.add(name)
                specs[name] = replace(spec, name=name, cgroup=hit.cgroup)
                declared_as[name] = spec.name
            if not hits and not said:
                said.append(f"nothing matches {match}; perphd waits for it")
            if said:
                more = f" (and {len(said) - _SHOWN} more)" if len(said) > _SHOWN else ""
                problems[spec.name] = f"{spec.kind} {spec.name!r}: {'; '.join(said[:_SHOWN])}{more}"
        by_themselves, said, overruled = self._by_themselves(opt_in, own, taken, names)
        if said:
            more = f" (and {len(said) - _SHOWN} more)" if len(said) > _SHOWN else ""
            problems[DECLARATION] = f"{DECLARATION}: {'; '.join(said[:_SHOWN])}{more}"
        specs |= by_themselves
        declared_as |= dict.fromkeys(by_themselves, DECLARATION)
        return Found(specs, declared_as, problems, tuple(overruled))

    def _by_themselves(
        self, config: OptInConfig, own: Sequence[str], taken: Mapping[str, str], names: set[str]
    ) -> tuple[dict[str, WorkloadSpec], list[str], list[str]]:
        """Workloads that declare themselves, problems of others, and those that the operator declares as well.

        Workloads that were found before come first, so that newcomers displace none of them.
        """
        specs: dict[str, WorkloadSpec] = {}
        said: list[str] = []
        overruled: list[str] = []
        offers = sorted(self._opt_in.offers(config), key=lambda offer: offer.cgroup not in self._offered)
        operators, taken = taken, dict(taken)
        for offer in offers:
            if any(relation_of(offer.cgroup, other) is not None for other in operators):
                overruled.append(f"{offer.who} declares itself, but the operator's declaration counts")
                continue
            if offer.spec is None:
                said.append(offer.problem)
                continue
            reason = _refusal(offer.cgroup, offer.spec.name, own, taken, names)
            if len(specs) >= MAX_INSTANCES:
                reason = f"{MAX_INSTANCES} workloads declare themselves; no more are taken"
            if reason:
                said.append(f"{offer.who}: {reason}")
                continue
            taken[offer.cgroup] = offer.spec.name
            names.add(offer.spec.name)
            specs[offer.spec.name] = offer.spec
        self._offered = dict.fromkeys(spec.cgroup for spec in specs.values())
        return specs, said, overruled

    def exists(self, cgroup: str) -> bool:
        """True if the control group exists."""
        return self._lookup.exists(cgroup)

    def forget_processes(self, declared: Sequence[WorkloadSpec]) -> None:
        """Forget processes that no declaration names any longer, because their numbers may be reused."""
        if self._starts:
            named = {spec.match for spec in declared}
            self._starts = {pid: start for pid, start in self._starts.items() if f"pid:{pid}" in named}

    def _hits(self, match: Match) -> tuple[list[_Hit], str]:
        """The control groups, sorted by path, and a problem or an empty text.

        Users who may create groups choose their names, so a group that cannot be accepted does not affect others.
        """
        problem = ""
        match match.kind:
            case MatchKind.UNIT:
                hits = [
                    _Hit(cgroup, captured)
                    for unit, cgroup in self._lookup.units()
                    if (captured := match.captures(unit)) is not None
                ]
            case MatchKind.SLICE:
                path = slice_path(match.pattern)
                hits = [_Hit(path)] if self._lookup.exists(path) else []
            case MatchKind.CGROUP:
                hits = [_Hit(path, match.captures(path) or ()) for path in self._paths(match.pattern)]
            case MatchKind.CONTAINER:
                hits = [
                    _Hit(item.cgroup, captured, item.identity)
                    for item in self._lookup.containers()
                    if (captured := match.captures(item.name)) is not None
                ]
            case MatchKind.POD:
                hits = [
                    _Hit(item.cgroup, captured, item.identity)
                    for item in self._lookup.pods()
                    if (captured := match.captures(item.name)) is not None
                ]
            case MatchKind.LABEL:
                hits, problem = self._labelled(match)
            case _:
                hits, problem = self._of_process(match)
        safe: list[_Hit] = []
        refused: list[str] = []
        for hit in sorted(hits, key=lambda hit: hit.cgroup):
            try:
                check_cgroup_path(hit.cgroup)
            except ParseError as exc:
                refused.append(str(exc))
            else:
                safe.append(hit)
        if refused:
            more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
            said = (
                f"not every group found by {match} can be accepted: {refused[0]}{more}; rename or remove it"
            )
            problem = f"{problem}; {said}" if problem else said
        return safe, problem

    def _labelled(self, match: Match) -> tuple[list[_Hit], str]:
        """Pods with this label, and containers with this label that no pod has.

        A pod is one workload, because weights and protections of its containers count only within the pod.
        """
        hits, unknown = [], []
        pods = {pod.cgroup: pod.labels or {} for pod in self._lookup.pods()}
        items: list[Container | LocalPod] = [*self._lookup.pods()]
        for each in self._lookup.containers():
            if not each.is_sandbox and match.key not in pods.get(each.pod, {}):
                items.append(each)
        for item in items:
            if item.labels is None:
                unknown.append(item.cgroup)
                continue
            captured = match.captures(item.labels.get(match.key, ""))
            if captured is not None and match.key in item.labels:
                # Many containers may have one label: their names tell them apart.
                hits.append(_Hit(item.cgroup, (item.name,), item.identity))
        if unknown and not hits:
            return hits, (
                f"no container is known to have {match}: the labels of {len(unknown)} containers (such as "
                f"{unknown[0]}) are not known here, because their runtime leaves no state that can be read on this host"
            )
        return hits, ""

    def _of_process(self, match: Match) -> tuple[list[_Hit], str]:
        if match.kind is MatchKind.PID:
            pid, problem = int(match.pattern), ""
        else:
            pid, problem = self._lookup.pid_in(match.pattern)
        start = self._lookup.start_of(pid) if pid > 1 else 0
        if not start:
            return [], problem
        if match.kind is MatchKind.PID and self._starts.setdefault(pid, start) != start:
            return [], f"process {pid} has ended; another process has its number now"
        cgroup = self._lookup.of_process(pid)
        if not cgroup:
            return [], f"process {pid} is in the root control group"
        return [_Hit(cgroup)], ""

    def _paths(self, pattern: str) -> Iterator[str]:
        """Existing groups whose path matches a pattern. Lists only folders that can lead to a match."""
        found = [""]
        for part in pattern[1:].split("/"):
            if is_wild(part):
                wild = Match(MatchKind.CGROUP, part)
                found = [
                    f"{above}/{name}"
                    for above in found
                    for name in self._lookup.children(above or "/")
                    if wild.captures(name) is not None
                ]
            else:
                found = [f"{above}/{part}" for above in found]
        return (path for path in found if self._lookup.exists(path))


def _refusal(cgroup: str, name: str, own: Sequence[str], taken: Mapping[str, str], names: set[str]) -> str:
    """The reason why this control group is refused; empty if it is accepted.

    ``name``: the name of one of many instances.
    """
    for path in own:
        if path == cgroup or is_inside(path, cgroup):
            return f"{cgroup} contains perphd itself (it runs in {path})"
    for other, whose in taken.items():
        if (relation := relation_of(cgroup, other)) is not None:
            return f"{cgroup} {relation} of workload {whose!r} ({other})"
    if name in names:
        return f"{cgroup} would be called {name!r}, as another workload is"
    return ""
