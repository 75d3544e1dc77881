"""The node model: who may use what in, performance, usage and pressure out. Pure, in virtual time, no kernel files.

``model.Node`` is the entry; ``grant`` says what is in force, ``workload`` and ``machine`` what meets it.
"""
