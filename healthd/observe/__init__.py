"""Looking at the node: runs the checks and reports what they found. Knows nothing of remediation."""
