"""Observes the node: runs the checks and reports their findings. Knows nothing of remediation."""
