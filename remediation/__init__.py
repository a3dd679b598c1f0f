"""Deciding and acting: policy, budget and playbook are pure; the engine and its back ends do the I/O."""
