"""Fuzzing: changed real inputs for every parser of text that healthd did not write. `make fuzz`; CONTRIBUTING.md."""
