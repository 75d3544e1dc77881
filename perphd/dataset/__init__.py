"""Committed datasets: files in a folder or object store that one manifest makes readable at once.

Nothing is renamed, copied or listed. Each attempt writes its parts under unique names. ``_SUCCESS`` then
names the parts of one attempt with sizes and digests, and readers trust this manifest alone. The protocol is
Stocator's (F. Pace, "Mechanisms for Efficient and Responsive Distributed Applications in Compute Clusters",
2018, section 6.3).
"""
