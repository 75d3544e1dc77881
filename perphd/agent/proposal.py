"""Proposes a first configuration from what runs on a host. Pure: the same facts make the same proposal.

A workload is proposed as *sure* if its program, its slice or its timer identifies it. Other candidates are written as
comments, and groups that cannot be declared are listed with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from perphd.agent.known_programs import (
    BATCH,
    BATCH_SLICE,
    CRON,
    HOUSEKEEPING,
    JAVA_OTHER,
    OTHER,
    KnownServer,
    is_perphds,
    is_system,
    program_of,
    server_of,
)
from perphd.config.match import named, parse_match
from perphd.config.workloads import relation_of, to_toml
from perphd.domain.errors import ParseError
from perphd.domain.host_facts import GroupFact, HostFacts, ProcessFact
from perphd.domain.workload import Exploration, Kind, SliSpec, Touch, WorkloadSpec
from perphd.host.cgroup.hierarchy import check_cgroup_path
from perphd.monitor.sli.options import MOST_PORTS, validate_options

BUSY_CORES: Final = 0.2
"""CPU use, in cores, from which a group that looks like batch is proposed as batch."""
SERVING_CORES: Final = 0.05
"""CPU use, in cores, from which an unknown server is proposed as an LRA and not as a comment."""
_MOST_NAME: Final = 40
_SESSION: Final = re.compile(r"/user\.slice/|/session-[^/]*\.scope$|/user@")
_SURE_TITLES: Final = (OTHER, JAVA_OTHER)


@dataclass(frozen=True, slots=True)
class Proposed:
    """One proposed workload. ``cgroup``: its present group, empty if it is not running; ``why``: a clause
    that follows a colon.

    ``account``: the statement that creates its indicator's account, with ``{password}`` as a placeholder.
    """

    spec: WorkloadSpec
    why: str
    sure: bool
    cgroup: str = ""
    cpu_cores: float = 0.0
    memory_bytes: int = 0
    account: str = ""


@dataclass(frozen=True, slots=True)
class NotProposed:
    """A running group that cannot be, or need not be, declared."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """The proposed workloads, and the groups left out."""

    workloads: tuple[Proposed, ...] = ()
    left_out: tuple[NotProposed, ...] = ()


def propose(facts: HostFacts, declared: Sequence[WorkloadSpec] = ()) -> Proposal:
    """Propose workloads for a host. ``declared``: workloads of the existing configuration."""
    found: list[Proposed] = []
    left: list[NotProposed] = []
    groups = sorted(facts.groups, key=lambda group: group.cgroup)
    for group in groups:
        if any(relation_of(group.cgroup, own) for own in facts.own) or is_perphds(group.unit):
            continue
        item = _lra(group, facts) or _batch(group, facts)
        if isinstance(item, NotProposed):
            left.append(item)
        elif item is not None:
            found.append(item)
    found += _slices(facts, found)
    found += _timers(facts, found)
    found.sort(
        key=lambda item: (item.spec.kind is Kind.BATCH, not item.sure, -item.cpu_cores, item.spec.name)
    )
    kept: list[Proposed] = []
    for item in found:
        problem = _problem(item, kept, declared)
        if problem:
            left.append(NotProposed(item.cgroup or item.spec.match, problem))
        else:
            kept.append(item)
    return Proposal(_named_apart(kept, {spec.name for spec in declared}), tuple(left))


def config_text(proposal: Proposal, unmeasured: Iterable[str] = ()) -> str:
    """The proposal as a configuration file.

    Args:
        proposal: what to declare.
        unmeasured: names of LRAs whose indicator does not answer yet. Such an indicator is written as a comment.
    """
    sure = [item for item in proposal.workloads if item.sure]
    kinds = [item.spec.kind for item in sure]
    lines = [
        f"# Proposed by perphctl init: {kinds.count(Kind.LRA)} LRA(s), {kinds.count(Kind.BATCH)} batch workload(s).",
        "# Keys: man 5 perphd.conf. perphd observes until you run perphctl mode enforce.",
    ]
    later = set(unmeasured)
    for item in sure:
        lines += ["", f"# {_comment(item.why)}", *_table(item.spec, item.spec.name in later)]
    for item in proposal.workloads:
        if not item.sure:
            lines += ["", f"# Perhaps: {_comment(item.why)}"]
            lines += [f"# {line}" for line in to_toml(item.spec).splitlines()]
    return "\n".join(lines) + "\n"


def _table(spec: WorkloadSpec, unmeasured: bool) -> list[str]:
    lines = to_toml(spec).splitlines()
    if not unmeasured:
        return lines
    plain = to_toml(replace(spec, sli=None)).splitlines()
    return [
        *plain,
        "# Remove the # below once the account exists:",
        *(f"# {line}" for line in lines[len(plain) :]),
    ]


def _comment(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)


# -- LRAs ------------------------------------------------------------------------------------------------------------


def _lra(group: GroupFact, facts: HostFacts) -> Proposed | NotProposed | None:
    servers = [(server, process) for process in group.processes if (server := server_of(process)) is not None]
    if not servers or group.unit in CRON:
        return None
    # Known programs come first; among the processes of one server, the listening one.
    server, process = min(servers, key=lambda pair: (pair[0] in _SURE_TITLES, not pair[1].ports, pair[1].pid))
    what = f"{program_of(process)} (pid {process.pid})"
    if not _can_be_declared(group):
        return NotProposed(what, _why_not(group))
    if _SESSION.search(group.cgroup):
        return NotProposed(what, "runs in a login session; start it as a systemd unit or in a container")
    known = server not in _SURE_TITLES
    ports = tuple(sorted(set(process.ports) or set(group.ports)))
    where = f" on {_ports_text(ports)}" if ports else ""
    sure = known or group.cpu_cores >= SERVING_CORES
    name = _name_of(group, process)
    sli = _sli(server, name, group, ports, facts)
    spec = replace(
        _placed(name, Kind.LRA, group), app_class=server.app_class, sli=sli,
        touch=Touch.BATCH, exploration=Exploration.BATCH,
    )  # fmt: skip
    program = program_of(process)
    title = server.title if server.title == program else f"{server.title} ({program})"
    why = f"{title}{where}{_of_latency(server, spec.sli, ports, facts)}"
    account = server.account if spec.sli is not None and spec.sli.source == server.source else ""
    return Proposed(spec, why, sure, group.cgroup, group.cpu_cores, group.memory_bytes, account)


def _sli(
    server: KnownServer, name: str, group: GroupFact, ports: tuple[int, ...], facts: HostFacts
) -> SliSpec | None:
    if server.source == "tcp":
        if not facts.tcp_latency or not ports:
            return None
        return validate_options("tcp", {"ports": ",".join(map(str, ports[:MOST_PORTS]))})
    options: dict[str, str] = {}
    sockets = sorted(
        {path for process in group.processes for path in process.sockets if server.socket in path}
    )
    socket = next((path for path in sockets if not path.endswith("x.sock")), "")
    if socket and _default(socket) != server.default_socket:
        options["socket"] = socket
    elif not socket and ports:
        options |= {"host": "127.0.0.1", "port": str(ports[0])}
        if facts.tcp_latency:
            options["latency"] = "tcp"  # without a socket, all its clients connect over TCP
    if server.password:
        options["password_file"] = password_path(name)
    return validate_options(server.source, options)


def _of_latency(server: KnownServer, sli: SliSpec | None, ports: Sequence[int], facts: HostFacts) -> str:
    """A remark about the server's latency over TCP, after a semicolon; empty if there is none."""
    if sli is None or not facts.tcp_latency:
        return ""
    if sli.source == "tcp":
        return f"; {server.against}" if server.against else ""
    if ports and not sli.get("latency"):
        return '; latency = "tcp" adds the latency of clients that connect over TCP'
    return ""


def password_path(name: str) -> str:
    """The file for the password of an LRA's indicator."""
    return f"/etc/perphd/{name}.password"


def _default(socket: str) -> str:
    return socket.removeprefix("/var") if socket.startswith("/var/run/") else socket


def _ports_text(ports: Sequence[int]) -> str:
    shown = ", ".join(map(str, ports[:3]))
    return f"port{'s' if len(ports) > 1 else ''} {shown}{' ...' if len(ports) > 3 else ''}"


# -- batch -----------------------------------------------------------------------------------------------------------


def _batch(group: GroupFact, facts: HostFacts) -> Proposed | NotProposed | None:
    workers = [process for process in group.processes if not is_system(process)]
    main = max(workers, key=lambda p: (p.cpu_cores, p.memory_bytes, -p.pid), default=None)
    if main is None and group.unit not in CRON:
        return None
    program = program_of(main) if main is not None else "cron"
    use = f"{group.cpu_cores:.1f} cores now"
    if group.unit in CRON:
        why, sure = f"every cron job runs in this group ({use})", group.cpu_cores >= BUSY_CORES
    elif group.unit in facts.timed:
        if group.unit in HOUSEKEEPING:
            return None
        why, sure = f"a timer starts {group.unit} ({program}, {use})", True
    elif group.cpu_cores < BUSY_CORES:
        return None
    elif program in BATCH or (main is not None and main.nice >= 10):
        because = (
            "its name indicates batch" if program in BATCH else f"runs at nice {main.nice if main else 0}"
        )
        why, sure = f"{program} {because} ({use})", True
    else:
        why, sure = f"{program} has no listening socket and uses {use}", False
    what = f"{program} (pid {main.pid})" if main is not None else group.cgroup
    if not _can_be_declared(group):
        return NotProposed(what, _why_not(group))
    if _SESSION.search(group.cgroup):
        return NotProposed(what, "runs in a login session; start it with systemd-run --slice=batch.slice")
    name = _name_of(group, main)
    spec = _placed(name, Kind.BATCH, group)
    return Proposed(spec, why, sure, group.cgroup, group.cpu_cores, group.memory_bytes)


def _slices(facts: HostFacts, found: Sequence[Proposed]) -> list[Proposed]:
    """Slices whose names indicate batch, unless they contain an LRA."""
    proposed = []
    for path in sorted(facts.slices):
        name = path.rsplit("/", 1)[-1]
        if not BATCH_SLICE.search(path) or any(relation_of(path, own) for own in facts.own):
            continue
        inside = [group for group in facts.groups if relation_of(group.cgroup, path)]
        if any(item.spec.kind is Kind.LRA and relation_of(item.cgroup, path) for item in found):
            continue
        cores = sum(group.cpu_cores for group in inside)
        memory = sum(group.memory_bytes for group in inside)
        spec = WorkloadSpec(
            _clean(name.removesuffix(".slice")), Kind.BATCH, cgroup="", match=_match(f"slice:{name}") or ""
        )
        if not spec.match:
            continue
        why = f"everything in {name} ({cores:.1f} cores now)"
        proposed.append(Proposed(spec, why, True, path, cores, memory))
    return proposed


def _timers(facts: HostFacts, found: Sequence[Proposed]) -> list[Proposed]:
    """Units that a timer will start, as comments, because their use is unknown."""
    there = {item.spec.match for item in found}
    proposed = []
    for unit in sorted(facts.timed - HOUSEKEEPING):
        match = _match(f"unit:{unit}")
        if match is None or match in there or unit.startswith("systemd-") or is_perphds(unit):
            continue
        spec = WorkloadSpec(_clean(unit.removesuffix(".service")), Kind.BATCH, cgroup="", match=match)
        proposed.append(Proposed(spec, f"a timer starts {unit}, which is not running now", False))
    return proposed


# -- both ------------------------------------------------------------------------------------------------------------


def _placed(name: str, kind: Kind, group: GroupFact) -> WorkloadSpec:
    """Declare the workload by a ``match`` if that still finds it after a restart, else by its path."""
    container = named(group.container) if group.container else ""
    unit = f"unit:{group.unit}" if group.unit else ""
    # A pod's container may be a systemd scope, whose name changes with every start.
    for text in (container, unit) if "/" in group.container else (unit, container):
        match = _match(text) if text else None
        if match is not None:
            return WorkloadSpec(name, kind, "", match=match)
    return WorkloadSpec(name, kind, group.cgroup)


def _match(text: str) -> str | None:
    try:
        found = parse_match(text)
    except ParseError:
        return None
    return None if found.is_many else str(found)


def _can_be_declared(group: GroupFact) -> bool:
    try:
        check_cgroup_path(group.cgroup)
        group.cgroup.encode()
    except (ParseError, ValueError):
        return False
    return group.cgroup.isprintable()


def _why_not(group: GroupFact) -> str:
    if group.cgroup in ("", "/"):
        return "has no control group of its own; start it as a systemd unit or in a container"
    return f"its control group {group.cgroup!r} cannot be named in a configuration"


def _problem(item: Proposed, kept: Sequence[Proposed], declared: Sequence[WorkloadSpec]) -> str:
    """Reason why this item conflicts with workloads already proposed; empty if it does not."""
    for spec in declared:
        same_match = bool(spec.match) and spec.match == item.spec.match
        if same_match or (spec.cgroup and item.cgroup and relation_of(item.cgroup, spec.cgroup)):
            return f"is already declared, or lies in a declared group: {spec.name}"
    for other in kept:
        same_match = bool(item.spec.match) and item.spec.match == other.spec.match
        if same_match or (item.cgroup and other.cgroup and relation_of(item.cgroup, other.cgroup)):
            return f"belongs to {other.spec.name}"
    return ""


def _name_of(group: GroupFact, process: ProcessFact | None) -> str:
    if group.container:
        return _clean(group.container.rsplit("/", 1)[-1])
    if group.unit:
        return _clean(group.unit.rpartition(".")[0])
    last = group.cgroup.rstrip("/").rsplit("/", 1)[-1]
    return _clean(last or (program_of(process) if process is not None else ""))


def _clean(name: str) -> str:
    """A name that the configuration accepts."""
    cleaned = re.sub(r"[^A-Za-z0-9_.@-]+", "-", name.encode("ascii", "replace").decode())
    return re.sub(r"^[^A-Za-z0-9]+", "", cleaned)[:_MOST_NAME].rstrip("-.") or "workload"


def _named_apart(items: Sequence[Proposed], taken: set[str]) -> tuple[Proposed, ...]:
    """The same workloads, with unique names that are not in use."""
    named, used = [], set(taken)
    for item in items:
        name, number = item.spec.name, 2
        while name in used:
            name, number = f"{item.spec.name}-{number}", number + 1
        used.add(name)
        spec = item.spec if name == item.spec.name else _renamed(item.spec, name)
        named.append(replace(item, spec=spec))
    return tuple(named)


def _renamed(spec: WorkloadSpec, name: str) -> WorkloadSpec:
    if spec.sli is None:
        return replace(spec, name=name)
    old, new = password_path(spec.name), password_path(name)
    options = tuple((key, new if value == old else value) for key, value in spec.sli.options)
    return replace(spec, name=name, sli=replace(spec.sli, options=options))
