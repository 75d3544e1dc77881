"""Warm starts: models trained offline from a deliberate exploration of an application's allocations, kept in files.

Pure values and numpy; only the worker process (``worker``) imports LightGBM. ``perphd.agent.profiling`` does the
exploring.
"""

from perphd.predictor.profile.file import FileError, Metrics, Profile, ProfileOrigin, from_text, to_text
from perphd.predictor.profile.lattice import Axis, Lattice

__all__ = ["Axis", "FileError", "Lattice", "Metrics", "ProfileOrigin", "Profile", "from_text", "to_text"]
