"""The state machine of one LRA: its state between ticks, its decision in a tick, and the life cycle of a change."""
