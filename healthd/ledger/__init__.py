"""The memory of a fleet: every fault, repair, return and replacement, and for how long each node was watched.

It is for statistics and support cases. No decision reads it, and losing it loses statistics and nothing else.
"""
