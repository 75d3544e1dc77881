"""The simulated kernel: in-memory trees of kernel files that behave like the kernel's.

``vfs`` contains the nodes, ``faces`` the interfaces for programs in this process (``SimFs`` for perphd,
``RawFs`` for rdt); the packages beside them define the content of the files.
"""

from perphd.sim.kernel.faces import RawFs, SimFs
from perphd.sim.kernel.vfs import Directory, File, OpenFile, Reader, Writer, caller_uid, refuse

__all__ = ["Directory", "File", "OpenFile", "RawFs", "Reader", "SimFs", "Writer", "caller_uid", "refuse"]
