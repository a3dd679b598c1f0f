"""What a test changes in the parts that a simulated fleet is made of, to see that the invariants find it.

Nothing in production knows of this: a change wraps or replaces what is handed in.
"""

from __future__ import annotations

from healthd.remediation.controller import Controller
from healthd.remediation.parts import Parts


class Change:
    """None: the parts as production has them."""

    name = ""

    def parts(self, parts: Parts, node: str) -> Parts:
        """The parts of one daemon's engine."""
        return parts

    def controller(self, controller: Controller) -> Controller:
        """The controller."""
        return controller
