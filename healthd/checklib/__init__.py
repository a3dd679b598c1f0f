"""Readings that several checks share. A check may import this package, ``core`` and nothing else of healthd."""
