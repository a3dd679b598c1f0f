"""What several checks read in the same way. A check may import this package, ``core`` and nothing else of healthd."""
