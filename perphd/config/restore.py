"""Where a restore has to look, whatever has become of the configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perphd.config.file import TABLES, DaemonConfig, HostConfig, drop_ins, load, read_toml
from perphd.config.schema import read_values
from perphd.domain.errors import ConfigError
from perphd.isolation.instances import InstanceRegister


@dataclass(frozen=True, slots=True)
class RestorePlace:
    """Where to give back: ``state_dirs`` with journals of originals, and the ``root`` of the host's files.

    ``is_guessed``: the configuration does not say, and no perphd has left word.
    """

    state_dirs: tuple[str, ...]
    root: str = ""
    is_guessed: bool = False


def for_restore(
    path: str | Path, warn: Callable[[str], None], register: InstanceRegister | None = None
) -> RestorePlace:
    """Where to give back, whatever the configuration's state.

    A configuration that cannot be used is told to ``warn`` and must not keep values from being given back: the places
    are taken from what of it can be read, and from the word that perphds with this file have left on this host. Only
    when there is neither they are taken to be where they are by default.
    """
    known = (InstanceRegister() if register is None else register).of_config(str(path))
    try:
        found = load(path, runtime=False)
        named, root = found.daemon.state_dir, found.host.root
    except ConfigError as exc:
        try:
            named, root = _places_of(Path(path))
        except ConfigError:
            state_dirs = known or (DaemonConfig().state_dir,)
            where = f"the state directory {', '.join(state_dirs)}"
            guess = "" if known else "; it is a guess, --state-dir says where to look"
            warn(f"{exc}; using {where}{guess}")
            return RestorePlace(state_dirs, HostConfig().root, not known)
        warn(f"{exc}; using the state directory {named}, which it names or leaves to the default")
    others = () if root else tuple(other for other in known if other != os.path.realpath(named))
    return RestorePlace((named, *others), root)


def _places_of(main: Path) -> tuple[str, str]:
    """The state directory and ``host.root`` of files that are TOML, whatever else is wrong with them."""
    daemon, host = DaemonConfig(), HostConfig()
    for path in (main, *drop_ins(main)):
        raw = read_toml(path)
        daemon = replace(daemon, **_only("daemon", "state_dir", raw, str(path)))
        host = replace(host, **_only("host", "root", raw, str(path)))
    return daemon.state_dir, host.root


def _only(table: str, name: str, raw: Mapping[str, Any], source: str) -> dict[str, Any]:
    found = raw.get(table, {})
    if not isinstance(found, Mapping) or name not in found:
        return {}
    return read_values(TABLES[table], {name: found[name]}, source, table)
