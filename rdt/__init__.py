"""resctrl for Python: the kernel's interface to cache ways, memory bandwidth and their monitoring.

    from rdt import Resctrl, Schemata

    resctrl = Resctrl.open()                       # the resctrl mounted at /sys/fs/resctrl; mounts nothing
    groups = resctrl.groups("myprog")              # own groups are named myprog.<key>
    made = groups.make("database")
    groups.ensure(made.group, Schemata.of({"L3": {0: 0x0F}, "MB": {0: 50}}))
    groups.fill(made.group, lambda: map(int, open("/sys/fs/cgroup/db/cgroup.threads")))
    groups.sweep()                                 # remove all own groups

Every failure is a ``ResctrlError``; its class tells the caller what to do. ``rdt`` uses the standard library
only.
"""

from rdt.access import Holder, lock_holders
from rdt.cbm import Cbm
from rdt.errors import (
    Broken,
    Busy,
    Denied,
    Full,
    Gone,
    Invalid,
    Locked,
    Mismatch,
    ResctrlError,
    Unsupported,
)
from rdt.fill import Filled, TidSource
from rdt.frozen import FrozenDict
from rdt.fs import Fs, RealFs
from rdt.groups import Groups, Limits, Made, Survey
from rdt.info import BandwidthInfo, BandwidthUnit, CacheInfo, Info, MonitoringInfo
from rdt.monitor import Monitor
from rdt.mount import DEFAULT_ROOT, Mount, find_mount, mount_command, mount_options, mount_resctrl, support
from rdt.names import DEFAULT_GROUP, GroupRef, Prefix
from rdt.reading import GroupReading, Reading, Unavailable, Why
from rdt.resctrl import Resctrl
from rdt.schemata import Applied, Cell, CpusChanged, Difference, DomainChange, Schemata, check, differences

__all__ = [
    "Resctrl", "Groups", "GroupRef", "Prefix", "DEFAULT_GROUP", "Limits", "Made", "Survey", "Filled", "TidSource",
    "Schemata", "Cbm", "Cell", "Difference", "check", "differences", "Applied", "CpusChanged", "DomainChange",
    "Info", "CacheInfo", "BandwidthInfo", "BandwidthUnit", "MonitoringInfo", "FrozenDict",
    "Mount", "mount_resctrl", "mount_options", "mount_command", "find_mount", "support", "DEFAULT_ROOT",
    "Monitor", "GroupReading", "Reading", "Unavailable", "Why",
    "Fs", "RealFs",
    "Holder", "lock_holders",
    "ResctrlError", "Busy", "Locked", "Full", "Gone", "Invalid", "Unsupported", "Denied", "Broken", "Mismatch",
]  # fmt: skip
