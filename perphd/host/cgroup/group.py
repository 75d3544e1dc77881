"""One control group over all mounted hierarchies: existence, identity, members, and available settings.

Reading and naming only; only ``perphd.isolation`` writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from posixpath import basename, dirname
from typing import Protocol, runtime_checkable

from perphd.domain.allocation import KEEP, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Gone, KernelError, ParseError
from perphd.host.cgroup import lines
from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy, check_cgroup_path
from perphd.host.cgroup.knobs import (
    BFQ_WEIGHT,
    CONTROLLERS,
    FILES,
    NOT_ON_V1,
    OPTIONAL_FILES,
    RESCTRL_SETTINGS,
    Value,
    check_egress,
    check_latencies,
    check_limits,
    cpu_max_text,
    cpus_text,
    faint_weight_text,
    frozen_text,
    io_weight,
    memory_text,
    quota_us,
    weight_text,
)
from perphd.host.containers import in_kubernetes
from perphd.host.fs import KernelFs, read_text, text_or_empty

BLOCK_DEVICES = "/sys/block"
_CPUS = "/sys/devices/system/cpu"
_PARTITIONS = ("root", "isolated")
"""Texts of ``cpuset.cpus.partition`` of a valid partition root."""
RESCTRL_ABSENT = (
    "cache ways and memory bandwidth are not set through cgroups: this needs resctrl "
    "(a bare-metal host with Intel RDT or AMD PQoS)"
)


EGRESS_ABSENT = (
    "network egress is limited only with a cgroup v2 hierarchy (mount cgroup2; beside v1 as a hybrid), on this "
    "machine's own kernel"
)


@runtime_checkable
class Explains(Protocol):
    """File systems that can explain why a file is missing."""

    def why_absent(self, path: str) -> str:
        """The reason; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Knob:
    """The files of one setting in one cgroup. ``paths``: absolute, the leading file first."""

    setting: str
    version: int
    directory: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RawWrite:
    """One file, and the text that expresses the wanted setting in it."""

    setting: str
    path: str
    value: str


class Cgroups:
    """The control groups of a host."""

    def __init__(self, fs: KernelFs, hierarchies: Hierarchies) -> None:
        self._fs, self._hierarchies = fs, hierarchies
        self._weight_files: dict[str, str] = {}

    def look_at_disks(self) -> None:
        """Discard the cached choice of ``io_weight_file``, which is otherwise made once for all groups."""
        self._weight_files.clear()

    def group(self, path: str) -> Cgroup:
        """The cgroup of this path (``/system.slice/x.service``), whether it exists or not.

        Raises:
            ParseError: not a safe cgroup path.
        """
        return Cgroup(self._fs, self._hierarchies, check_cgroup_path(path), self._weight_files)


class Cgroup:
    """One cgroup path. It holds no descriptors and no state: every call reads the kernel.

    ``weight_files``: cache of ``io_weight_file`` by hierarchy, shared with other groups.
    """

    def __init__(
        self, fs: KernelFs, hierarchies: Hierarchies, path: str, weight_files: dict[str, str] | None = None
    ) -> None:
        self._fs, self._hierarchies, self.path = fs, hierarchies, path
        self._weight_files: dict[str, str] = {} if weight_files is None else weight_files

    def exists(self) -> bool:
        """True if the group exists in at least one hierarchy."""
        for hierarchy in self._hierarchies.all():  # noqa: SIM110 (asked for every workload at every plan)
            if self._fs.exists(hierarchy.path(self.path)):
                return True
        return False

    def directories(self) -> tuple[str, ...]:
        """Its directories in all hierarchies; empty if it does not exist."""
        return self._hierarchies.directories(self._fs, self.path)

    def identity(self) -> tuple[tuple[str, int, int], ...]:
        """(directory, device, inode) in every hierarchy; it changes if the cgroup is recreated under the same
        name.
        """
        found: list[tuple[str, int, int]] = []
        for hierarchy in self._hierarchies.all():
            directory = hierarchy.path(self.path)
            try:
                found.append((directory, *self._fs.identity(directory)))
            except Gone:
                continue
        return tuple(found)

    def procs(self) -> frozenset[int]:
        """Process ids in the group and its descendants over all hierarchies, kernel threads included."""
        return frozenset(self._ids({1: "cgroup.procs", 2: "cgroup.procs"}))

    def threads(self) -> frozenset[int]:
        """Thread ids in the group and its descendants over all hierarchies."""
        return frozenset(self._ids({1: "tasks", 2: "cgroup.threads"}))

    def _ids(self, names: Mapping[int, str]) -> Iterator[int]:
        for hierarchy in self._hierarchies.all():
            top = hierarchy.path(self.path)
            for directory in (top, *descendants(self._fs, top)):
                try:
                    text = read_text(self._fs, f"{directory}/{names[hierarchy.version]}")
                except KernelError:
                    continue  # vanished meanwhile, or cgroup.procs of a threaded group (EOPNOTSUPP)
                yield from (int(word) for word in text.split())

    def knob(self, setting: str) -> Knob | str:
        """The files of this setting here, or the reason why it cannot be set.

        ``setting``: name of a field of ``Settings``; KeyError for any other.
        """
        if setting in RESCTRL_SETTINGS:
            return RESCTRL_ABSENT
        controller = CONTROLLERS[setting]
        hierarchy = self._hierarchies.of(controller)
        if hierarchy is None and setting == "egress_max":
            return EGRESS_ABSENT
        if hierarchy is None:
            return f"the {controller} controller is in no mounted cgroup hierarchy"
        if hierarchy.version == 1 and setting in NOT_ON_V1:
            return NOT_ON_V1[setting]
        directory = hierarchy.path(self.path)
        names = FILES[setting, hierarchy.version]
        if setting == "io_weight":
            if (file := self._weight_files.get(hierarchy.mount)) is None:
                file = self._weight_files[hierarchy.mount] = io_weight_file(self._fs, hierarchy)
            if file not in lines.FORMATS and file not in names:
                return file
            names = (file,)
        if setting == "cpu_weight" and in_kubernetes(self.path):
            # While a group is idle, the kernel refuses kubelet's writes of its weight: a resize of the pod would fail.
            names = tuple(name for name in names if name not in OPTIONAL_FILES)
        present = [name for name in names if self._fs.exists(f"{directory}/{name}")]
        missing = [name for name in names if name not in present and name not in OPTIONAL_FILES]
        if missing:
            return self._why_missing(hierarchy, controller, directory, missing[0])
        return Knob(setting, hierarchy.version, directory, tuple(f"{directory}/{name}" for name in present))

    def _why_missing(self, hierarchy: Hierarchy, controller: str, directory: str, file: str) -> str:
        if not self._fs.exists(directory):
            return f"{directory} does not exist"
        if isinstance(self._fs, Explains) and (reason := self._fs.why_absent(f"{directory}/{file}")):
            return reason
        if hierarchy.version == 2 and not _has_controller(self._fs, directory, controller):
            control = f"{dirname(directory)}/cgroup.subtree_control"
            return (
                f"{directory}/{file} does not exist: {control} does not enable the {controller} controller; "
                "enable it there, or through systemd if systemd manages that group"
            )
        return f"{directory}/{file} does not exist: this kernel was built without it"

    def enforceable(self) -> Mapping[str, str | None]:
        """Every field of ``Settings`` -> None if it can be set here, else the reason why not."""
        found = {field.name: self.knob(field.name) for field in fields(Settings)}
        return {name: knob if isinstance(knob, str) else None for name, knob in found.items()}

    def encode(self, settings: Settings) -> list[RawWrite]:
        """The files and texts for these settings here. KEEP and settings that cannot be set here are left
        out.

        Raises:
            ParseError: a value that the kernel would refuse or misinterpret.
            KernelError: a file that encoding needs (a CPU period) cannot be read.
        """
        writes: list[RawWrite] = []
        for setting in CONTROLLERS:
            target: Value = getattr(settings, setting)
            knob = self.knob(setting)
            if target is KEEP or isinstance(knob, str):
                continue
            now = {path: read_text(self._fs, path) for path in knob.paths}
            writes += [RawWrite(setting, path, text) for path, text in encode(knob, target, now).items()]
        return writes


def _has_controller(fs: KernelFs, directory: str, controller: str) -> bool:
    """True if the controller is enabled for this v2 group. A file that is still missing is not in this kernel."""
    if controller == "freezer":
        return True  # part of the core, not a controller
    try:
        return controller in read_text(fs, f"{directory}/cgroup.controllers").split()
    except KernelError:
        return False


def io_weight_file(fs: KernelFs, hierarchy: Hierarchy) -> str:
    """The weight file that takes effect on some disk of this host, or the reason why there is none.

    A weight takes effect on disks with the BFQ scheduler and, on v2, on disks with io.cost enabled.
    """
    schedulers = []
    with suppress(KernelError):
        for disk in fs.listdir(BLOCK_DEVICES):
            with suppress(KernelError):
                schedulers.append(read_text(fs, f"{BLOCK_DEVICES}/{disk}/queue/scheduler"))
    if any("[bfq]" in text for text in schedulers):
        return "blkio.bfq.weight" if hierarchy.version == 1 else BFQ_WEIGHT
    if hierarchy.version == 2:
        with suppress(KernelError):
            if "enable=1" in read_text(fs, f"{hierarchy.mount}/io.cost.qos"):
                return "io.weight"
    how = " and io.cost is not enabled in io.cost.qos" if hierarchy.version == 2 else ""
    return f"no disk has the BFQ scheduler{how}: a weight would have no effect"


def encode(knob: Knob, target: Value, now: Mapping[str, str]) -> dict[str, str]:
    """Texts by path for one setting. ``now``: present texts of the knob's files. ``target`` must not be KEEP.

    For IDLE only ``cpu.idle`` is written, because the kernel then sets the weight. Without that file, the
    lowest weight is written.

    Raises:
        ParseError: a value that the kernel would refuse or misinterpret.
    """
    lead = knob.paths[0]
    if isinstance(target, CpuSet):
        return {lead: cpus_text(target)}
    if knob.setting == "cpu_weight":
        return _encode_weight(knob, target)
    if knob.setting == "frozen":
        return {lead: frozen_text(bool(target), knob.version)}
    if knob.setting == "egress_max":
        return {lead: lines.with_egress(now.get(lead, ""), check_egress(target))}  # type: ignore[arg-type]
    if knob.setting.startswith("io_"):
        return _encode_io(knob, target, now)
    if knob.setting == "cpu_max_cores":
        cores = float(target)  # type: ignore[arg-type]
        if knob.version == 2:
            return {lead: cpu_max_text(cores, now[lead])}
        return {lead: str(quota_us(cores, int(now[knob.paths[1]])))}
    return {lead: memory_text(target)}  # type: ignore[arg-type]


def _encode_weight(knob: Knob, target: Value) -> dict[str, str]:
    weight, *idle = knob.paths
    if not isinstance(target, int):
        return {idle[0]: "1"} if idle else {weight: faint_weight_text(knob.version)}
    texts = {weight: weight_text(target, knob.version)}
    return {idle[0]: "0", **texts} if idle else texts


def _encode_io(knob: Knob, target: Value, now: Mapping[str, str]) -> dict[str, str]:
    """Texts by path for an I/O setting.

    ``now``: texts into which limits and targets of the named disks are merged; other disks keep theirs.
    """
    if knob.setting == "io_weight":
        path, file = knob.paths[0], basename(knob.paths[0])
        weight = io_weight(target, file)  # type: ignore[arg-type]
        keyed = file in lines.FORMATS
        return {path: lines.with_default(file, now.get(path, ""), weight) if keyed else str(weight)}
    if knob.setting == "io_max":
        limits = check_limits(target)  # type: ignore[arg-type]
        return {path: lines.with_limits(basename(path), now.get(path, ""), limits) for path in knob.paths}
    return {knob.paths[0]: lines.with_latency(now.get(knob.paths[0], ""), check_latencies(target))}  # type: ignore[arg-type]


def descendants(fs: KernelFs, directory: str) -> list[str]:
    """Directories of all descendant cgroups, parents before children; groups that vanish meanwhile are left out.

    Users of a delegated group may nest groups deeper than Python's limit on recursion.
    """
    found: list[str] = []
    waiting = [directory]
    while waiting:
        group = waiting.pop()
        if group != directory:
            found.append(group)
        try:
            names = fs.subdirectories(group)
        except KernelError:
            continue
        children = [f"{group}/{name}" for name in names]
        waiting += [child for child in reversed(children) if fs.exists(f"{child}/cgroup.procs")]
    return found


def partitions_in(fs: KernelFs, directory: str) -> dict[str, CpuSet]:
    """The CPUs of every valid partition root (``cpuset.cpus.partition``) among a v2 group's children, by directory.

    The kernel ends a partition as soon as a sibling's list contains one of its CPUs.
    """
    found: dict[str, CpuSet] = {}
    try:
        names = fs.subdirectories(directory)
    except KernelError:
        return found
    for name in names:
        child = f"{directory}/{name}"
        if text_or_empty(fs, f"{child}/cpuset.cpus.partition") in _PARTITIONS:
            cpus = CpuSet()
            for file in ("cpuset.cpus", "cpuset.cpus.exclusive.effective"):
                with suppress(ParseError):
                    cpus = cpus | CpuSet.parse(text_or_empty(fs, f"{child}/{file}"))
            found[child] = cpus
    return found


def parent_list(fs: KernelFs, path: str) -> str:
    """The parent's value for this ``cpuset.cpus`` or ``cpuset.mems``, as text; empty if unreadable.

    v2: the effective CPUs or nodes of the nearest ancestor with the controller. v1: the parent's own list,
    against which the kernel checks children.
    """
    parent, name = dirname(dirname(path)), basename(path)
    above = parent
    while above not in ("", "/"):
        with suppress(KernelError):
            return read_text(fs, f"{above}/{name}.effective")
        above = dirname(above)
    return text_or_empty(fs, f"{parent}/{name}")


def whole_list(fs: KernelFs, path: str) -> str:
    """The value that stands for "no list of its own" in a group with processes, as text; empty if unreadable.

    The parent's list and, on v2, the CPUs that are offline, because they may return; v1 refuses those.
    """
    around = parent_list(fs, path)
    return with_offline(fs, path, around) if fs.exists(f"{path}.effective") else around


def with_offline(fs: KernelFs, path: str, around: str) -> str:
    """This list with the CPUs that are offline, if it is a list of CPUs."""
    if basename(path) != "cpuset.cpus":
        return around
    try:
        cpus = CpuSet.parse(around)
        offline = CpuSet.parse(read_text(fs, f"{_CPUS}/possible")) - CpuSet.parse(
            read_text(fs, f"{_CPUS}/online")
        )
    except (KernelError, ParseError):
        return around
    if offline:
        for group, theirs in partitions_in(fs, dirname(dirname(path))).items():
            offline = offline if group == dirname(path) else offline - theirs
    return str(cpus | offline) if cpus and offline else around
