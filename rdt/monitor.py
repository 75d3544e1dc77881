"""Cache occupancy and memory bandwidth of groups per domain, from files that are kept open.

Rules from Documentation/arch/x86/resctrl.rst and the kernel's ``fs/resctrl``:

* The kernel extends the hardware's narrow counters (24 bits and more) to 64-bit sums of bytes and samples
  them once a second, so that no overflow is missed. Only the 64-bit sum can wrap. Any other decrease means
  that the counter restarted, and the interval has no rate.
* A control group's values are sums over itself and its present monitor groups. When a monitor group is
  removed, its bytes leave the sum, which then decreases or grows too little. ``mon_groups`` is therefore read
  after the counters, and an interval in which a monitor group vanished has no rate.
* A recreated group has new counters: its open files answer ENODEV, and its inode differs.
* ``mbm_total_bytes`` includes ``mbm_local_bytes``: rdt never adds the two.
* With sub-NUMA clustering a domain's directory shows sums over its ``mon_sub_*`` directories. Only these are
  read and added here, because some kernels report a sum of 0 when a CPU of the domain goes offline.
* ``rdt.reading.total`` adds domains; it returns a number only if every domain has one.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from rdt.access import Access
from rdt.errors import Gone, ResctrlError
from rdt.frozen import FrozenDict
from rdt.fs import OpenFile
from rdt.info import Info
from rdt.names import GroupRef
from rdt.reading import DomainReading, GroupReading, Reading, Unavailable, Why

OCCUPANCY, TOTAL, LOCAL = "llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"
EVENTS = (OCCUPANCY, TOTAL, LOCAL)
_COUNTER_MODULUS = 1 << 64
_DOMAIN = re.compile(r"mon_L3_([0-9]+)\Z")
_WORDS = {
    b"Unavailable": Unavailable(Why.UNTRACKED, "the hardware does not count this group at the moment"),
    b"Unassigned": Unavailable(Why.UNASSIGNED, "no counter is assigned to this event (mbm_assign_mode)"),
    b"Error": Unavailable(Why.HARDWARE_ERROR, "the hardware refused to count (the kernel says Error)"),
}
_FIRST = Unavailable(Why.FIRST, "nothing to compare with yet")
_AGAIN = Unavailable(Why.RESTARTED, "counting resumed only at this reading")
_ANEW = Unavailable(Why.RESTARTED, "the group was recreated since the last reading")
_LOST = Unavailable(Why.RESTARTED, "a monitor group of this group was removed since the last reading")
_GONE = Unavailable(Why.GONE, "the group does not exist")
_OFFLINE = Unavailable(Why.OFFLINE, "all CPUs of the domain are offline")
_NOT_WANTED = Unavailable(Why.UNSUPPORTED, "this event was not requested")
_VANISHED = (errno.ENODEV, errno.ENOENT, errno.ESTALE, errno.ENOTCONN)


@dataclass(slots=True)
class _Event:
    """The last value of one event in one domain, and its files (several with sub-NUMA clustering)."""

    files: tuple[OpenFile, ...] = ()
    missing: Unavailable | None = None
    value: int | Unavailable = _FIRST
    read_s: float = 0.0


@dataclass(slots=True)
class _Watched:
    """One group's open files. ``domains`` includes offline domains, which have no files."""

    group: GroupRef
    identity: tuple[int, int] | None = None
    monitors: frozenset[tuple[str, tuple[int, int]]] = frozenset()
    """Names and identities of its monitor groups, so that a recreated one counts as new."""
    domains: dict[int, dict[str, _Event]] = field(default_factory=dict)
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Identity of each domain's directory: a domain that went offline and came back counts from 0."""
    complete: bool = False
    read_s: float | None = None

    def close(self) -> None:
        for events in self.domains.values():
            for event in events.values():
                for file in event.files:
                    file.close()
                event.files, event.missing = (), None
        self.complete = False


class Monitor:
    """Reads groups repeatedly. It holds open files: close it, or use it in ``with``.

    Args:
        access: the mounted tree.
        info: what the machine offers.
        groups: the groups to read; see ``watch``.
        clock: monotonic time in seconds. A group's readings carry the time at which that group was read.
        events: the events to read; the others are Unavailable and cost nothing.

    Reading takes no lock, because values are independent and the kernel's counters run on anyway.
    """

    def __init__(
        self,
        access: Access,
        info: Info,
        groups: Iterable[GroupRef] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
        events: Iterable[str] = EVENTS,
    ) -> None:
        self._access, self._clock = access, clock
        monitoring = info.monitoring
        self._wanted = frozenset(events)
        self._offered = frozenset(monitoring.features) & frozenset(EVENTS) if monitoring else frozenset()
        self._known = monitoring.domains if monitoring else ()
        self._watched: dict[GroupRef, _Watched] = {}
        for group in groups:
            self.watch(group)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def groups(self) -> tuple[GroupRef, ...]:
        """The groups that are read, in the order of ``watch``."""
        return tuple(self._watched)

    @property
    def open_files(self) -> int:
        """Number of open files: groups x domains x events (x nodes with sub-NUMA clustering)."""
        return sum(
            len(event.files)
            for watched in self._watched.values()
            for events in watched.domains.values()
            for event in events.values()
        )

    def watch(self, group: GroupRef) -> None:
        """Read this group from now on. It need not exist yet; its files are opened once it does."""
        if group not in self._watched:
            self._watched[group] = _Watched(group)

    def unwatch(self, group: GroupRef) -> None:
        """Stop reading this group. Does nothing if the group is not being read."""
        watched = self._watched.pop(group, None)
        if watched is not None:
            watched.close()

    def close(self) -> None:
        """Close all files."""
        for group in self.groups:
            self.unwatch(group)

    def read(self) -> dict[GroupRef, GroupReading]:
        """Read all groups. Values that cannot be read are Unavailable with the reason; nothing is raised."""
        return {group: self._read(watched) for group, watched in self._watched.items()}

    # --- one group ----------------------------------------------------------------------------------------

    def _read(self, watched: _Watched) -> GroupReading:
        fresh: Unavailable | None = None
        if not watched.complete:
            fresh = self._open(watched)
        found = self._values(watched)
        if found is None:  # a file's group or domain vanished: reopen once
            watched.close()
            fresh = self._open(watched)
            found = self._values(watched) or {}
        earlier_s, now_s = watched.read_s, self._clock()
        lost = None if watched.group.monitor or watched.identity is None else self._monitors_lost(watched)
        watched.read_s = now_s if watched.identity is not None else None
        broken = lost if fresh is None else fresh
        domains: dict[int, DomainReading] = {}
        for domain, events in watched.domains.items():
            values = found.get(domain)
            if values is None:
                absent = _GONE if watched.identity is None else _OFFLINE
                domains[domain] = DomainReading(absent, absent, absent, absent, absent)
                for event in events.values():
                    event.value = absent
                continue
            occupancy, all_bytes, local_bytes = values
            domains[domain] = DomainReading(
                occupancy,
                _rate(events[TOTAL], all_bytes, now_s, broken),
                _rate(events[LOCAL], local_bytes, now_s, broken),
                all_bytes,
                local_bytes,
            )
        if lost is not None:
            self._rebase(watched)
        if earlier_s is None or watched.read_s is None:
            interval_s: Reading = _GONE if watched.identity is None else _FIRST
        else:
            interval_s = now_s - earlier_s if fresh is None else fresh
        return GroupReading(watched.group, now_s, interval_s, FrozenDict(domains))

    def _values(
        self, watched: _Watched
    ) -> dict[int, tuple[int | Unavailable, int | Unavailable, int | Unavailable]] | None:
        """Every event of every present domain; None if a group or domain vanished."""
        found = {}
        for domain, events in watched.domains.items():
            if not _is_open(events):
                continue
            try:
                found[domain] = (_value(events[OCCUPANCY]), _value(events[TOTAL]), _value(events[LOCAL]))
            except _VanishedError:
                return None
        return found

    def _monitors_lost(self, watched: _Watched) -> Unavailable | None:
        now = self._monitors(watched.group)
        lost = watched.monitors - now
        watched.monitors = now
        return _LOST if lost else None

    def _rebase(self, watched: _Watched) -> None:
        """Read the counters again, because the monitor group may have vanished after they were read."""
        now_s = self._clock()
        for domain, values in (self._values(watched) or {}).items():
            for name, value in zip(EVENTS, values, strict=True):
                event = watched.domains[domain][name]
                event.value, event.read_s = value, now_s

    # --- files --------------------------------------------------------------------------------------------

    def _open(self, watched: _Watched) -> Unavailable | None:
        """Open the files that are not open. Returns a reason if the counters are new since the last reading."""
        group = watched.group
        try:
            identity = self._access.identity(group.relative)
            names = self._names(group, "mon_data")
            monitors = frozenset() if group.monitor else self._monitors(group)
        except ResctrlError:
            watched.close()
            watched.identity = None
            for domain in self._known:
                watched.domains.setdefault(domain, {name: _Event(value=_GONE) for name in EVENTS})
            return None
        anew = watched.identity is not None and watched.identity != identity
        if watched.identity != identity:
            watched.close()
            watched.identity, watched.monitors = identity, monitors
        present = {int(match[1]): name for name in names if (match := _DOMAIN.match(name))}
        for domain in sorted({*self._known, *present}):
            events = watched.domains.setdefault(domain, {name: _Event() for name in EVENTS})
            if domain in present and not any(event.files for event in events.values()):
                self._open_domain(watched, domain, present[domain])
        watched.domains = dict(sorted(watched.domains.items()))
        watched.complete = all(_is_open(events) for events in watched.domains.values())
        return _ANEW if anew else None

    def _monitors(self, group: GroupRef) -> frozenset[tuple[str, tuple[int, int]]]:
        found = set()
        for name in self._names(group, "mon_groups"):
            with suppress(ResctrlError):  # it vanished just now
                found.add((name, self._access.identity(group.relative, "mon_groups", name)))
        return frozenset(found)

    def _names(self, group: GroupRef, directory: str) -> list[str]:
        """Names in a directory that exists only with monitoring; empty if it cannot be read."""
        try:
            return self._access.listdir(group.relative, directory)
        except ResctrlError:
            return []

    def _open_domain(self, watched: _Watched, domain: int, directory: str) -> None:
        events = watched.domains[domain]
        place = (watched.group.relative, "mon_data", directory)
        try:
            identity = self._access.identity(*place)
            nodes = [name for name in self._access.listdir(*place) if name.startswith("mon_sub_")]
        except ResctrlError:
            return
        if watched.places.setdefault(domain, identity) != identity:
            watched.places[domain] = identity
            for event in events.values():
                event.value = _OFFLINE  # it was offline since the last reading
        for name, event in events.items():
            event.missing = None
            if name not in self._wanted:
                event.missing = _NOT_WANTED
                continue
            if name not in self._offered:
                event.missing = Unavailable(Why.UNSUPPORTED, f"this machine does not count {name}")
                continue
            files: list[OpenFile] = []
            try:
                for node in nodes or [""]:
                    files.append(self._access.open(*place, node, name))
            except ResctrlError as error:
                for file in files:
                    file.close()
                files = []
                if not isinstance(error, Gone):
                    event.missing = Unavailable(Why.UNREADABLE, str(error))
            event.files = tuple(files)


def _is_open(events: dict[str, _Event]) -> bool:
    """True if the domain of these events is online."""
    return any(event.files or event.missing is not None for event in events.values())


class _VanishedError(Exception):
    """The group or domain of an open file no longer exists."""


def _value(event: _Event) -> int | Unavailable:
    """The present value, summed over all files of the event."""
    if event.missing is not None:
        return event.missing
    added = 0
    for file in event.files:
        try:
            data = file.read()
        except OSError as error:
            if error.errno in _VANISHED:
                raise _VanishedError from error
            return Unavailable(Why.UNREADABLE, f"the kernel says {error.strerror or error}")
        try:
            added += int(data)
        except ValueError:
            word = data.strip()
            unknown = Unavailable(Why.UNREADABLE, f"not a number: {word.decode(errors='replace')!r}")
            return _WORDS.get(word, unknown)
    return added if event.files else _OFFLINE


def _rate(event: _Event, value: int | Unavailable, now_s: float, broken: Unavailable | None) -> Reading:
    """Bytes per second since the event's last value; stores the new value."""
    before, before_s = event.value, event.read_s
    event.value, event.read_s = value, now_s
    if isinstance(value, Unavailable):
        return value
    if broken is not None:
        return broken
    if isinstance(before, Unavailable):
        return _FIRST if before is _FIRST else _AGAIN
    grown = value - before
    if grown < 0:
        if before < _COUNTER_MODULUS // 2 or value >= _COUNTER_MODULUS // 2:
            return Unavailable(
                Why.RESTARTED,
                f"the counter went back from {before} to {value}: it restarted, or lost a part",
            )
        grown += _COUNTER_MODULUS
    return grown / (now_s - before_s) if now_s > before_s else _FIRST
