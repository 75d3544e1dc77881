"""The node model: grants in; performance, usage and pressure out. Pure, in virtual time, without kernel files.

Start with ``model.Node``; ``grant`` describes the settings in force, ``workload`` and ``machine`` what they apply to.
"""
