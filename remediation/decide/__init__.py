"""Deciding, pure: diagnoses, rules, the node and the fleet in; one decision out. It reads nothing."""
