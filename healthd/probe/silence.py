"""The family "silence": takes a question and never answers. For drills of a library or a mount that hangs.

It is asked, waited for and killed as every other worker is; only what hangs is not there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn


def family(_arguments: Sequence[str]) -> SilentFamily:
    """The family takes any arguments, and heeds none."""
    return SilentFamily()


class SilentFamily:
    """Every question is one too many."""

    worn = False

    def answer(self, _op: str, _args: Mapping[str, Any]) -> NoReturn:
        """Nothing, for as long as the process lives."""
        while True:
            time.sleep(3600.0)
