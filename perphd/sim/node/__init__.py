"""The node model: grants in; performance, usage and pressure out. Pure, in virtual time, without kernel files.

``model.Node`` is the entry; ``grant`` says what is in force, ``workload`` and ``machine`` what meets it.
"""
