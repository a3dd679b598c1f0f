"""The configuration as typed sections, one module each."""
