"""Recognises YARN's containers by the names of their control groups. ``perphd-yarn run --containers``
publishes their labels in a file.
"""

from __future__ import annotations

import re
from typing import Final

PUBLISHED_CONTAINERS: Final = "/run/perphd-yarn/containers.json"
"""Labels of this node's containers by id, and their control group, written by ``perphd-yarn``."""
HIERARCHY: Final = "/hadoop-yarn"
"""Control group of all containers, unless the file names another: LinuxContainerExecutor's default."""
RUNTIME: Final = "yarn"
_CONTAINER: Final = re.compile(
    r"container_(?:e[0-9]{1,10}_)?[0-9]{1,20}_[0-9]{4,10}_[0-9]{2,10}_[0-9]{6,20}", re.ASCII
)


def is_container(name: str) -> bool:
    """True for the id of a container, which is also the name of its group."""
    return _CONTAINER.fullmatch(name) is not None


def checked_hierarchy(path: object) -> str:
    """The control group named by the file; the default if the file names none that is valid."""
    if (
        isinstance(path, str)
        and path.startswith("/")
        and all(part not in ("", ".", "..") for part in path[1:].split("/"))
    ):
        return path
    return HIERARCHY
