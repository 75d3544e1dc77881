"""Places to search for values to restore, even if the configuration is unusable."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from perphd.config.file import TABLES, DaemonConfig, HostConfig, drop_ins, load, read_toml
from perphd.config.schema import TUNING, keys_of, read_value
from perphd.domain.errors import ConfigError
from perphd.isolation.instances import InstanceRegister

STATE_DIR_REMEDY: Final = "use --state-dir to set it"
"""Advice about a guessed state directory, for commands that have this option."""
CONFIG_REMEDY: Final = "use --config to name the daemon's file"
"""The same in commands that have only ``--config``."""
_SIMULATED: Final = "simulated"


@dataclass(frozen=True, slots=True)
class RestorePlace:
    """The places of a restore: ``state_dirs`` with journals of originals, and the ``root`` of the host's files.

    ``is_guessed``: the configuration does not name them, and no running or earlier perphd registered its directory.
    ``is_simulated``: they belong to a simulated host, whose files ended with its daemon.
    """

    state_dirs: tuple[str, ...]
    root: str = ""
    is_guessed: bool = False
    is_simulated: bool = False

    def guess(self) -> str:
        """A warning that the directories are a guess; empty if they are known."""
        if not self.is_guessed:
            return ""
        where = ", ".join(self.state_dirs)
        return (
            f"The state directory {where} is a guess, so changed values may still be in force; "
            "name the daemon's directory with --state-dir, or its file with --config."
        )

    def nothing_to_do(self) -> str:
        """The reason why there is nothing to restore; empty if there may be."""
        said = (
            "nothing to restore: tuning.host.kind is 'simulated', and a simulated host ends with its daemon"
        )
        return said if self.is_simulated else ""


def for_restore(
    path: str | Path,
    warn: Callable[[str], None],
    register: InstanceRegister | None = None,
    remedy: str = STATE_DIR_REMEDY,
) -> RestorePlace:
    """Find the places to restore from.

    An unusable configuration is reported to ``warn`` and must not prevent a restore. The places then come from its
    readable parts and from the register that instances with this file keep on this host; the defaults are used only if
    there is neither. ``remedy``: what the command offers against a guess.
    """
    known = (InstanceRegister() if register is None else register).of_config(str(path))
    try:
        found = load(path, runtime=False)
        named, root, kind = found.daemon.state_dir, found.host.root, str(found.host.kind)
    except ConfigError as exc:
        try:
            named, root, kind = _places_of(Path(path))
        except ConfigError:
            state_dirs = known or (DaemonConfig().state_dir,)
            where = f"the state directory {', '.join(state_dirs)}"
            guess = "" if known else f"; this is a guess, {remedy}"
            warn(f"{exc}; using {where}{guess}")
            return RestorePlace(state_dirs, HostConfig().root, not known)
        warn(f"{exc}; using the state directory {named}, which is the one in the file or the default")
    if kind == _SIMULATED:
        # Only daemons of real hosts register. The values that they left are restored, regardless of the present file.
        return RestorePlace(known) if known else RestorePlace((named,), root, is_simulated=True)
    others = () if root else tuple(other for other in known if other != os.path.realpath(named))
    return RestorePlace((named, *others), root)


def _places_of(main: Path) -> tuple[str, str, str]:
    """The state directory, the host's ``root`` and ``kind`` of valid TOML, despite any other mistakes in it."""
    daemon, host = DaemonConfig(), HostConfig()
    for path in (main, *drop_ins(main)):
        raw = read_toml(path)
        daemon = replace(daemon, **_only("daemon", "state_dir", raw, str(path)))
        host = replace(host, **_only("host", "root", raw, str(path)))
        host = replace(host, **_only("host", "kind", raw, str(path)))
    return daemon.state_dir, host.root, host.kind


def _only(table: str, name: str, raw: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The value of this key, also from the wrong one of ``[TABLE]`` and ``[tuning.TABLE]``; empty if it is absent."""
    (key,) = (key for key in keys_of(TABLES[table]) if key.name == name)
    tuning = raw.get(TUNING, {})
    for prefix, tables in ((table, raw), (f"{TUNING}.{table}", tuning)):
        found = tables.get(table, {}) if isinstance(tables, Mapping) else {}
        if isinstance(found, Mapping) and name in found:
            return {key.field: read_value(key, found[name], source, f"{prefix}.{name}")}
    return {}
