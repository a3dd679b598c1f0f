"""Shared by every package: data, errors, the check contract, the node protocols. It imports no other package."""
