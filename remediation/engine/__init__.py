"""Carrying a decision out on one node: each step is written down, done once, and read back."""
