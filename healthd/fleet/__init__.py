"""The fleet as one picture: what every node says of itself, what the cluster says of it, grouped by cause.

It reads and shows. Nothing here takes part in a decision.
"""
