"""Slurm as orchestrator: drains with a reason, and slots in the nodes' features and comments."""
