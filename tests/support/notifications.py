"""A message about an incident, for tests of those who deliver it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from healthd.core.model import Severity
from healthd.notify.message import IncidentState, Message, Notification, Occasion, Sender

SINCE = datetime(2026, 11, 25, 3, 0, 5, tzinfo=UTC)
NOW = datetime(2026, 11, 25, 3, 0, 20, tzinfo=UTC)
SENDER = Sender(node="gpu-213", verdict="critical", instance_id="i-0a1b", instance_type="p5.48xlarge", mode="repair")


def a_message(*, text: str = "", before: str = "", **fields: Any) -> Message:
    """A GPU that fell off the bus, on a node that is being rebooted; ``fields``: of the notification."""
    about: dict[str, Any] = {
        "id": "train-a/gpu-213/gpu.xid.79",
        "event": Occasion.OPENED,
        "state": IncidentState.OPEN,
        "title": "gpu-213 drained: GPU 3 fell off the bus (XID 79). Rebooting now.",
        "severity": Severity.CRITICAL,
        "needs_operator": False,
        "cluster": "train-a",
        "node": "gpu-213",
        "code": "gpu.xid.79",
        "devices": "GPU 3",
        "step": "reboot",
        "runbook": "https://docs.example.com/runbooks/gpu.xid.79.html",
        "page": "https://healthd.example.com/gpu-213",
        "since": SINCE,
        "at": NOW,
        "sender": SENDER,
        **fields,
    }
    title = about["title"]
    return Message(text=text or f"{title}\nPROBLEM: <a> & b", about=Notification(**about), before=before)
