"""healthd: node health checks and remediation for GPU clusters.

This package imports nothing at import time: the ``healthd check`` client pays for every import.
"""

__version__ = "0.2.0"
