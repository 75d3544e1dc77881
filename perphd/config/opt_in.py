"""Workloads that declare themselves: in their unit's own files, or by labels and annotations of their containers.

Their keys are read like those of a ``[[lra]]`` or ``[[batch]]`` table, with the same refusals. Fewer keys are accepted:
the operator permits each kind in ``[opt_in]``, and some keys are reserved for the operator in any case.

* A unit's files in the system's folders belong to root: anybody who can write them can run commands as root anyway.
  Even so, only the operator may set keys that rank a workload above others (``priority``, ``mode``, floors of batch,
  other bands) and keys that name commands for perphd to run.
* Anyone who may start a container or a pod can write labels and annotations, without rights on the host. They cannot
  make perphd read a file or open a connection, and cannot ask for more than the defaults. In Kubernetes the pod is the
  workload, with all of its containers; keys may be written with dashes there (``perphd.io/tolerance-pct``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from perphd.config.match import MatchKind, instance_name, named, parse_match
from perphd.config.schema import TUNING, Key, keys_of, read_value, setting, show, unknown_key
from perphd.config.tables import OptInConfig
from perphd.config.workloads import WORKLOAD_TABLES, read_workload
from perphd.domain.errors import ConfigError, ParseError
from perphd.domain.workload import LABEL_PREFIX, Kind, Mode, Objective, WorkloadSpec
from perphd.host.fs import KernelFs
from perphd.host.lookup import Container, LocalPod, Lookup
from perphd.host.unit_sections import UnitSection, UnitSections

SECTION: Final = "X-Perphd"
DECLARATION: Final = "[opt_in]"
"""Replaces the name of the declaration for workloads that declare themselves. No workload can have this name."""
_LATENCY_DECLARATION: Final = f"[{TUNING}.opt_in]"
MAX_BYTES: Final = 4096
"""Maximum length of a value in characters."""
_BOTH: Final = {
    Kind.LRA: ("kind", "band", "mode", "class", "tolerance_pct", "delay_tolerance_pct", "latency_percentile"),
    Kind.BATCH: ("kind", "band", "mode"),
}
"""Keys that every workload may set for itself."""
_LATENCY: Final = "max_latency_ms"
_UNITS_TOO: Final = {Kind.LRA: ("min_work_rate_per_s", _LATENCY, "sli"), Kind.BATCH: ()}
"""Keys that a unit may set as well."""
_CONTAINERS_TOO: Final = {Kind.LRA: (_LATENCY,), Kind.BATCH: ()}
"""Keys that a container or pod may set as well."""
_LATENCY_SOURCE: Final = "tcp"
"""SLI source for the latency that a container asks for: it only observes, and needs no account or address."""
_NOT_THE_UNIT: Final = ("command",)
"""SLI sources accepted only in configuration files, because there an operator sees what perphd runs as root."""
_OF_LRA: Final = frozenset(_BOTH[Kind.LRA]) - frozenset(_BOTH[Kind.BATCH]) | {_LATENCY}
"""Keys that only an LRA has: a pod that sets one of them is an LRA."""
_USUAL_BAND: Final = {Kind.LRA: "silver", Kind.BATCH: "copper"}
_ELSEWHERE: Final = frozenset({"band"})
"""Keys for a cluster's scheduler; on their own they declare no workload to this host."""
_KEY: Final = re.compile(r"[A-Za-z0-9._-]{1,63}", re.ASCII)
_NUMBER: Final = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,62}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Offer:
    """A workload that declares itself. ``problem``: why it is refused (then without ``spec``). ``who``: its display
    name.
    """

    who: str
    cgroup: str
    spec: WorkloadSpec | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Origin:
    """A place of declarations: the keys accepted there, and its names in messages."""

    table_key: str
    kinds: tuple[Kind, ...]
    bands: tuple[str, ...]
    is_unit: bool
    noun: str
    least_latency_ms: float = 0.0

    def keys(self, kind: Kind) -> tuple[str, ...]:
        return _BOTH[kind] + (_UNITS_TOO if self.is_unit else _CONTAINERS_TOO)[kind]


@dataclass(frozen=True, slots=True)
class _Head:
    kind: Kind = setting(doc="lra or batch")


class OptIn:
    """Finds workloads of one host that declare themselves."""

    def __init__(self, fs: KernelFs, lookup: Lookup) -> None:
        self._lookup = lookup
        self._sections = UnitSections(fs, SECTION)

    def offers(self, config: OptInConfig) -> Iterator[Offer]:
        """Declarations of running workloads: units ordered by path, then containers."""
        self._sections.look_anew()
        if config.units:
            for unit, cgroup in sorted(self._lookup.units(), key=lambda item: item[1]):
                if unit.endswith((".service", ".slice", ".scope")) and (section := self._sections.of(unit)):
                    yield _of_unit(section, cgroup, config)
        if config.containers:
            pods = {pod.cgroup for pod in self._lookup.pods()}
            items: list[Container | LocalPod] = [*self._lookup.pods()]
            items += [
                each for each in self._lookup.containers() if each.pod not in pods and not each.is_sandbox
            ]
            for item in sorted(items, key=lambda item: item.cgroup):
                if said := _said(item.labels or {}):
                    yield _of_container(item, said, config)

    def remarks(self, config: OptInConfig) -> list[str]:
        """Mistakes in the sections of this host's units, running or not, even if perphd reads no units."""
        self._sections.look_anew()
        found: list[str] = []
        for unit in self._sections.units():
            if (section := self._sections.of(unit)) is None:
                continue
            if config.units:
                found += filter(None, (_of_unit(section, f"/{unit}", config).problem,))
            else:
                found.append(
                    f"{unit} declares itself in {section.last}, which is not read: units is empty in {DECLARATION}"
                )
        return found


def _of_unit(section: UnitSection, cgroup: str, config: OptInConfig) -> Offer:
    origin = _Origin("units", config.unit_kinds, config.more_bands, is_unit=True, noun="unit")
    unit, places = section.unit, section.assigned
    kept = "drop-in" if section.is_drop_in else "file"
    spec = WorkloadSpec(
        _unit_name(unit, cgroup), Kind.BATCH, cgroup, match=f"{MatchKind.UNIT}:{unit}",
        declared_by=f"the unit's {kept} {section.last}",
    )  # fmt: skip

    def place(key: str) -> tuple[str, str]:
        at = places.get(key)
        return (f"{at.path}:{at.line}" if at else section.last), f"{SECTION}.{key}"

    if section.odd:
        line = section.odd[0]
        refused = ConfigError(
            f"{line.path}:{line.line}", SECTION, f"{show(line.value)} assigns nothing", "KEY=VALUE"
        )
        return Offer(unit, cgroup, problem=str(refused))
    return _offer(unit, spec, {key: item.value for key, item in places.items()}, origin, place)


def _of_container(item: Container | LocalPod, written: Mapping[str, str], config: OptInConfig) -> Offer:
    noun = "pod" if isinstance(item, LocalPod) else "container"
    origin = _Origin(
        "containers",
        config.container_kinds,
        config.more_bands,
        is_unit=False,
        noun=noun,
        least_latency_ms=config.least_latency_ms,
    )
    who = f"{noun} {show(item.name)}"
    spec = WorkloadSpec(
        instance_name(noun, (item.name,), item.identity), Kind.BATCH, item.cgroup,
        match=_container_match(item.name), declared_by=f"labels or annotations of {who}",
    )  # fmt: skip
    said: dict[str, str] = {}
    shown: dict[str, str] = {}
    for name, value in sorted(written.items()):
        key = name.replace("-", "_")
        if said.setdefault(key, value) != value:
            where = f"{LABEL_PREFIX}{_where(name)}"
            refused = ConfigError(who, where, f"contradicts {shown[key]}", "one of the two")
            return Offer(who, item.cgroup, problem=str(refused))
        shown[key] = f"{LABEL_PREFIX}{_where(name)}"
    return _offer(who, spec, said, origin, lambda key: (who, shown.get(key, f"{LABEL_PREFIX}{key}")))


def _offer(
    who: str,
    place_of: WorkloadSpec,
    said: Mapping[str, str],
    origin: _Origin,
    place: Callable[[str], tuple[str, str]],
) -> Offer:
    """The offer of ``who``. ``place_of``: its name, control group and match; ``place``: source and path of a key."""
    try:
        spec = read_declaration(said, origin)
    except ConfigError as exc:
        source, where = place(exc.key)
        return Offer(who, place_of.cgroup, problem=str(ConfigError(source, where, exc.problem, exc.allowed)))
    taken = replace(
        spec,
        name=place_of.name,
        cgroup=place_of.cgroup,
        match=place_of.match,
        declared_by=place_of.declared_by,
    )
    return Offer(who, place_of.cgroup, taken)


def read_declaration(said: Mapping[str, str], origin: _Origin) -> WorkloadSpec:
    """The workload that the keys describe, without its control group.

    Raises:
        ConfigError: a key or value is refused. The error names the key, but no file.
    """
    kind = _kind(said, origin)
    table: dict[str, Any] = {"name": "x", "cgroup": "/x"}
    if not origin.is_unit and _LATENCY in said:
        table["sli"] = {"source": _LATENCY_SOURCE}
    keys = {key.name: key for key in keys_of(WORKLOAD_TABLES[kind])}
    accepted = origin.keys(kind)
    tuning: dict[str, Any] = {}
    for name, value in said.items():
        head, dot, option = name.partition(".")
        where = _where(name)
        if name == "sli" and name in accepted:
            raise ConfigError("", where, "is a table", "sli.source, sli.OPTION")
        if head not in accepted or (dot and head != "sli"):
            if name in keys or head in ("sli", TUNING):
                raise ConfigError("", where, _reserved(origin), ", ".join(_shown(accepted)))
            raise unknown_key("", where, name, _shown(accepted))
        if len(value) > MAX_BYTES:
            raise ConfigError("", where, "is too long", f"at most {MAX_BYTES} characters")
        if dot:
            table.setdefault("sli", {})[option] = value
        elif head != "kind":
            (tuning if keys[head].expert else table)[head] = _typed(keys[head], value)
    if tuning:
        table[TUNING] = tuning
    try:
        spec = read_workload(kind, table, "", "-")
    except ConfigError as exc:
        key = exc.key.removeprefix("-.").removeprefix(f"{TUNING}.")
        raise ConfigError("", key, exc.problem, exc.allowed) from exc
    _check_grants(spec, origin)
    return spec


def _kind(said: Mapping[str, str], origin: _Origin) -> Kind:
    (key,) = keys_of(_Head)
    if "kind" not in said and not origin.is_unit and said.keys() & _OF_LRA:
        said = {**said, "kind": Kind.LRA}
    if "kind" not in said:
        known = origin.keys(Kind.LRA)
        if (name := next((name for name in said if name.partition(".")[0] not in known), None)) is not None:
            raise unknown_key("", _where(name), name, _shown(known))
        raise ConfigError("", "kind", "is missing", key.allowed)
    kind: Kind = read_value(key, said["kind"], "", "kind")
    if kind not in origin.kinds:
        allowed = ", ".join(f'"{each}"' for each in origin.kinds)
        raise ConfigError(
            "", "kind", f"{show(str(kind))} is not allowed by {origin.table_key} in {DECLARATION}", allowed
        )
    return kind


def _check_grants(spec: WorkloadSpec, origin: _Origin) -> None:
    """Refuse every key that would give a workload more than the operator allows."""
    usual = _USUAL_BAND[spec.kind]
    if spec.band not in (None, usual, *origin.bands):
        allowed = ", ".join(f'"{band}"' for band in (usual, *origin.bands))
        raise ConfigError("", "band", f"{show(spec.band)} is not allowed by bands in {DECLARATION}", allowed)
    if spec.mode is Mode.ENFORCE:
        raise ConfigError("", "mode", "'enforce' is reserved for the operator", f'"{Mode.OBSERVE}"')
    if spec.sli is not None and spec.sli.source in _NOT_THE_UNIT:
        problem = f"{show(spec.sli.source)} runs as root: it is accepted only in a file of the configuration"
        raise ConfigError("", "sli.source", problem, "another source")
    if origin.is_unit:
        return
    asked_ms, least_ms = spec.objective.max_latency_ms, origin.least_latency_ms
    if asked_ms is not None and not least_ms:
        problem = f"may not be set by a {origin.noun}: least_latency_ms is 0 in {_LATENCY_DECLARATION}"
        raise ConfigError("", _LATENCY, problem, "only with the operator's consent")
    if asked_ms is not None and asked_ms < least_ms:
        problem = f"{asked_ms:g} is less than least_latency_ms allows in {_LATENCY_DECLARATION}"
        raise ConfigError("", _LATENCY, problem, f"{least_ms:g} or more")
    for item in fields(Objective):
        usually, asked = getattr(Objective(), item.name), getattr(spec.objective, item.name)
        if item.name.endswith("tolerance_pct") and asked < usually:
            problem = f"{asked:g} is stricter than the default, which is reserved for the operator"
            raise ConfigError("", item.name, problem, f"{usually:g} or more")


def _reserved(origin: _Origin) -> str:
    return f"may not be set by a {origin.noun}: it belongs in the operator's configuration"


def _where(name: str) -> str:
    """A key as a refusal shows it, made safe, because the author of a container's labels chooses its characters."""
    return name if _KEY.fullmatch(name) else show(name)


def _shown(keys: tuple[str, ...]) -> list[str]:
    return [key if key != "sli" else "sli.source" for key in dict.fromkeys(keys)]


def _typed(key: Key, text: str) -> str | int | float:
    """The value as TOML would read it. Text that is not a number stays text, which the reader then refuses."""
    if key.type_name in ("number", "integer") and _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return text


def _said(labels: Mapping[str, str]) -> dict[str, str]:
    """Keys for perphd; empty if there are only keys for a scheduler."""
    said = {
        key.removeprefix(LABEL_PREFIX): value for key, value in labels.items() if key.startswith(LABEL_PREFIX)
    }
    return said if said.keys() - _ELSEWHERE else {}


def _unit_name(unit: str, cgroup: str) -> str:
    """The unit's name, without the suffix ``.service``; made fit for a workload's name if needed."""
    name = unit.removesuffix(".service")
    return name if _NAME.fullmatch(name) else instance_name("unit", (unit,), cgroup)


def _container_match(name: str) -> str:
    """The match that finds a recreated container; empty if its name would match other containers, too."""
    try:
        match = parse_match(named(name))
    except ParseError:
        return ""
    return "" if match.is_many else str(match)
