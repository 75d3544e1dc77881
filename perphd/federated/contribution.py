"""The document in which one host shares what it has learned: JSON with bounds on everything.

A statistic is a vector of estimates at fixed points with the evidence for each. ``points`` names the points, so that
versions of perphd with other points never mix. A document replaces every earlier one of its contributor; without
statistics, it withdraws the contributor's earlier statistics.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated, Final, TypeAlias

import msgspec

from perphd.domain.errors import PerphError
from perphd.federated.hardware import Hardware

FORMAT: Final = "perphd-contribution-1"
MAX_BYTES: Final = 1024 * 1024
"""Maximum size of a document, in bytes."""
MAX_STATISTICS: Final = 512
MAX_POINTS: Final = 256
_FRAME_BYTES: Final = 2048
"""Maximum size in bytes of a document without its statistics."""
MOST: Final = 100.0
"""Bound of an estimate: logarithms, shares and ratios are far smaller."""
MOST_EVIDENCE: Final = 1e6

Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,62}\Z")]
_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=256)]
_Estimate: TypeAlias = Annotated[float, msgspec.Meta(ge=-MOST, le=MOST)]
_Evidence: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0, le=MOST_EVIDENCE)]


class ContributionRefused(PerphError):
    """A text is not a usable contribution; the message states the reason."""


class Topic(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """Subject of a statistic.

    ``kind``: correction, jobs, usage or forecast. ``application``: name of the LRA, workload or feature; for a workload
    found by a declaration's ``match``, name of the declaration. ``aspect``: channel, quantity, other workload or
    resource. ``points``: names the points at which it is estimated.
    """

    kind: _Text
    application: _Text
    aspect: _Text
    points: _Text


class Statistic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Estimates at the topic's points, and the evidence for each (0: unknown there).

    ``counted_by``: source of the application's SLI; ``version``: the application's version; empty: unknown.
    """

    topic: Topic
    values: Annotated[tuple[_Estimate, ...], msgspec.Meta(min_length=1, max_length=MAX_POINTS)]
    evidence: Annotated[tuple[_Evidence, ...], msgspec.Meta(min_length=1, max_length=MAX_POINTS)]
    counted_by: _Text = ""
    version: _Text = ""


class Contribution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Statistics that one host has learned. ``generation`` grows with every document of this contributor."""

    contributor: Name
    generation: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    made_unix_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e11)]
    hardware: Hardware
    statistics: Annotated[tuple[Statistic, ...], msgspec.Meta(max_length=MAX_STATISTICS)] = ()

    def about(self, topic: Topic) -> Statistic | None:
        """The statistic of this topic, if there is one."""
        return next((each for each in self.statistics if each.topic == topic), None)


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    sha256: str
    body: msgspec.Raw


def to_text(contribution: Contribution) -> bytes:
    """The document's text, ending with a newline.

    Raises:
        ContributionRefused: a value is out of bounds or the text too large, so no host could read it.
    """
    body = msgspec.json.encode(contribution)
    try:
        msgspec.json.decode(body, type=Contribution)
    except msgspec.ValidationError as exc:
        raise ContributionRefused(
            f"the contribution of {contribution.contributor} is not valid: {exc}"
        ) from exc
    text = msgspec.json.encode(_Document(FORMAT, digest(body), msgspec.Raw(body))) + b"\n"
    _check_size(text)
    return text


def fitting(statistics: Iterable[Statistic]) -> tuple[Statistic, ...]:
    """The first of these statistics, as many as fit into a document."""
    kept: list[Statistic] = []
    left = MAX_BYTES - _FRAME_BYTES
    for each in statistics:
        left -= len(msgspec.json.encode(each)) + 1
        if left < 0 or len(kept) == MAX_STATISTICS:
            break
        kept.append(each)
    return tuple(kept)


def spoken(statistics: Iterable[Statistic]) -> tuple[Statistic, ...]:
    """For each topic, the statistic with the most evidence; the first among equals.

    If several workloads of one host are replicas of an application, only one of them is used. They share the
    peculiarities of their host, so together they know little more than the replica with the most evidence.
    """
    best: dict[Topic, tuple[float, Statistic]] = {}
    for each in statistics:
        evidence = sum(each.evidence)
        if each.topic not in best or evidence > best[each.topic][0]:
            best[each.topic] = evidence, each
    return tuple(each for _, each in best.values())


def from_text(text: bytes) -> Contribution:
    """Parse a document.

    Raises:
        ContributionRefused: it is too large, damaged or of another format, or a value is missing or out of bounds.
    """
    _check_size(text)
    try:
        document = msgspec.json.decode(text, type=_Document)
        if document.format != FORMAT:
            raise ContributionRefused(f"its format is {document.format[:40]!r}; this perphd reads {FORMAT!r}")
        if digest(bytes(document.body)) != document.sha256:
            raise ContributionRefused("its checksum is wrong: the text is damaged or was edited")
        found = msgspec.json.decode(document.body, type=Contribution)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ContributionRefused(f"it is not a contribution: {exc!s:.200}") from exc
    topics: set[Topic] = set()
    for each in found.statistics:
        about = f"{each.topic.kind} of {each.topic.application}"
        if len(each.values) != len(each.evidence):
            raise ContributionRefused(
                f"{about}: {len(each.values)} values, {len(each.evidence)} of evidence; the two numbers must be equal"
            )
        if each.topic in topics:
            raise ContributionRefused(f"{about} is given twice")
        topics.add(each.topic)
    return found


def _check_size(text: bytes) -> None:
    if len(text) > MAX_BYTES:
        raise ContributionRefused(f"{len(text)} bytes exceed the limit for a contribution ({MAX_BYTES})")


def digest(body: bytes) -> str:
    """The checksum of a document's body."""
    return hashlib.sha256(body).hexdigest()
