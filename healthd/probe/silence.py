"""The family "silence": takes a question and never answers. For drills of a library or a mount that hangs.

The parent asks, waits for and kills it as any other worker; only the hanging library is missing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn


def family(_arguments: Sequence[str]) -> SilentFamily:
    """The family takes any arguments, and ignores them."""
    return SilentFamily()


class SilentFamily:
    """A family that answers no question."""

    worn = False

    def answer(self, _op: str, _args: Mapping[str, Any]) -> NoReturn:
        """Sleep for as long as the process lives."""
        while True:
            time.sleep(3600.0)
