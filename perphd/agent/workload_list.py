"""Lists the workloads by name, the declarations by match, and the workloads found for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from perphd.config.opt_in import DECLARATION
from perphd.domain.errors import ConfigError
from perphd.domain.workload import Kind, WorkloadSpec


@dataclass(slots=True)
class FoundAs:
    """A found workload: its declaration, and the time at which it was last present."""

    declaration: str
    seen_s: float


class WorkloadList:
    """The list of workloads. ``WorkloadRegistry`` changes it, and restores workloads that leave it.

    Args:
        workloads: the configured workloads with a control group.
        matches: the configured declarations by match.
    """

    def __init__(self, workloads: Iterable[WorkloadSpec] = (), matches: Iterable[WorkloadSpec] = ()) -> None:
        self._specs = {spec.name: spec for spec in workloads}
        self._declared = {spec.name: spec for spec in matches}
        self._found: dict[str, FoundAs] = {}
        self._jobs: dict[str, WorkloadSpec] = {}

    # -- reading --------------------------------------------------------------------------------------

    @property
    def specs(self) -> Mapping[str, WorkloadSpec]:
        """The workloads with a control group, by name."""
        return self._specs

    @property
    def declared(self) -> Mapping[str, WorkloadSpec]:
        """Declarations by match, by name."""
        return self._declared

    @property
    def found(self) -> Mapping[str, FoundAs]:
        """The workloads that were found for declarations, by name."""
        return self._found

    @property
    def jobs(self) -> Mapping[str, WorkloadSpec]:
        """The workloads that the batch queue started, by name."""
        return self._jobs

    def all_specs(self) -> tuple[WorkloadSpec, ...]:
        """All workloads."""
        return tuple(self._specs.values())

    def not_found(self) -> list[WorkloadSpec]:
        """Declarations without any workload."""
        there = {known.declaration for known in self._found.values()}
        return [spec for name, spec in self._declared.items() if name not in there]

    def self_declared(self) -> list[tuple[str, WorkloadSpec]]:
        """Workloads that declared themselves."""
        return [(name, spec) for name, spec in self._specs.items() if spec.declared_by]

    def workload(self, name: str) -> WorkloadSpec:
        """The workload of this name. Raises ConfigError if there is none."""
        if (spec := self._specs.get(name)) is None:
            raise unknown_workload(name, self._specs)
        return spec

    def lra(self, name: str) -> WorkloadSpec:
        """The LRA of this name. Raises ConfigError if there is none."""
        spec = self._specs.get(name)
        if spec is None or spec.kind is not Kind.LRA:
            lras_here = ", ".join(s.name for s in self._specs.values() if s.kind is Kind.LRA)
            raise ConfigError("request", "workload", f"no LRA is named {name!r}", lras_here)
        return spec

    def found_for(self, declaration: str) -> tuple[str, ...]:
        """The names of the workloads found for a declaration."""
        return tuple(name for name, known in self._found.items() if known.declaration == declaration)

    def declaration_of(self, name: str) -> str | None:
        """The declaration for which a workload was found; None for all other workloads."""
        known = self._found.get(name)
        return None if known is None else known.declaration

    def application(self, name: str) -> str:
        """The name by which other hosts know a workload: that of the declaration for which it was found, if any."""
        declaration = self.declaration_of(name)
        return name if declaration is None or declaration == DECLARATION else declaration

    def denoted(self, name: str) -> tuple[str, ...]:
        """The workloads that a name denotes: the workload itself, or those found for a declaration.

        Raises:
            ConfigError: no workload and no declaration has this name.
        """
        if name in self._declared:
            return self.found_for(name)
        if name in self._specs:
            return (name,)
        raise self.unknown(name)

    def unknown(self, name: str) -> ConfigError:
        """The refusal of a name that no workload and no declaration has."""
        return unknown_workload(name, self._declared | self._specs)

    # -- changing -------------------------------------------------------------------------------------

    def put(self, spec: WorkloadSpec) -> None:
        """Add a workload, or replace the workload of the same name."""
        self._specs[spec.name] = spec

    def drop(self, name: str) -> None:
        """Remove a workload."""
        del self._specs[name]

    def replace_all(self, specs: Mapping[str, WorkloadSpec]) -> None:
        """Replace the workloads. Workloads without a successor in ``specs`` stay, after the others."""
        self._specs = {**specs, **{name: spec for name, spec in self._specs.items() if name not in specs}}

    def declare(self, spec: WorkloadSpec) -> None:
        """Add a declaration by match, or replace the declaration of the same name."""
        self._declared[spec.name] = spec

    def withdraw(self, name: str) -> bool:
        """Remove a declaration; its workloads stay. Returns False if there is none of this name."""
        return self._declared.pop(name, None) is not None

    def redeclare(self, declared: Mapping[str, WorkloadSpec]) -> None:
        """Replace all declarations."""
        self._declared = dict(declared)

    def note_found(self, name: str, declaration: str, now_s: float) -> None:
        """Note that a declaration's workload is present."""
        self._found[name] = FoundAs(declaration, now_s)

    def forget_found(self, names: Collection[str]) -> None:
        """Forget for which declarations these workloads were found."""
        self._found = {name: known for name, known in self._found.items() if name not in names}

    def put_job(self, spec: WorkloadSpec) -> None:
        """Note that the batch queue started this workload."""
        self._jobs[spec.name] = spec

    def drop_job(self, name: str) -> bool:
        """Forget a job. Returns False if no job has this name."""
        return self._jobs.pop(name, None) is not None


def unknown_workload(name: str, known: Iterable[str]) -> ConfigError:
    """The refusal of a name that no workload has. ``known``: the names that are allowed."""
    return ConfigError("request", "workload", f"no workload is named {name!r}", ", ".join(known))
