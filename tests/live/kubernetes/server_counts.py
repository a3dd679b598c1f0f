"""What an API server says that it served, by its own metrics: counted there, whatever its clients believe."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from tests.live.kubernetes.api_client import ApiClient

_SERVED = re.compile(r"^apiserver_request_total\{([^}]*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_WRITES = ("POST", "PUT", "PATCH")


class Served(NamedTuple):
    """One kind of request. ``verb`` as in HTTP, LIST and WATCH apart; ``code`` the status that was answered."""

    verb: str
    resource: str
    subresource: str
    code: int


def served(client: ApiClient) -> Counter[Served]:
    """How many requests of each kind were answered since the API server was started."""
    text = client.get("/metrics").must()["text"].decode()
    found: Counter[Served] = Counter()
    for labels, value in _SERVED.findall(text):
        message = dict(_LABEL.findall(labels))
        code = int(message["code"]) if message["code"].isdecimal() else 0
        found[Served(message["verb"], message["resource"], message["subresource"], code)] += int(float(value))
    return found


def written(counts: Counter[Served], *resources: str) -> int:
    """How many writes of these resources were applied."""
    return sum(
        count
        for each, count in counts.items()
        if each.verb in _WRITES and each.resource in resources and 200 <= each.code < 300
    )


def conflicts(counts: Counter[Served], *resources: str) -> int:
    """How many writes of these resources were refused because the object was another than was read, or there."""
    return sum(count for each, count in counts.items() if each.resource in resources and each.code == 409)
