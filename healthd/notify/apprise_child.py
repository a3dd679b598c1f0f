"""Delivers one message by Apprise, in a process of its own that ends: Apprise is loaded here and nowhere else.

JSON comes in on stdin. Exit code 0: the service has accepted it; else stdout says why not. It has no retries: the
notifier has them.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

ABSENT = "Apprise is not installed: install healthd with its extra `notify`, or `pip install apprise`"


def main() -> int:
    """Deliver the message that stdin holds."""
    problem = delivered(json.load(sys.stdin))
    sys.stdout.write(problem)
    return 1 if problem else 0


def delivered(question: Mapping[str, str]) -> str:
    """Why it was not delivered, or ""."""
    try:
        import apprise
    except ImportError:
        return ABSENT
    kept = question["storage"]
    storage: dict[str, Any] = {"storage_path": kept, "storage_mode": "flush"} if kept else {}
    asset = apprise.AppriseAsset(app_id="healthd", app_desc="healthd", async_mode=False, **storage)
    url = question["url"]
    if kept:
        mark = "&" if "?" in url else "?"
        url += f"{mark}action=map&alias={quote(question['alias'], safe='')}"
    service = apprise.Apprise(asset=asset)
    with apprise.LogCapture(level=logging.WARNING, fmt="%(message)s") as log:  # type: ignore[no-untyped-call]
        if not service.add(url):
            return f"Apprise does not understand this URL: {log.getvalue()}"
        accepted = service.notify(
            title=question["title"], body=question["body"], notify_type=question["kind"], body_format="text"
        )
        return "" if accepted else f"not accepted: {log.getvalue()}"


if __name__ == "__main__":
    sys.exit(main())
