"""Workloads in configuration files, API requests and STATE_DIR/workloads.toml: one format, one set of checks."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from perphd.admission.settings import PolicySettings
from perphd.config.match import MAX_BASE, is_lasting, parse_match
from perphd.config.schema import TUNING, file_value, keys_of, read_item, read_values, setting, show
from perphd.domain.errors import ConfigError, PerphError
from perphd.domain.workload import Exploration, Kind, Mode, Objective, SliSpec, Touch, WorkloadSpec
from perphd.host.state_files import replace_text
from perphd.monitor.sli import measured_percentiles, plain_value, validate_options

RUNTIME_FILE = "workloads.toml"
VERSION_FROM = '"auto", "none", "file:/PATH" or "label:KEY"'
MAX_VERSION_FROM = 1000
_NAME_DOC = "its name everywhere: commands, metrics, records"
_CGROUP_DOC = (
    "its control group: the path below the cgroup root, the same in every hierarchy; perphd waits for it if "
    "it does not exist. Give either cgroup or match"
)
_MATCH_DOC = (
    "the search for its control group, as unit:NAME, slice:NAME, cgroup:/PATH, container:NAME, "
    "pod:NAMESPACE/NAME, label:KEY=VALUE, pidfile:/PATH or, only through the control API, pid:NUMBER; with "
    "wildcards, each match is a workload (see Finding control groups)"
)
_MODE_DOC = "observe or enforce for this workload alone; default: the daemon's mode"


_RESERVED_DOC = "its reserved memory, from which the shaper starts; 0: it takes no part in [sizing]"
_SHAPE_DOC = (
    "no: the shaper only advises; core, elastic: it may limit, freeze and end it; elastic workloads of an "
    "application make room before its core ones"
)
_APPLICATION_DOC = "its application, which only runs with all its core workloads; default: its name"
_BAND_DOC = (
    "its class of service, {}. A declared band sets memory.min (gold) or memory.low (silver) to reserved_memory, and "
    "for copper the idle CPU class, the lowest I/O weight and memory.high at 80 % of the host; see Bands for its "
    "effect with reserved_cpus"
)
_IO_LATENCY_DOC = (
    "while its reads and writes take longer than this on a disk, the kernel slows down the disk access of its sibling "
    "control groups (io.latency on cgroup v2, where the kernel has it); {}0: no target"
)
_IO_LATENCY: Mapping[str, Any] = {"low": 0.0, "high": 60_000.0, "unit": "ms", "expert": True}


@dataclass(frozen=True, slots=True)
class LraTable:
    """Table ``[[lra]]``: one long-running application whose performance is protected.

    Its subtable ``[lra.tuning]`` has the expert keys, and those of ``PolicySettings`` for this LRA alone.
    """

    REPLACED: ClassVar[Mapping[str, str]] = {"policy": "its keys below [lra.tuning]"}

    name: str = setting(doc=_NAME_DOC, kind="name")
    cgroup: str = setting("", _CGROUP_DOC, kind="cgroup")
    match: str = setting("", _MATCH_DOC, kind="match")
    priority: int = setting(
        100,
        "rank of the LRA when several together want more cores than the host has: the higher one is served first; "
        "equal ones share fairly",
        low=0,
        high=10000,
    )
    mode: Mode | None = setting(None, _MODE_DOC)
    tolerance_pct: float = setting(
        10.0,
        "accepted loss relative to the performance under the same load without batch",
        low=0.1,
        high=90.0,
        unit="%",
    )
    delay_tolerance_pct: float = setting(
        50.0,
        "accepted growth of the delay signal relative to the same load without batch",
        low=1.0,
        high=1000.0,
        unit="%",
        expert=True,
    )
    min_work_rate_per_s: float | None = setting(
        None,
        "an absolute objective instead of tolerance_pct: the lowest work rate (in units of the work signal)",
        low=1e-9,
        high=1e15,
        unit="1/s",
    )
    max_latency_ms: float | None = setting(
        None,
        "an absolute objective instead of tolerance_pct: the highest latency; needs [lra.sli]",
        low=1e-6,
        high=1e9,
        unit="ms",
    )
    latency_percentile: Literal["p50", "p95", "p99"] = setting(
        "p95", "the percentile that is the delay signal and that max_latency_ms limits"
    )
    app_class: Literal["none", "database", "streaming", "web", "cache"] = setting(
        "none",
        "the kind of application, from whose typical model its own model starts; perphd profile, or a model "
        "that was learned here, takes precedence",
        key="class",
    )
    version_from: str = setting(
        "auto",
        "the source of its version; each version has a model of its own, and a new one starts from the "
        "last. auto: a container's image, else the program's file; file:PATH: the first line of that file, "
        "which is shown to everyone with read access (so only root or a file of the configuration may set it); "
        "label:KEY: a label of its container; none: all versions share one model",
        expert=True,
    )
    band: Literal["gold", "silver"] | None = setting(
        None, _BAND_DOC.format("gold (cores of its own) or silver (a guaranteed share); default: silver")
    )
    reserved_memory_bytes: int = setting(0, _RESERVED_DOC, kind="size", key="reserved_memory")
    reserved_cpus: float = setting(
        0.0,
        "CPUs reserved for it; needs band. Gold: rounded up to whole cores, which all others leave to it and, with "
        "touch all, to which it is confined; silver: a CPU weight of 100 for each of them. Others keep off its share "
        "of the cache. 0: only the policy divides CPUs and cache",
        low=0.0,
        high=4096.0,
        unit="CPUs",
    )
    io_latency_ms: float = setting(0.0, _IO_LATENCY_DOC.format(""), **_IO_LATENCY)
    shape: Literal["no", "core", "elastic"] = setting("no", f"{_SHAPE_DOC}. Never while it is degraded")
    application: str = setting("", _APPLICATION_DOC, kind="name", expert=True)
    touch: Touch = setting(
        Touch.BATCH,
        "settings that perphd may change to protect it: batch, only batch's settings, so that its own cores and cache "
        "are never narrowed; all, its own cores and cache ways as well",
    )
    exploration: Exploration = setting(
        Exploration.BATCH,
        "steps that perphd may try without a reliable prediction: off, nothing; batch, settings of batch that are "
        "not predicted to be worse for it; all, everything, including allocations below the known sufficient "
        "one. After a handful of changes that do not reach the target, none is made for ten minutes or more",
        expert=True,
    )


@dataclass(frozen=True, slots=True)
class BatchTable:
    """Table ``[[batch]]``: work that gives way."""

    name: str = setting(doc=_NAME_DOC, kind="name")
    cgroup: str = setting("", _CGROUP_DOC, kind="cgroup")
    match: str = setting("", _MATCH_DOC, kind="match")
    mode: Mode | None = setting(None, _MODE_DOC)
    min_cores: float | None = setting(
        None,
        "CPU time guaranteed to it, in CPUs, averaged over ten seconds, however full the host is, as far as "
        "its weight among its sibling control groups allows; it is never confined to fewer physical cores "
        "either. Default: no CPU time is guaranteed, and it keeps one core; if several LRAs need every core, "
        "it runs in the idle class on theirs",
        low=0.0,
        high=4096.0,
        unit="cores",
    )
    max_starvation_s: float | None = setting(
        None,
        "the longest time without any progress while it waits for a CPU; default: unlimited",
        low=5.0,
        high=86400.0,
        unit="s",
    )
    min_memory_bytes: int = setting(
        0, "its memory.high is never set below this size", kind="size", key="min_memory"
    )
    band: Literal["silver", "copper"] | None = setting(
        None,
        _BAND_DOC.format("copper (the remaining resources) or silver (a guaranteed share); default: copper"),
    )
    takes_hints: bool = setting(
        False,
        "it reads its hint file (how-to/hints.md) and reduces its use of a contended device on request; "
        "perphd then asks it before limiting it",
    )
    reserved_memory_bytes: int = setting(0, _RESERVED_DOC, kind="size", key="reserved_memory")
    io_latency_ms: float = setting(0.0, _IO_LATENCY_DOC.format('needs band = "silver"; '), **_IO_LATENCY)
    shape: Literal["no", "core", "elastic"] = setting("no", _SHAPE_DOC)
    application: str = setting("", _APPLICATION_DOC, kind="name", expert=True)


WORKLOAD_TABLES: Mapping[Kind, type] = {Kind.LRA: LraTable, Kind.BATCH: BatchTable}


@dataclass(frozen=True, slots=True)
class Declared:
    """A workload and where it was declared: file (or request) and key."""

    spec: WorkloadSpec
    source: str
    key: str


class WorkloadNames:
    """The names of these workloads, including names of the form ``NAME.INSTANCE`` that their matches produce."""

    def __init__(self, declared: Iterable[WorkloadSpec]) -> None:
        declared = tuple(declared)
        self._names = frozenset(spec.name for spec in declared)
        self._heads = tuple(f"{spec.name}." for spec in declared if spec.match)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._names or name.startswith(self._heads))


def read_workloads(raw: Mapping[str, Any], source: str) -> tuple[Declared, ...]:
    """The ``[[lra]]`` and ``[[batch]]`` tables of a parsed file.

    Raises:
        ConfigError: a key or value is refused. ``check_workloads`` checks for duplicates.
    """
    found: list[Declared] = []
    for kind in Kind:
        tables = raw.get(kind.value, [])
        if not isinstance(tables, list):
            raise ConfigError(
                source,
                kind.value,
                f"{show(tables)} is not a list of tables",
                f"any number of tables, each beginning with [[{kind.value}]]",
            )
        for number, table in enumerate(tables):
            key = f"{kind.value}[{number}]"
            spec = read_workload(kind, table, source, key)
            if spec.match and not is_lasting(spec.match):
                problem = (
                    f"{show(spec.match)} is not allowed in a file: once that process has ended, or after a restart of "
                    "the host, its number may be reused; pid: is accepted only at run time, through the control API"
                )
                raise ConfigError(source, f"{key}.match", problem, '"pidfile:/PATH", "unit:NAME" ...')
            found.append(Declared(spec, source, key))
    return tuple(found)


def read_workload(kind: Kind, raw: object, source: str, key: str) -> WorkloadSpec:
    """One workload from its table, or from a request body of the control API.

    Raises:
        ConfigError: a key or value is refused.
    """
    if kind is Kind.BATCH:
        values = _placed(read_item(BatchTable, raw, source, key), source, key)
        if values.get("io_latency_ms") and values.get("band") != "silver":
            problem = "only LRAs and silver batch may have a latency target on disks"
            where = f"{key}.{TUNING}.io_latency_ms"
            raise ConfigError(source, where, problem, 'band = "silver" in [[batch]]')
        return WorkloadSpec(kind=Kind.BATCH, **values)
    policy_keys = [item.name for item in keys_of(PolicySettings)]
    values = read_item(LraTable, raw, source, key, extra=("sli",), tuning_extra=policy_keys)
    values = _placed(values, source, key)
    assert isinstance(raw, Mapping)
    sli = _read_sli(raw["sli"], source, f"{key}.sli") if "sli" in raw else None
    if values.get("max_latency_ms") is not None:
        _check_latency_is_measured(values, sli, source, f"{key}.max_latency_ms")
    if values.get("reserved_cpus") and values.get("band") is None:
        problem = f"{values['reserved_cpus']:g} CPUs cannot be reserved without a band"
        raise ConfigError(
            source, f"{key}.reserved_cpus", problem, 'band = "gold" or band = "silver" beside it'
        )
    names = [item.name for item in fields(Objective) if item.name in values]
    objective = Objective(**{name: values.pop(name) for name in names})
    place = f"{key}.{TUNING}"
    _check_version_from(values.get("version_from", "auto"), source, f"{place}.version_from")
    values = {"touch": Touch.BATCH, "exploration": Exploration.BATCH, **values}
    tuning: Mapping[str, Any] = raw.get(TUNING, {})
    policy = {name: value for name, value in tuning.items() if name in policy_keys}
    own = read_values(PolicySettings, policy, source, place)
    return WorkloadSpec(
        kind=Kind.LRA, objective=objective, sli=sli, policy=tuple(sorted(own.items())), **values
    )


def _check_latency_is_measured(values: Mapping[str, Any], sli: SliSpec | None, source: str, key: str) -> None:
    limit = f"{values['max_latency_ms']:g} cannot be judged"
    if sli is None:
        problem = f"{limit}: no latency is measured without [lra.sli]"
        raise ConfigError(source, key, problem, "max_latency_ms together with [lra.sli]")
    wanted = values.get("latency_percentile", Objective().latency_percentile)
    measured = measured_percentiles(sli)
    if wanted in measured:
        return
    problem = f"{limit}: the source {sli.source} measures no latency as it is configured"
    allowed = 'latency = "tcp" in [lra.sli], or a source that measures latency'
    if sli.source == "prometheus":
        problem = f"{limit}: [lra.sli] names no metric for {wanted}"
        allowed = f"latency_{wanted} or latency_histogram in [lra.sli]"
    raise ConfigError(source, key, problem, allowed)


def _check_version_from(value: str, source: str, key: str) -> None:
    kind, colon, rest = value.partition(":")
    fits = (
        value in ("auto", "none") or (kind == "file" and rest.startswith("/")) or (kind == "label" and rest)
    )
    if not fits or "\0" in value or len(value) > MAX_VERSION_FROM or (colon and kind in ("auto", "none")):
        raise ConfigError(source, key, f"{show(value)} does not name a source of versions", VERSION_FROM)


def _placed(values: dict[str, Any], source: str, key: str) -> dict[str, Any]:
    """The values, after checking that exactly one of ``cgroup`` and ``match`` is given."""
    if "cgroup" not in values and "match" not in values:
        raise ConfigError(source, f"{key}.cgroup", "is missing", "cgroup, or match")
    if "cgroup" in values and "match" in values:
        problem = "is redundant: cgroup already names the control group"
        raise ConfigError(source, f"{key}.match", problem, "one of cgroup and match")
    if "match" in values and parse_match(values["match"]).is_many and len(values["name"]) > MAX_BASE:
        problem = f"{show(values['name'])} is too long: the names of its matches begin with it"
        raise ConfigError(source, f"{key}.name", problem, f"at most {MAX_BASE} characters with this match")
    return {"cgroup": "", **values}


def check_workloads(declared: Sequence[Declared]) -> None:
    """Check that names and cgroups are unique, and that no cgroup is inside another workload's.

    Raises:
        ConfigError: at the second of two workloads in conflict.
    """
    names: dict[str, Declared] = {}
    cgroups: dict[str, Declared] = {}
    for item in declared:
        spec = item.spec
        if (other := names.get(spec.name)) is not None:
            raise ConfigError(
                item.source,
                f"{item.key}.name",
                f"{spec.name!r} is already the name of {_where(other, item)}",
                "a name that no other workload has",
            )
        names[spec.name] = item
        if not spec.cgroup:
            continue  # its group is found at run time, and is compared with the other workloads' groups then
        for path, other in cgroups.items():
            if (relation := relation_of(spec.cgroup, path)) is not None:
                raise ConfigError(
                    item.source,
                    f"{item.key}.cgroup",
                    f"{spec.cgroup!r} {relation} of workload {other.spec.name!r} ({_where(other, item)})",
                    "a cgroup that no other workload has, contains or lies in",
                )
        cgroups[spec.cgroup] = item


def is_inside(cgroup: str, ancestor: str) -> bool:
    """True if ``cgroup`` lies strictly below ``ancestor``."""
    return cgroup.startswith(ancestor.rstrip("/") + "/") and cgroup != ancestor


def read_runtime(state_dir: str) -> tuple[Declared, ...]:
    """Workloads added at run time that survive a restart; none if there is no such file.

    Raises:
        ConfigError: the file exists and cannot be read or understood.
    """
    path = f"{state_dir}/{RUNTIME_FILE}"
    try:
        with open(path, "rb") as file:
            raw = tomllib.loads(file.read().decode())
    except FileNotFoundError:
        return ()
    except OSError as exc:
        raise ConfigError(path, "", f"cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise ConfigError(path, "", f"is not TOML: {exc}") from exc
    for name in raw:
        if name not in WORKLOAD_TABLES:
            raise ConfigError(path, name, "this file may contain only workloads", "[[lra]], [[batch]]")
    return read_workloads(_lasting(raw), path)


def _lasting(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Omit matches of processes, which an earlier version may have stored: they must not prevent a start."""

    def lasts(table: object) -> bool:
        return not (isinstance(table, Mapping) and str(table.get("match", "")).startswith("pid:"))

    return {
        name: [table for table in tables if lasts(table)] if isinstance(tables, list) else tables
        for name, tables in raw.items()
    }


def write_runtime(state_dir: str, specs: Iterable[WorkloadSpec]) -> None:
    """Replace the workloads added at run time, atomically: after a crash, the old or the new file exists.

    Raises:
        ConfigError: the state directory cannot be written.
    """
    text = "# Workloads added with perphctl. perphd writes this file; declare lasting ones in /etc/perphd.\n"
    text += "".join(f"\n{to_toml(spec)}" for spec in specs)
    replace_text(Path(state_dir) / RUNTIME_FILE, text)


def remember_runtime(state_dir: str, spec: WorkloadSpec) -> None:
    """Store a workload added at run time, replacing one of the same name, so that it survives restarts.

    A match of a process is not stored: see ``is_lasting``.

    Raises:
        ConfigError: the file cannot be read or written.
    """
    if spec.match and not is_lasting(spec.match):
        return
    others = [item.spec for item in read_runtime(state_dir) if item.spec.name != spec.name]
    write_runtime(state_dir, [*others, spec])


def forget_runtime(state_dir: str, name: str) -> bool:
    """Remove a workload added at run time; False if there is none (it is then declared in a file).

    Raises:
        ConfigError: the file cannot be read or written.
    """
    before = read_runtime(state_dir)
    kept = [item.spec for item in before if item.spec.name != name]
    if len(kept) == len(before):
        return False
    write_runtime(state_dir, kept)
    return True


def to_table(spec: WorkloadSpec) -> dict[str, Any]:
    """The table that reads back as this workload: keys as in a file, default values omitted."""
    table, tuning = dict[str, Any](), dict[str, Any]()
    for key in keys_of(WORKLOAD_TABLES[spec.kind]):
        owner = spec.objective if hasattr(spec.objective, key.field) else spec
        value = getattr(owner, key.field)
        if key.required or value != key.default:
            (tuning if key.expert else table)[key.name] = file_value(key, value)
    if spec.sli is not None:
        table["sli"] = {"source": spec.sli.source, **dict(spec.sli.options)}
    if tuning or spec.policy:
        table[TUNING] = tuning | dict(spec.policy)
    return table


def to_toml(spec: WorkloadSpec) -> str:
    """The workload as a TOML table."""
    table = to_table(spec)
    subtables = {name: table.pop(name) for name in ("sli", TUNING) if name in table}
    if spec.sli is not None:
        subtables["sli"] = {k: plain_value(spec.sli.source, k, v) for k, v in subtables["sli"].items()}
    lines = [f"[[{spec.kind}]]", *(f"{name} = {_literal(value)}" for name, value in table.items())]
    for title, subtable in subtables.items():
        lines.append(f"[{spec.kind}.{title}]")
        lines += [f"{name} = {_literal(value)}" for name, value in subtable.items()]
    return "\n".join(lines) + "\n"


def _literal(value: str | int | float) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        escaped = "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped)
        return f'"{escaped}"'
    return repr(value)


def _read_sli(raw: object, source: str, key: str) -> SliSpec:
    if not isinstance(raw, Mapping):
        raise ConfigError(source, key, f"{show(raw)} is not a table", "a table [lra.sli] with a key source")
    options: dict[str, str] = {}
    for name, value in raw.items():
        if not isinstance(value, str | int | float):
            problem = f"{show(value)} is not a plain value"
            raise ConfigError(source, f"{key}.{name}", problem, "text, a number, true, false")
        options[str(name)] = str(value).lower() if isinstance(value, bool) else str(value)
    if "source" not in options:
        raise ConfigError(source, f"{key}.source", "is missing", "the name of an SLI source")
    try:
        return validate_options(options.pop("source"), options)
    except ConfigError as exc:
        raise ConfigError(source, f"{key}.{exc.key}" if exc.key else key, exc.problem, exc.allowed) from exc
    except PerphError as exc:
        raise ConfigError(source, key, str(exc)) from exc


def relation_of(cgroup: str, other: str) -> str | None:
    """The conflict of two control groups in words; None if there is none."""
    if cgroup == other:
        return "is also the cgroup"
    if is_inside(cgroup, other):
        return "is inside the cgroup"
    if is_inside(other, cgroup):
        return "contains the cgroup"
    return None


def _where(other: Declared, item: Declared) -> str:
    return other.key if other.source == item.source else f"{other.key} in {other.source}"
