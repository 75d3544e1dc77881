"""Paths of reads and writes from an application to the disks: layers, network links, flaws.

A link is one transfer between two hosts: a request, a copy to a replica, an acknowledgement. Links are
counted for one record and a successful operation. Source: F. Pace, "Mechanisms for Efficient and Responsive
Distributed Applications in Compute Clusters", 2018, chapter 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from perphd.domain.reading import NOT_MEASURED, Reading


class Place(StrEnum):
    """Location of data, from near to far."""

    LOCAL = "local disk"
    VOLUME = "replicated volume"
    REMOTE_FS = "remote file system"
    OBJECT = "object store"


class Copying(StrEnum):
    """Replication scheme of a layer."""

    CHAIN = "chain"  # each replica sends to the next, one acknowledgement comes back (HDFS)
    PRIMARY = "primary"  # a primary sends to the other replicas in parallel and waits for them (Ceph, DRBD)
    CLIENT = "client"  # the client itself writes all replicas in parallel (RAID, Gluster)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a path. Layers are ordered from the application to the disks."""

    name: str
    place: Place
    copies: int = 1
    remote: bool = False
    gateway: bool = False
    copying: Copying = Copying.PRIMARY
    assumed: bool = False

    @property
    def crosses_network(self) -> bool:
        """True if a write to it leaves the host."""
        return self._write_links > 0

    @property
    def _read_links(self) -> int:
        if self.gateway:
            return 4  # links: to the proxy, to the storage, and back
        return 2 if self.remote else 0

    @property
    def _write_links(self) -> int:
        if self.gateway:
            return 4  # links: to the proxy, to the copies in parallel, and two acknowledgements
        if self.copying is Copying.CHAIN:
            links = self.remote + self.copies - 1
            return links + 1 if links else 0
        if self.copying is Copying.CLIENT:
            return 2 if self.remote else 0
        return (2 if self.remote else 0) + (2 if self.copies > 1 else 0)


def links_read(layers: Sequence[Layer]) -> int:
    """Links that one read crosses: one copy of each layer is read."""
    return sum(layer._read_links for layer in layers)


def links_write(layers: Sequence[Layer]) -> int:
    """Links that one write crosses: every copy of a layer is a write to the layer below it."""
    links, copies = 0, 1
    for layer in layers:
        links += copies * layer._write_links
        copies *= layer.copies
    return links


@dataclass(frozen=True, slots=True)
class IoUse:
    """Files or connections of a workload that share one path.

    ``what``: a mount point with its file system, or a peer's address. ``count``: open files or connections.
    ``example``: path of one of the files; empty for connections. ``peer``: address of the peer; empty for files.
    ``note``: parts of the path that are not visible from this host.
    """

    what: str
    layers: tuple[Layer, ...]
    count: int
    example: str = ""
    peer: str = ""
    note: str = ""

    @property
    def place(self) -> Place:
        """The farthest place on the path."""
        return max((layer.place for layer in self.layers), key=_FARTHER.index)

    @property
    def links(self) -> tuple[int, int]:
        """Links of a read and of a write."""
        return links_read(self.layers), links_write(self.layers)


_FARTHER: Final = tuple(Place)


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """Time of a workload's threads by activity, as a mean number of threads (0.5: half of one thread's time).

    ``cpu``: running. ``block``: waiting for block devices; ``block_source``: how that was measured.
    ``network``: waiting for remote storage. ``stalled_pct``: share of the time in which some thread waited
    for I/O (PSI).
    """

    seconds: float
    cpu: Reading = NOT_MEASURED
    block: Reading = NOT_MEASURED
    network: Reading = NOT_MEASURED
    stalled_pct: Reading = NOT_MEASURED
    refaults_per_s: Reading = NOT_MEASURED
    block_source: str = ""


def farthest(uses: Iterable[IoUse]) -> IoUse | None:
    """The use with the most links per write, then per read; None if there are no uses."""
    return max(uses, key=lambda use: (use.links[1], use.links[0], _FARTHER.index(use.place)), default=None)


def flaws(uses: Sequence[IoUse]) -> tuple[str, ...]:
    """Flaws of these paths, as sentences.

    They are data replicated twice, and all connections to a remote file system or object store ending at one host.
    """
    found = []
    for use in uses:
        twice = [layer for layer in use.layers if layer.copies > 1 and layer.crosses_network]
        if len(twice) > 1:
            names = " and ".join(layer.name for layer in twice)
            best = min(links_write(_single(use.layers, kept)) for kept in twice)
            found.append(
                f"{use.what}: {names} both replicate: a write crosses {use.links[1]} links, "
                f"{best} if only one of them did"
            )
    for place in (Place.OBJECT, Place.REMOTE_FS):
        remote = [use for use in uses if use.peer and use.place is place]
        hosts = {use.peer.rpartition(":")[0] for use in remote}
        count = sum(use.count for use in remote)
        if len(hosts) == 1 and count > 1:
            found.append(
                f"all {count} connections to the {place} end at one host, {hosts.pop()}: its link bounds them all"
            )
    return tuple(found)


def _single(layers: Sequence[Layer], kept: Layer) -> list[Layer]:
    """The layers as if only ``kept`` replicated."""
    return [
        layer
        if layer is kept or layer.copies == 1
        else Layer(layer.name, layer.place, 1, layer.remote, layer.gateway, layer.copying)
        for layer in layers
    ]
