"""``healthd status`` without a daemon: there is nothing to tell, and that is said."""

from __future__ import annotations

from argparse import Namespace

from healthd.api.wire import Answer


def answer(options: Namespace) -> Answer:
    """Exit 2: unknown."""
    where = options.socket or "$HEALTHD_SOCKET or the default socket"
    return Answer(
        code=2, err=f"healthd: no daemon answers at {where}; start it with `healthd run`, or use `healthd check`\n"
    )
