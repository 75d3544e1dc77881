"""The key ``match`` of a workload, which finds its control group instead of naming it. Pure.

The grammar, also in docs/config.md::

    match    = kind ":" pattern
    kind     = "unit" | "slice" | "cgroup" | "container" | "pod" | "label" | "pid" | "pidfile"
    pattern  = for label  KEY "=" GLOB      KEY: letters, digits and . _ / -
               for pid    a number above 1
               for pidfile an absolute path
               for slice  the name of a slice, without wildcards
               else       GLOB
    GLOB     = text in which * stands for any run of characters, ? for one, [abc] [a-z] [!abc] for one of a set;
               none of them for "/". A backslash stands for itself, because unit names contain backslashes.

A pattern without wildcards declares one workload; finding several groups is an error. A pattern with wildcards, and any
label, declares one workload per group found. These are called NAME.INSTANCE, after the text that the wildcards matched
or the container's name.
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from perphd.domain.errors import ParseError

MAX_PATTERN: Final = 1000
MAX_NAME: Final = 63
MAX_BASE: Final = 40
"""Maximum length of the name of a declaration that may match many groups."""
ALLOWED: Final = (
    '"unit:NAME", "slice:NAME", "cgroup:/PATH", "container:NAME", "pod:NAMESPACE/NAME", "label:KEY=VALUE", '
    '"pid:NUMBER" or "pidfile:/PATH"; * ? [..] in all but slice, pid and pidfile'
)
_STAR: Final = "[^/]*"
_LABEL_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,316}", re.ASCII)
_SLICE = re.compile(r"[A-Za-z0-9:_.\\@-]{1,249}\.slice", re.ASCII)
_UNIT_SUFFIX = re.compile(r".*(?:\.(?:service|scope|slice|mount|socket|swap)|[*?\]])", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


class MatchKind(StrEnum):
    """The kind of name with which a pattern is compared, as written before the colon."""

    UNIT = "unit"  # the name of a systemd unit of this host, in any slice
    SLICE = "slice"  # a systemd slice; its path follows from its name
    CGROUP = "cgroup"  # the path of a control group
    CONTAINER = "container"  # a container's name; in a pod NAMESPACE/POD/CONTAINER
    POD = "pod"  # NAMESPACE/POD
    LABEL = "label"  # a label of a container, or a label or annotation of a pod
    PID = "pid"  # the group of a process, while the process lives
    PIDFILE = "pidfile"  # the group of the process whose PID a file contains


@dataclass(frozen=True, slots=True)
class Match:
    """One parsed ``match``. ``key``: the label's key; ``pattern``: the text after it, or after the colon."""

    kind: MatchKind
    pattern: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.key}={self.pattern}" if self.key else f"{self.kind}:{self.pattern}"

    @property
    def is_many(self) -> bool:
        """True if it can match more than one workload."""
        if self.kind in (MatchKind.SLICE, MatchKind.PID, MatchKind.PIDFILE):
            return False
        return self.kind is MatchKind.LABEL or is_wild(self.pattern)

    def captures(self, text: str) -> tuple[str, ...] | None:
        """The texts that the wildcards match; None if the text does not match."""
        found = glob(self.pattern).fullmatch(text)
        return None if found is None else found.groups()


def parse_match(text: str) -> Match:
    """Parse a ``match``.

    Raises:
        ParseError: it does not follow the grammar.
    """
    kind_text, colon, pattern = text.partition(":")
    if not colon or kind_text not in tuple(MatchKind) or not pattern:
        raise _error(text)
    if len(pattern) > MAX_PATTERN or _CONTROL.search(pattern):
        raise _error(text)
    kind, key, ok = MatchKind(kind_text), "", False
    match kind:
        case MatchKind.UNIT:
            ok = "/" not in pattern and _UNIT_SUFFIX.fullmatch(pattern) is not None
        case MatchKind.SLICE:
            ok = _SLICE.fullmatch(pattern) is not None and slice_path(pattern) != ""
        case MatchKind.CGROUP | MatchKind.PIDFILE:
            ok = pattern.startswith("/") and all(
                part not in ("", ".", "..") for part in pattern[1:].split("/")
            )
        case MatchKind.PID:
            ok = re.fullmatch(r"[1-9][0-9]{0,9}", pattern, re.ASCII) is not None and pattern != "1"
        case MatchKind.LABEL:
            key, equals, pattern = pattern.partition("=")
            ok = bool(equals and pattern) and _LABEL_KEY.fullmatch(key) is not None
        case MatchKind.CONTAINER:
            ok = not pattern.startswith("/")
        case MatchKind.POD:
            ok = re.fullmatch(r"[^/]+/[^/]+", pattern) is not None
    if not ok:
        raise _error(text)
    return Match(kind, pattern, key)


def named(name: str) -> str:
    """The match that finds a container or pod of this name: NAME, NAMESPACE/POD or NAMESPACE/POD/CONTAINER.

    A container of a pod is found as its pod, whose limits and weights count against other pods.
    """
    namespace, slash, rest = name.partition("/")
    if not slash or " " in namespace:  # a pod whose name is unknown
        return f"{MatchKind.CONTAINER}:{name}"
    return f"{MatchKind.POD}:{namespace}/{rest.partition('/')[0]}"


def is_lasting(text: str) -> bool:
    """False for a match of one process: after a reboot, its number may belong to another process."""
    return parse_match(text).kind is not MatchKind.PID


def slice_path(name: str) -> str:
    """The control group of a slice: ``a-b.slice`` is ``/a.slice/a-b.slice`` (systemd.slice(5)).

    Empty if ``name`` is not the name of a slice.
    """
    stem = name.removesuffix(".slice")
    words = stem.split("-")
    if stem == name or stem == "" or any(not word for word in words):
        return ""
    return "/" + "/".join("-".join(words[: depth + 1]) + ".slice" for depth in range(len(words)))


def instance_name(base: str, captured: tuple[str, ...], identity: str) -> str:
    """The name of one of many workloads, from the texts that the wildcards matched (``captured``).

    It is ``base.TEXT`` if there is one text, whose characters are allowed in a name and which is short enough.
    Otherwise it is ``base.TEXTS-DIGITS``: the texts, cleaned and shortened, and six hexadecimal digits derived from
    ``identity``, which make it unique. The name is stable while the texts and ``identity`` are. ``base`` has at most
    ``MAX_BASE`` characters.
    """
    told = "-".join(part for part in captured if part)
    plain = re.sub(r"[^A-Za-z0-9_.@-]+", "-", told, flags=re.ASCII).strip("-")
    room = MAX_NAME - len(base) - 1
    if plain == told and 0 < len(plain) <= room and len(captured) == 1:
        return f"{base}.{plain}"
    digits = hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()[:6]
    head = plain[: room - len(digits) - 1].rstrip("-.")
    return f"{base}.{head}-{digits}" if head else f"{base}.{digits}"


@functools.lru_cache(maxsize=1024)
def glob(pattern: str) -> re.Pattern[str]:
    """The pattern as a regular expression with a group for each wildcard.

    The text between two ``*`` is matched at its first occurrence, without backtracking. That suffices, because only
    ``*`` matches a varying number of characters. Backtracking would take a time exponential in the number of ``*`` on
    names that tenants choose.
    """
    head, *runs = _runs(pattern)
    if not runs:
        return re.compile(head)
    between = "".join(f"(?>({_STAR}?){run})" for run in runs[:-1])
    return re.compile(f"{head}{between}({_STAR}){runs[-1]}")


def _runs(pattern: str) -> list[str]:
    """Expressions for the parts before, between and after the ``*``; each matches a fixed number of characters."""
    runs = [""]
    for part in _parts(pattern):
        if part == _STAR:
            runs.append("")
        else:
            runs[-1] += f"({part})" if isinstance(part, str) else re.escape(part[0])
    return runs


def is_wild(pattern: str) -> bool:
    """True if the text contains a wildcard."""
    return any(isinstance(part, str) for part in _parts(pattern))


def _parts(pattern: str) -> list[str | tuple[str]]:
    """Regular expressions of wildcards as text, and runs of literal characters as tuples of one."""
    found: list[str | tuple[str]] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "*":
            if not found or found[-1] != _STAR:  # ** is *
                found.append(_STAR)
        elif char == "?":
            found.append("[^/]")
        elif (
            char == "["
            and (end := pattern.find("]", at + 3 if pattern[at + 1 : at + 2] == "!" else at + 2)) > 0
        ):
            found.append(_set(pattern[at + 1 : end]))
            at = end
        elif found and isinstance(found[-1], tuple):
            found[-1] = (found[-1][0] + char,)
        else:
            found.append((char,))
        at += 1
    return found


def _set(body: str) -> str:
    negated, body = body.startswith("!"), body.removeprefix("!")
    inner = ""
    at = 0
    while at < len(body):
        if at + 2 < len(body) and body[at + 1] == "-" and body[at] <= body[at + 2]:
            inner += f"{re.escape(body[at])}-{re.escape(body[at + 2])}"
            at += 3
        else:
            inner += re.escape(body[at])
            at += 1
    # A set never matches the "/" that separates groups, even if the set contains it.
    return f"(?!/)[{'^' if negated else ''}{inner}]"


def _error(text: str) -> ParseError:
    return ParseError("a matcher of control groups", text, ALLOWED)
