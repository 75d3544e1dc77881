"""Authorisation by the credentials that the kernel reports for the peer, never by data that the peer sends."""

from __future__ import annotations

import grp
import os
import pwd
import socket
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from perphd.control.errors import ApiError, Code
from perphd.domain.control import Actor
from perphd.domain.utf8 import printable
from perphd.domain.workload import WorkloadSpec

_SO_PEERGROUPS = 59  # asm-generic/socket.h, Linux 4.13; Python's socket module has no name for it
_UCRED = struct.Struct("3i")
_PEERGROUPS_BYTES = 1024  # maximum of socket.getsockopt: 256 groups
_GID = struct.Struct("I")
_COMMAND_BYTES = 200  # maximum length of a recorded command line


class Right(StrEnum):
    """The right that a request needs."""

    READ = "read"
    SUBMIT = "submit"  # includes the right to cancel one's own jobs
    CHANGE = "change"


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end of a connection, as the kernel recorded it at connect(2).

    Later changes of the process therefore cannot cause a race. ``gids``: all groups of its user. ``gid``: the primary
    group; None if unknown.
    """

    pid: int
    uid: int
    gids: frozenset[int]
    gid: int | None = None

    def __str__(self) -> str:
        named = self.user if self.user != str(self.uid) else "without a name"
        return f"user {named} (uid {self.uid}, pid {self.pid})"

    @property
    def user(self) -> str:
        """The user's name, or its number if it has no name."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)

    def actor(self) -> Actor:
        """The peer for the record, with its command line if the process still runs."""
        try:
            with open(f"/proc/{self.pid}/cmdline", "rb") as file:
                words = file.read(_COMMAND_BYTES).rstrip(b"\0").split(b"\0")
        except OSError:
            words = []
        command = " ".join(word.decode(errors="replace") for word in words)
        return Actor(self.user, self.uid, self.pid, printable(command))


def peer_of(connection: socket.socket) -> Peer:
    """Credentials of a connected Unix socket's peer (SO_PEERCRED, SO_PEERGROUPS: captured at connect).

    Raises:
        OSError: the kernel has no credentials (not a Unix socket, or already closed).
    """
    pid, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _PEERGROUPS_BYTES)
        groups = {number for (number,) in _GID.iter_unpack(raw)}
    except OSError:
        # Before Linux 4.13, or with more than 256 groups: use the user database. It may differ from the
        # groups of the process (for example, a group joined after login), but the peer cannot forge it.
        groups = _groups_of_user(uid, gid)
    return Peer(pid, uid, frozenset(groups | {gid}), gid)


def _groups_of_user(uid: int, gid: int) -> set[int]:
    try:
        return set(os.getgrouplist(pwd.getpwuid(uid).pw_name, gid))
    except (KeyError, OSError):
        return set()


@dataclass(frozen=True, slots=True)
class Access:
    """The access rule.

    A gid is None if the group does not exist; it then grants nothing. ``owner_uid``: the daemon's own user, who
    could stop the daemon anyway. ``submit_gid``: readers in this group may submit jobs.
    """

    read_group: str
    admin_group: str
    read_gid: int | None
    admin_gid: int | None
    owner_uid: int
    submit_group: str = ""
    submit_gid: int | None = None

    @classmethod
    def of_groups(cls, read_group: str, admin_group: str, submit_group: str = "") -> Access:
        """The rule for these groups of this host."""
        gids = [_gid(group) if group else None for group in (read_group, admin_group, submit_group)]
        return cls(read_group, admin_group, gids[0], gids[1], os.geteuid(), submit_group, gids[2])

    def is_owner(self, peer: Peer) -> bool:
        """True for root and for the daemon's own user."""
        return peer.uid in (0, self.owner_uid)

    def allows(self, peer: Peer, right: Right) -> bool:
        """True if the peer has this right."""
        if self.is_owner(peer) or self.admin_gid in peer.gids:
            return True
        if right is Right.CHANGE or self.read_gid not in peer.gids:
            return False
        return right is Right.READ or self.submit_gid in peer.gids

    def refusal(self, peer: Peer, right: Right) -> str:
        """The message for a peer without the right."""
        verb = {Right.READ: "ask", Right.SUBMIT: "submit jobs", Right.CHANGE: "change anything"}[right]
        return f"{peer} may not {verb} here: this is reserved for {self.needed(right)}"

    def needed(self, right: Right) -> str:
        """The holders of this right, in words."""
        admins = f"root or a member of group {self.admin_group}"
        if self.admin_gid is None:
            admins = f"root (there is no group {self.admin_group} on this host)"
        if right is Right.CHANGE:
            return admins
        if right is Right.SUBMIT:
            return f"{admins} or a member of group {self.submit_group or 'in queue.group'}"
        missing = " (not on this host)" if self.read_gid is None else ""
        return f"{admins} or a member of group {self.read_group}{missing}"


def _gid(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


_SOURCES: Final = frozenset({"command", "file"})
_SLI_OPTIONS: Final = frozenset({"password_file"})


def check_harmless(spec: WorkloadSpec) -> None:
    """Refuse a workload that only root may add.

    Raises:
        ApiError: names the part that is refused.
    """
    if spec.version_from.startswith("file:"):
        raise _refusal(
            "a version_from with a file", "lra.tuning.version_from", '"auto", "none" or "label:KEY"'
        )
    if spec.sli is None:
        return
    if spec.sli.source in _SOURCES:
        raise _refusal(f"an SLI of source {spec.sli.source!r}", "lra.sli.source")
    for key, _ in spec.sli.options:
        if key in _SLI_OPTIONS:
            raise _refusal(f"an SLI with {key}", f"lra.sli.{key}")


def _refusal(what: str, key: str, allowed: str = "") -> ApiError:
    text = f"{what} may only be added by root, or in a file of /etc/perphd: it acts with root's rights"
    return ApiError(Code.NOT_PERMITTED, text, key, allowed)
