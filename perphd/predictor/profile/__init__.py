"""Warm starts: what exploring an application's allocations on purpose has told, trained off line, kept as a file.

Pure values and numpy; LightGBM is only ever imported by the worker process (``worker``). The exploring itself is
done by ``perphd.agent.profiling``.
"""

from perphd.predictor.profile.file import FileError, Metrics, Origin, Profile, from_text, to_text
from perphd.predictor.profile.lattice import Axis, Lattice

__all__ = ["Axis", "FileError", "Lattice", "Metrics", "Origin", "Profile", "from_text", "to_text"]
