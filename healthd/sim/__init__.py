"""The simulated node: what stands in for hardware in the demo, in drills and in tests.

The rule of this package: it is chosen by configuration, under names that say so (``….sim``), never by a switch in the
code it stands in for; and it answers through the same ports, so nothing downstream can tell except by that name.

What neither the demo nor a drill breaks, tests do: ``nvml_state`` and ``tree`` are also for tests of checks, of those
written elsewhere too.
"""
