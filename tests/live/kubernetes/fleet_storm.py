"""Many nodes of a fleet that fail within seconds: for each an agent with the token of its own node, who wants it out.

An agent here is the product's keeper of places over the product's orchestrator, asked again as the engine asks again.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct

from healthd.core.errors import BackendError
from healthd.remediation.decide.fleet import HoldsSlots
from healthd.remediation.engine.slots import SlotKeeper
from healthd.remediation.orchestrators.kubernetes.orchestrator import KubernetesOrchestrator
from tests.live.kubernetes.agent_rig import Agents
from tests.live.kubernetes.control_plane import ControlPlane
from tests.live.kubernetes.every_version import EveryVersion

REASON = "healthd: gpu.xid.79 gpu:GPU-8e2f [k3v9]"
AFTER_S = 5.0


class Seen(Struct, frozen=True, kw_only=True):
    """What a storm came to. ``went``: those that were taken out, in that order; ``last_s``: when the last one was, in
    seconds after the first fault. ``most_claims``: in any version of the budget; ``wrong``: see EveryVersion."""

    went: tuple[str, ...]
    last_s: float
    most_claims: int
    versions: int
    no_answer: int
    wrong: tuple[str, ...]


class Storm:
    """The agents of ``failing``, connected. ``close`` ends their connections."""

    def __init__(self, plane: ControlPlane, folder: Path, failing: Sequence[str]) -> None:
        self._plane, self._ends = plane, ExitStack()
        opened = Agents(plane, folder)
        self._ends.callback(opened.close)
        with ThreadPoolExecutor(16) as pool:
            self._agents = dict(zip(failing, pool.map(opened, failing), strict=True))
        self._went: list[tuple[float, str]] = []
        self._no_answer = 0

    def close(self) -> None:
        """End every connection."""
        self._ends.close()

    def run(self, *, room: int, within_s: float, settle_s: float = 1.0) -> Seen:
        """All fail within a second and ask for their places, until so many are out; then for five seconds more, in
        which nobody else may go, or until ``within_s`` is over."""
        versions, stop, began_s = EveryVersion(self._plane), threading.Event(), time.monotonic()
        work = [threading.Thread(target=self._fails, args=(name, settle_s, stop)) for name in self._agents]
        for each in work:
            each.start()
        _until(lambda: len(self._went) >= room, began_s + within_s)
        time.sleep(AFTER_S)
        stop.set()
        for each in work:
            each.join()
        versions.stop()
        return Seen(
            went=tuple(name for _, name in self._went),
            last_s=max((at_s for at_s, _ in self._went), default=began_s) - began_s,
            most_claims=versions.most_claims,
            versions=versions.versions,
            no_answer=self._no_answer,
            wrong=tuple(versions.wrong),
        )

    def _fails(self, name: str, settle_s: float, stop: threading.Event) -> None:
        agent, chance = self._agents[name], random.Random(name)  # noqa: S311 - no secret
        keeper = _keeper(agent, name, settle_s, chance)
        stop.wait(chance.random())
        while not stop.is_set():
            try:
                if isinstance(keeper.take(), HoldsSlots):
                    agent.quarantine(REASON)
                    self._went.append((time.monotonic(), name))
                    return
            except BackendError:  # too busy, or not now: as the engine, asked again
                self._no_answer += 1
            stop.wait(0.2 + chance.random() * 0.3)


def _keeper(agent: KubernetesOrchestrator, name: str, settle_s: float, chance: random.Random) -> SlotKeeper:
    return SlotKeeper(
        orchestrator=agent,
        node=name,
        quotas=agent.quotas,
        monotonic_s=time.monotonic,
        random=chance.random,
        settle_s=settle_s,
    )


def _until(condition: Callable[[], bool], end_s: float) -> None:
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.05)
