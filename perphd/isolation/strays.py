"""Giving back what is on record in other state directories than the configured one: nobody else would.

``daemon.state_dir`` was changed, or the configuration cannot be read: the register says where to look.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from perphd.domain.errors import PerphError
from perphd.host.cgroup import Hierarchies
from perphd.host.fs import KernelFs
from perphd.isolation.journal import FILE
from perphd.isolation.register import Register, open_originals
from perphd.isolation.restore import restore
from perphd.isolation.restore_report import FileReport, RestoreReport


def restore_each(
    fs: KernelFs, state_dirs: Sequence[str], force: bool = False, ignore_lock: bool = False
) -> RestoreReport:
    """``restore`` of every one of these state directories, as one report.

    One whose journal is in use, or cannot be read, is a failure among the others.

    Raises:
        PerphError: it is the only one, and its journal is in use or cannot be read.
    """
    if len(state_dirs) == 1:
        return restore(fs, state_dirs[0], force, ignore_lock=ignore_lock)
    reports: list[RestoreReport] = []
    for state_dir in state_dirs:
        try:
            reports.append(restore(fs, state_dir, force, ignore_lock=ignore_lock))
        except PerphError as exc:
            failed = FileReport(str(Path(state_dir, FILE)), "", "journal", "", note=str(exc))
            reports.append(RestoreReport(failed=(failed,), notes=(str(exc),)))
    return RestoreReport(
        tuple(file for report in reports for file in report.restored),
        tuple(file for report in reports for file in report.already),
        tuple(file for report in reports for file in report.gone),
        tuple(file for report in reports for file in report.foreign),
        tuple(file for report in reports for file in report.failed),
        tuple(note for report in reports for note in report.notes),
    )


def strays(
    state_dir: str,
    config: str,
    hierarchies: Hierarchies,
    cgroups: Collection[str],
    register: Register | None = None,
) -> tuple[str, ...]:
    """Other state directories with something on record that is this perphd's to give back before it begins.

    Of perphds with the same configuration file, or with something in a control group that is to be enforced. What a
    perphd with other groups and another configuration keeps is its own business.
    """
    directories = tuple(f"{h.path(cgroup)}/" for cgroup in cgroups for h in hierarchies.all())
    register = Register() if register is None else register
    same = register.of_config(config) if config else ()
    found: list[str] = []
    for entry in register.others(state_dir):
        paths: Iterable[str] = open_originals(entry.state_dir)
        if paths and (entry.state_dir in same or any(path.startswith(directories) for path in paths)):
            found.append(entry.state_dir)
    return tuple(found)
