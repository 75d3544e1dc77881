"""resctrl for Python: the kernel's interface to cache ways, memory bandwidth and their monitoring.

    from rdt import Resctrl, Schemata

    resctrl = Resctrl.open()                       # what is mounted at /sys/fs/resctrl; mounts nothing itself
    groups = resctrl.groups("myprog")              # own groups are named myprog.<key>
    made = groups.make("database")
    groups.ensure(made.group, Schemata.of({"L3": {0: 0x0F}, "MB": {0: 50}}))
    groups.fill(made.group, lambda: map(int, open("/sys/fs/cgroup/db/cgroup.threads")))
    groups.sweep()                                 # remove all own groups

Every failure is a ``ResctrlError`` of a class that says what to do about it. ``rdt`` uses the standard library only.
"""

from rdt.errors import (
    Broken,
    Busy,
    Denied,
    Full,
    Gone,
    Invalid,
    Mismatch,
    ResctrlError,
    Unsupported,
)
from rdt.fill import Filled, TidSource
from rdt.frozen import FrozenDict
from rdt.fs import Fs, RealFs
from rdt.groups import Groups, Limits, Made, Survey
from rdt.info import BandwidthInfo, BandwidthUnit, CacheInfo, Info, MonitoringInfo
from rdt.mount import DEFAULT_ROOT, Mount, find_mount, mount, mount_command, mount_options, support
from rdt.names import DEFAULT_GROUP, GroupRef, Prefix
from rdt.resctrl import Applied, CpusChanged, DomainChange, Resctrl
from rdt.schemata import Cell, Difference, Schemata

__all__ = [
    "Resctrl", "Groups", "GroupRef", "Prefix", "DEFAULT_GROUP", "Limits", "Made", "Survey", "Filled", "TidSource",
    "Schemata", "Cell", "Difference", "Applied", "CpusChanged", "DomainChange",
    "Info", "CacheInfo", "BandwidthInfo", "BandwidthUnit", "MonitoringInfo", "FrozenDict",
    "Mount", "mount", "mount_options", "mount_command", "find_mount", "support", "DEFAULT_ROOT",
    "Fs", "RealFs",
    "ResctrlError", "Busy", "Full", "Gone", "Invalid", "Unsupported", "Denied", "Broken", "Mismatch",
]  # fmt: skip
