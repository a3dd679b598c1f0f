"""Kubernetes as orchestrator: claims on a Lease, taints, evictions, NodeHealth."""
