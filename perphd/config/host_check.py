"""Checks the configuration against its host: perphd's own cgroup is refused, a missing one is only reported."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perphd.config.workloads import is_inside
from perphd.domain.errors import ConfigError
from perphd.domain.workload import WorkloadSpec
from perphd.host.cgroup.hierarchy import Hierarchies, own_cgroups
from perphd.host.fs import KernelFs

if TYPE_CHECKING:
    from perphd.config.file import Config

_CATALOGUE = 5000  # groups searched for suggestions


def remarks(config: Config) -> list[str]:
    """Remarks on a valid configuration, given its host.

    A simulated host starts from the configuration, so this machine is not examined.
    """
    from perphd.config.file import nothing_to_do
    from perphd.host.cgroup.hierarchy import discover
    from perphd.host.fs import RealFs

    gap = nothing_to_do(config)
    found = [*config.warnings, *([gap] if gap else ()), *_files_missing(config)]
    if config.contention.links and not config.network.names:
        found.append("contention.devices has no links to watch: name them in network.devices")
    if config.host.kind == "simulated":
        return found
    fs = RealFs(config.host.root)
    return found + check_everything(config, fs, discover(fs))


def check_everything(config: Config, fs: KernelFs, hierarchies: Hierarchies) -> list[str]:
    """The warnings of ``check_against_host``, and mistakes in the declarations of all units (``OptIn.remarks``)."""
    from perphd.config.opt_in import OptIn
    from perphd.host.lookup import Lookup

    warnings = check_against_host(config, fs, hierarchies)
    said = " ".join(warnings)
    more = OptIn(fs, Lookup(fs, hierarchies)).remarks(config.opt_in)
    return warnings + [remark for remark in more if remark not in said]


def check_against_host(config: Config, fs: KernelFs, hierarchies: Hierarchies) -> list[str]:
    """Check all workloads of a configuration; returns warnings.

    Includes workloads whose control groups must be found. Raises ConfigError as ``check_workloads_on_host`` does.
    """
    source = config.sources[0] if config.sources else "configuration"
    warnings = check_workloads_on_host(config.workloads, fs, hierarchies, source)
    if config.matches or config.opt_in.is_on:
        from perphd.config.discovery import Discovery
        from perphd.host.lookup import Lookup

        found = Discovery(fs, Lookup(fs, hierarchies)).look(config.matches, config.workloads, config.opt_in)
        warnings += [*found.problems.values(), *found.overruled]
    return warnings


def check_workloads_on_host(
    workloads: Sequence[WorkloadSpec], fs: KernelFs, hierarchies: Hierarchies, source: str
) -> list[str]:
    """Check the workloads against the host. Returns a sentence for every missing control group.

    Raises:
        ConfigError: perphd itself runs in or below a workload's cgroup, in any hierarchy. It would then
            demote itself, and its measurements would include itself.
    """
    own = own_cgroups(fs)
    warnings = []
    for spec in workloads:
        if not spec.cgroup:
            continue  # found and checked at run time
        for hierarchy, path in own:
            if path == spec.cgroup or is_inside(path, spec.cgroup):
                raise ConfigError(
                    source,
                    f"{spec.kind} {spec.name}: cgroup",
                    f"{spec.cgroup!r} contains perphd itself (it runs in {path} of {hierarchy})",
                    "a cgroup that perphd does not run in",
                )
        if not hierarchies.directories(fs, spec.cgroup):
            warnings.append(_missing(spec, fs, hierarchies))
    return warnings


def _files_missing(config: Config) -> list[str]:
    """Files of this machine without which notices or metrics are lost."""
    found = []
    for receiver in config.notify:
        program = receiver.argv[0] if receiver.command else ""
        if program and not _may_be(program, stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH):
            found.append(f"notify {receiver.name!r}: {program} is not a program; its notices are lost")
        token = receiver.bearer_token_file
        if token and not _may_be(token):
            found.append(f"notify {receiver.name!r}: {token} does not exist; its notices are lost")
    path = config.metrics.textfile
    if path and not path.endswith(".prom"):
        found.append(f"metrics.textfile: {path} does not end in .prom; node_exporter reads no other files")
    if path and not _may_be(os.path.dirname(path)):
        found.append(f"metrics.textfile: {os.path.dirname(path)} does not exist; nothing is written")
    return found


def _may_be(path: str, modes: int = ~0) -> bool:
    """Whether a file exists with one of the modes, as far as this user can tell."""
    try:
        return bool(os.stat(path).st_mode & modes)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _missing(spec: WorkloadSpec, fs: KernelFs, hierarchies: Hierarchies) -> str:
    # The search walks whole trees, so it runs only if a group is missing.
    from perphd.host.catalogue import list_cgroups, suggest

    close = suggest(spec.cgroup, list_cgroups(fs, hierarchies, _CATALOGUE))
    hint = f" (did you mean {' or '.join(close)}?)" if close else ""
    return f"{spec.kind} {spec.name!r}: cgroup {spec.cgroup} does not exist{hint}; perphd waits for it"
