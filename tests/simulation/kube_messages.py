"""The receiver of a simulated Kubernetes fleet: production's notifiers of agents and of the leader send to it.

It confirms a message or does not, as they do, and keeps what it was last told of each topic. What must be true of it:
a topic that no notifier is wrong about any more is over, and one that an operator is needed for is paged.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from healthd.api.controller_stats import ControllerStats
from healthd.config.schema.notify import NotifySection
from healthd.controller import notifications
from healthd.notify.delivery import Deliver, NotDeliveredError, Receiver
from healthd.notify.message import Message, Sender
from healthd.notify.news import PAGED, NewsKind
from healthd.notify.node import node_notifier
from healthd.notify.notifier import Notifier
from healthd.remediation.engine.engine import Engine
from healthd.remediation.orchestrators.kubernetes.lease_notes import LeaseNotes
from healthd.state.monitor import Monitor
from healthd.state.store import Store

LEADER = "controller"
_FAILS = 0.1
_PER_HOUR = 60


class Pager:
    """``standing``: by speaker, what it said of each topic that is not over. ``fails``: whether a delivery may."""

    def __init__(self, random: Random, fails: Callable[[], bool], note: Callable[[str], None]) -> None:
        self._random, self._fails, self._note = random, fails, note
        self.standing: dict[str, dict[str, str]] = {}
        self.messages = self.pages = 0

    def receiver(self, who: str) -> dict[str, Receiver]:
        return {"oncall": Receiver(deliver=self._from(who))}

    def _from(self, who: str) -> Deliver:
        def deliver(message: Message) -> None:
            if self._fails() and self._random.random() < _FAILS:
                raise NotDeliveredError("the receiver answered 503")
            self.messages += 1
            for piece in message.data["news"]:
                self._hear(who, piece)

        return deliver

    def _hear(self, who: str, piece: dict[str, Any]) -> None:
        key, words, standing = piece["key"], piece["message"], self.standing.setdefault(who, {})
        self._note(f"{who} says {piece['state']}: {key}: {words}")
        if NewsKind(piece["state"]) in (NewsKind.OVER, NewsKind.ENDED):
            standing.pop(key, None)
            return
        self.pages += key.startswith(PAGED) and key not in standing
        standing[key] = words

    def of(self, who: str) -> dict[str, str]:
        return self.standing.get(who, {})

    def is_paged(self, node: str) -> bool:
        """Whether an operator knows that this node needs one, by the node or by the leader."""
        own, leader = self.of(node), self.of(LEADER)
        return any(key.startswith(PAGED) for key in own) or f"{PAGED}{node}" in leader

    def forget(self, who: str) -> None:
        """Its Node is deleted, with the machine that would say that its topics are over."""
        self.standing.pop(who, None)


def agent_notifier(pager: Pager, node: str, monitor: Monitor, engine: Engine, store: Store) -> Notifier:
    """As ``healthd.daemon`` puts it together."""
    return node_notifier(
        pager.receiver(node),
        NotifySection(per_hour=_PER_HOUR),
        monitor,
        engine=engine,
        store=store,
        about=lambda: Sender(node=node),
    )


def leader_notifier(pager: Pager, stats: ControllerStats, told: LeaseNotes) -> Notifier:
    """As ``healthd.controller.run`` begins to send where a lead begins. Raises StoreError while it cannot read what the
    leader before it has reported."""
    return notifications.leader_notifier(
        pager.receiver(LEADER), NotifySection(per_hour=_PER_HOUR), stats, name=LEADER, kept=told.kept(), keep=told.keep
    )
