"""Committed datasets: files in a folder or an object store that become readable all at once, by one manifest.

Nothing is renamed, copied or listed. Each attempt writes its parts under names of its own; ``_SUCCESS`` then names
those of one attempt, with sizes and digests. A reader trusts the manifest alone. The protocol is Stocator's (F. Pace,
"Mechanisms for Efficient and Responsive Distributed Applications in Compute Clusters", 2018, section 6.3).
"""
