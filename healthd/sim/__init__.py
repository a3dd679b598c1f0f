"""The simulated node: it replaces hardware in the demo, in drills and in tests.

The rule of this package: configuration selects it, under names that say so (``….sim``), never a switch in the code that
it replaces; and it answers through the same ports, so nothing downstream can distinguish it except by that name.

Faults beyond those of the demo and the drills come from ``nvml_state`` and ``tree``. Tests use them, also those of
checks written elsewhere.
"""
