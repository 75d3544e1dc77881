"""Published controllers behind perphd's `Policy` interface, each following its paper's state machine. Pure.

They divide cores, cache ways and bandwidth throttles. A paper's other settings (frequency, network) are not available
and are left out, as each module states.
"""
