"""The containers of one NodeManager, with labels from their applications.

    yarn.app     id of the application          yarn.name   its name
    yarn.queue   its queue, without "root."     yarn.type   its type, such as MAPREDUCE or yarn-service
    yarn.user    its user                       yarn.tag.T  "true" for each of its tags T

A tag of the form ``perphd.io/KEY=VALUE`` is the label of that name, so that an application can declare itself where
the daemon's configuration opts in. YARN turns tags into lower case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from perphd.adapters.yarn.capacity import YarnCapacity
from perphd.adapters.yarn.client import YarnClient, YarnMissing, YarnUnreachable, part
from perphd.config.match import Match, MatchKind, parse_match
from perphd.domain.errors import ParseError
from perphd.domain.workload import LABEL_PREFIX
from perphd.host.yarn import is_container

LOOKS_TO_REREAD: Final = 6
"""Rounds after which a known application is read again, because it can be moved to another queue."""
_LABELS: Final = {"app": "id", "name": "name", "queue": "queue", "type": "applicationType", "user": "user"}
_ENDED: Final = re.compile(r"DONE|COMPLETE|EXITED_.*|.*_CLEANEDUP_AFTER_KILL", re.ASCII)


@dataclass(frozen=True, slots=True)
class YarnContainer:
    """One container that has not ended; ``size``: the amount that it holds according to YARN."""

    id: str
    app: str
    size: YarnCapacity


def application_of(container: str) -> str:
    """The application of a container; empty if the text is not a container's id."""
    if not is_container(container):
        return ""
    started, number = container.split("_")[-4:-2]
    return f"application_{started}_{number}"


def containers_of(data: Any) -> tuple[YarnContainer, ...]:
    """Parse the answer of a NodeManager's ``GET /ws/v1/node/containers``.

    Raises:
        YarnUnreachable: it has another form.
    """
    try:
        listed = (data.get("containers") or {}).get("container") or []
        return tuple(
            YarnContainer(
                each["id"], application_of(each["id"]),
                YarnCapacity(int(each["totalMemoryNeededMB"]), int(each["totalVCoresNeeded"])),
            )
            for each in listed
            if application_of(str(each["id"])) and not _ENDED.fullmatch(str(each["state"]))
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise YarnUnreachable(f"the NodeManager describes containers in an unknown form: {exc!r}") from exc


def labels_of(app: Any) -> dict[str, str]:
    """The labels of an application's containers.

    Raises:
        YarnUnreachable: the ResourceManager's answer has another form.
    """
    try:
        labels = {f"yarn.{name}": str(app[key]) for name, key in _LABELS.items()}
        labels["yarn.queue"] = labels["yarn.queue"].removeprefix("root.")
        tags = str(app.get("applicationTags") or "")
    except (KeyError, TypeError, AttributeError) as exc:
        raise YarnUnreachable(
            f"the ResourceManager describes an application in an unknown form: {exc!r}"
        ) from exc
    for tag in filter(None, (each.strip() for each in tags.split(","))):
        key, equals, value = tag.partition("=")
        if equals and key.startswith(LABEL_PREFIX):
            labels[key] = value
        else:
            labels[f"yarn.tag.{tag}"] = "true"
    return labels


def label_match(text: str) -> Match:
    """Parse ``KEY=GLOB``, as in ``match = "label:KEY=GLOB"``.

    Raises:
        ParseError: it does not follow the grammar.
    """
    try:
        return parse_match(f"{MatchKind.LABEL}:{text}")
    except ParseError as exc:
        raise ParseError("a label", text, 'KEY=GLOB, such as "yarn.queue=services"') from exc


class Applications:
    """Labels of the applications that have containers on this node."""

    def __init__(self, client: YarnClient) -> None:
        self._client = client
        self._labels: dict[str, dict[str, str]] = {}
        self._looks: dict[str, int] = {}

    async def look(self, apps: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        """Labels by application. An application that the ResourceManager has forgotten keeps its last labels.

        Raises:
            YarnError: the ResourceManager does not answer.
        """
        wanted = dict.fromkeys(apps)
        self._labels = {app: labels for app, labels in self._labels.items() if app in wanted}
        self._looks = {app: self._looks.get(app, 0) + 1 for app in wanted}
        for app in wanted:
            if app in self._labels and self._looks[app] % LOOKS_TO_REREAD:
                continue
            try:
                self._labels[app] = labels_of(part(await self._client.get(f"apps/{app}"), "app"))
            except YarnMissing:
                self._labels.setdefault(app, {"yarn.app": app})
        return self._labels


def described(
    containers: Sequence[YarnContainer], labels: Mapping[str, Mapping[str, str]], hierarchy: str
) -> dict[str, Any]:
    """Labels by container for the daemon on this node; ``hierarchy``: the control group of all containers."""
    return {
        "hierarchy": hierarchy,
        "containers": {
            each.id: dict(labels.get(each.app, {}))
            for each in sorted(containers, key=lambda container: container.id)
        },
    }


def held_by(
    containers: Sequence[YarnContainer], labels: Mapping[str, Mapping[str, str]], lras: Sequence[Match]
) -> YarnCapacity:
    """Total size of the containers of LRAs, the applications that any of ``lras`` matches."""
    held = YarnCapacity()
    for each in containers:
        found = labels.get(each.app, {})
        if any(match.key in found and match.captures(found[match.key]) is not None for match in lras):
            held += each.size
    return held
