"""Amazon EventBridge: an event when a node is drained, when its repair begins, and when it is released.

Each is one ``PutEvents`` of the table of calls, in a child that ends (``provisioners.aws``). A call without an answer
may have been applied, so it is sent again: ``events_of`` says what identifies an event. EventBridge refuses a larger
entry each time, so ``detail_of`` shortens its texts. Source: Amazon EventBridge API Reference, "PutEvents" (2026): an
entry that failed is in the answer, with status 200; an entry has less than 256 KB, with the keys of the event's JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec

from healthd.core.encodable import json_text
from healthd.core.errors import BackendError
from healthd.core.model import REPAIRS
from healthd.notify.delivery import CHILD_TIMEOUT_S, TIMEOUT_S, Deliver, NotDeliveredError, RefusedError
from healthd.notify.message import Message, Notification
from healthd.notify.news import NODE_KEY, NewsKind
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.iam import EVENT_SOURCE
from healthd.sources.deadline import Deadline

DRAINED, REPAIR, RELEASED, HANDED_OVER, DRILL = (
    "healthd Node Drained",
    "healthd Node Repair Begun",
    "healthd Node Released",
    "healthd Node Handed Over",
    "healthd Drill",
)
"""The detail types. HANDED_OVER: healthd's part is over, and healthd did not put the node back itself."""
MOST_BYTES = 240 * 1024
"""The most bytes of a detail: 256 KB less what EventBridge itself writes into an event, which is under 1 KB."""
_SHORTER = ((8_192, 200), (1_024, 100), (128, 20))
"""How a document is shortened, as far as it must be: characters of a text, and elements of a list."""


def to_eventbridge(bus: str, aws: Aws | None = None, *, timeout_s: float = CHILD_TIMEOUT_S) -> Deliver:
    """``bus``: the ARN of the event bus, which names its region."""
    client = aws or Aws(region=bus.split(":")[3], timeout_s=TIMEOUT_S)

    def deliver(message: Message) -> None:
        within = client.within(Deadline(timeout_s))
        for kind in events_of(message.about):
            _put(within, _entry(bus, kind, message.about))

    return deliver


def events_of(about: Notification) -> tuple[str, ...]:
    """The detail types of what a message tells about the node's service. An event that comes again has the same detail
    type, ``id`` and ``since`` of its news, and of a repair the same ``step``."""
    if about.drill:
        return (DRILL,)
    news = next((each for each in about.news if each.key == NODE_KEY), None)
    if news is None:
        return ()
    begun = (REPAIR,) if about.step in REPAIRS else ()
    match news.state:
        case NewsKind.STILL:
            return ()
        case NewsKind.NOW if not news.out:
            return (HANDED_OVER,)
        case _ if not news.out:  # healthd never had this node
            return ()
        case NewsKind.OVER:
            return (RELEASED,)
        case NewsKind.ENDED:
            return (HANDED_OVER,)
        case NewsKind.STEP:
            return begun
        case NewsKind.WRONG | NewsKind.NOW:
            return (DRAINED, *begun)


def detail_of(about: Notification) -> str:
    """The document that a webhook gets, as JSON of MOST_BYTES at most. ``cut`` counts the characters that it
    lost, and each text that was cut ends with an ellipsis; what identifies the event is whole."""
    whole = json_text(about)
    if _bytes(whole) <= MOST_BYTES:
        return whole
    fields = msgspec.json.decode(whole)
    fields["news"].sort(key=lambda each: each["key"] != NODE_KEY)
    text = whole
    for characters, elements in _SHORTER:
        short = {**_shortened(fields, characters, elements), "id": fields["id"]}
        text = json_text({**short, "cut": max(1, len(whole) - len(json_text(short)))})
        if _bytes(text) <= MOST_BYTES:
            break
    return text


def _entry(bus: str, kind: str, about: Notification) -> dict[str, Any]:
    """One entry of PutEvents."""
    instance = about.sender.instance_id
    return {
        "EventBusName": bus,
        "Source": EVENT_SOURCE,
        "DetailType": kind,
        "Time": about.at.isoformat(),
        "Resources": [instance] if instance else [],
        "Detail": detail_of(about),
    }


def _shortened(value: Any, characters: int, elements: int) -> Any:
    match value:
        case str():
            return value if len(value) <= characters else f"{value[: characters - 1]}…"
        case dict():
            return {name: _shortened(each, characters, elements) for name, each in value.items()}
        case list():
            return [_shortened(each, characters, elements) for each in value[:elements]]
    return value


def _bytes(text: str) -> int:
    return len(text.encode())


def _put(client: Aws, entry: dict[str, Any]) -> None:
    """An entry a call: IAM's condition on the source is one on a single value then."""
    try:
        answer = client.call("events", "PutEvents", Entries=[entry])
    except (BackendError, TimeoutError) as error:
        raise NotDeliveredError(str(error)) from error
    if answer.get("FailedEntryCount"):
        failed = answer["Entries"][0]
        code, why = failed.get("ErrorCode", "no code"), failed.get("ErrorMessage", "no message")
        raise RefusedError(f"events:PutEvents: {code}: {why}")
