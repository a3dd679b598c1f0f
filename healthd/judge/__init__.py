"""Judgement over time, pure: outcomes in, open faults and diagnoses out. No clock, no file, no process."""
