"""The node model: computes performance, usage and pressure of workloads from their grants.

It works in virtual time, without kernel files. Start with ``model.Node``. ``grant`` describes the settings in force;
``workload`` and ``machine`` describe what the settings apply to.
"""
