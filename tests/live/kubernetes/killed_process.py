"""An agent, or ``healthd controller``, as a process that dies on order at any boundary of what it does on Kubernetes.

As ``tests.live.platforms.killed_agent``, whose boundaries and agent these are: here every request that writes to
the API server is an act. One that is cut off in its course is carried out all the same, by an orphan.

As a program this forks both: an order whose machine has a folder ``controller`` is one of a controller.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from msgspec.structs import asdict

from healthd.config.load import load
from healthd.config.schema.config import Config
from healthd.controller.kubernetes import KubernetesWork
from healthd.core.errors import BackendBusy
from healthd.core.model import Event
from healthd.core.node import CommandResult
from healthd.remediation.controller.node_status import merged
from healthd.remediation.orchestrators.kubernetes.api import KubeApi, PatchKind, ResourceKind, connect
from healthd.remediation.orchestrators.kubernetes.leader_election import LEASE, Leadership
from healthd.remediation.orchestrators.kubernetes.objects.budget import CLAIM
from healthd.remediation.orchestrators.kubernetes.objects.node import CLAIMED, HOLD
from healthd.remediation.orchestrators.kubernetes.orchestrator import KubernetesOrchestrator
from healthd.remediation.orchestrators.kubernetes.transport import Pace
from healthd.remediation.ports import Orchestrator
from healthd.remediation.request_stats import RequestStats
from tests.live.platforms.killed_agent import DyingStore, Line, Order, Rest, live, main

_LEADS_S = 1.0  # a successor waits no longer than that for a leader that was killed
_ROUND_S = 0.2
_LOOKS = 4  # rounds in which nothing happens before it is taken for rest; Nodes are gone at the second
_OFTEN = ("lead", "count")  # written in every round, whatever there is to do


class DyingApi:
    """A connection to the API server whose every write passes boundaries. ``reopened`` is another like it. ``only``:
    the one node whose NodeHealth it lists, because those of other lives stand in the same cluster; "" for all."""

    def __init__(self, line: Line, story: Path, reopened: Callable[[], KubeApi], *, only: str = "") -> None:
        self._line, self._story, self._reopened, self._api = line, story, reopened, reopened()
        self._only = only
        self.moved = 0

    def get(self, kind: ResourceKind, name: str, **more: Any) -> dict[str, Any]:
        """As KubeApi."""
        return self._api.get(kind, name, **more)

    def pages(self, kind: ResourceKind, decode: Callable[[bytes], Any], **params: str) -> Iterator[Any]:
        """As KubeApi."""
        if self._only and kind is ResourceKind.NODE_HEALTH:
            params["fieldSelector"] = f"metadata.name={self._only}"
        return self._api.pages(kind, decode, **params)

    def patch(
        self,
        kind: ResourceKind,
        name: str,
        body: Mapping[str, Any],
        *,
        how: PatchKind = PatchKind.MERGE,
        namespace: str | None = None,
        status: bool = False,
    ) -> dict[str, Any]:
        """As KubeApi."""
        more: dict[str, Any] = {"how": how, "namespace": namespace, "status": status}
        return cast(
            dict[str, Any], self._acts(act_of(kind, name, body), lambda api: api.patch(kind, name, body, **more))
        )

    def create(self, kind: ResourceKind, body: Mapping[str, Any], *, namespace: str | None = None) -> dict[str, Any]:
        """As KubeApi."""
        # The name of an Event has its object's UID in it, which is another one in each life.
        of = f"event {body['reason']}" if kind is ResourceKind.EVENT else body["metadata"]["name"]
        words = "mark" if kind is ResourceKind.NODE_HEALTH else f"create {of}"
        return cast(dict[str, Any], self._acts(words, lambda api: api.create(kind, body, namespace=namespace)))

    def evict(self, name: str, *, namespace: str, body: Mapping[str, Any]) -> None:
        """As KubeApi."""
        self._acts("evict", lambda api: api.evict(name, namespace=namespace, body=body))

    def delete(self, kind: ResourceKind, name: str, *, uid: str, version: str = "") -> None:
        """As KubeApi."""
        words = "take mark away" if kind is ResourceKind.NODE_HEALTH else "delete"
        self._acts(words, lambda api: api.delete(kind, name, uid=uid, version=version))

    def close(self) -> None:
        """As KubeApi."""
        self._api.close()

    def _acts(self, words: str, send: Callable[[KubeApi], Any]) -> Any:
        self.moved += words not in _OFTEN
        self._line.passing(f"before {words}")
        if self._line.is_fatal(f"during {words}"):
            self._orphaned(send)
        answer = send(self._api)
        self._line.passing(f"after {words}")
        return answer

    def _orphaned(self, send: Callable[[KubeApi], Any]) -> None:
        """The process dies now, and what it had begun is done a moment later."""
        parent = os.getpid()
        if os.fork() == 0:
            try:
                while os.getppid() == parent:
                    time.sleep(0.01)
                send(self._reopened())
            finally:
                (self._story / "orphan-ended").touch()
                os._exit(0)
        os.kill(parent, signal.SIGKILL)


def act_of(kind: ResourceKind, name: str, body: Mapping[str, Any]) -> str:
    """What a patch changes, in words that are the same for every node."""
    notes = body.get("metadata", {}).get("annotations", {})
    if kind is ResourceKind.NODE:
        if HOLD in notes:
            return "release" if notes[HOLD] is None else "taint"
        return "fence" if any(taint["key"] == CLAIMED for taint in body["spec"]["taints"]) else "unfence"
    if kind is ResourceKind.NODE_HEALTH:
        return "mark" if body.get("record") else "take mark away"
    if name == LEASE:
        return "lead"
    values = [value for key, value in notes.items() if key.startswith(CLAIM)]
    if not values:
        return "count"
    return "give claim back" if values == [None] else f"claim{' with its reason' * ('text' in str(values[0]))}"


# ---------------------------------------------------------------------------------------------------------------------


def on_kubernetes(config: Config, line: Line) -> Orchestrator:
    """The agent's own, with its pod's token."""
    section = config.orchestrator.kubernetes
    api = DyingApi(line, Path(os.environ["KILLED_STORY"]), lambda: _opened(section.kubeconfig, section.timeout_s))
    return KubernetesOrchestrator(
        cast(KubeApi, api),
        node=config.node.name,
        namespace=section.namespace,
        pod_resources=section.pod_resources,
        timeout_s=section.timeout_s,
        lately_s=0.0,
    )


def _opened(kubeconfig: str, timeout_s: float) -> KubeApi:
    pace = Pace(rate_per_s=1000.0, burst=1000)
    return connect(kubeconfig=kubeconfig, timeout_s=timeout_s, pace=pace, environ={})


class DyingWork(KubernetesWork):
    """The controller's own work, by connections that have boundaries. It leads for a second at a time, and renews only
    between rounds: a life is a line, and not a race."""

    def __init__(self, config: Config, line: Line, story: Path) -> None:
        self._line, self._story, self.apis = line, story, list[DyingApi]()
        super().__init__(config, {}, run=self._called, opened=self._opened)
        namespace, identity = config.orchestrator.kubernetes.namespace, f"killed_{os.getpid()}_{time.monotonic_ns()}"
        api = self._opened(config, {}, timeout_s=5.0)
        self.lead = self._lead = Leadership(
            api, namespace=namespace, identity=identity, duration_s=_LEADS_S, renew_s=30.0
        )

    def _opened(
        self, config: Config, _: Mapping[str, str], *, timeout_s: float, calls: RequestStats | None = None
    ) -> KubeApi:
        kubeconfig = config.orchestrator.kubernetes.kubeconfig
        node = config.controller.selector.removeprefix("life=")
        self.apis.append(DyingApi(self._line, self._story, lambda: _opened(kubeconfig, timeout_s), only=node))
        return cast(KubeApi, self.apis[-1])

    def _called(self, argv: Any, **more: Any) -> CommandResult:
        return self._line.run(argv, **more)

    @property
    def moved(self) -> int:
        """How many writes there were, but for those of every round."""
        return sum(api.moved for api in self.apis)


def live_controller(order: Order) -> None:
    """One process of a controller: it comes to lead, and goes round until nothing happens any more, or to its death."""
    story, machine = Path(order.story), Path(order.machine)
    line = Line(order)
    config = load(machine / "config.toml", checks={}, environ={}).config
    work = DyingWork(config, line, story)
    while not work.lead.attempt():
        time.sleep(0.1)
    store = DyingStore(machine / "controller" / "controller.db", now=datetime.now(UTC), line=line)
    rounds, message, still = work.sync(store), "", 0
    with (story / "said").open("a", buffering=1) as told:
        while still < _LOOKS:
            before = (message, work.moved)
            try:
                message = "; ".join(f"{each.node}: {each.message}" for each in merged(rounds(datetime.now(UTC))))
            except BackendBusy as error:  # its second was over within the round, as on a busy machine
                message = f"{error} at {time.monotonic():.3f}"  # never the same: this is no rest
            if message != before[0]:
                store.append(Event(at=datetime.now(UTC), kind="decision", text=message or "nothing to say"))
            still = still + 1 if (message, work.moved) == before else 0
            told.write(f"{machine.name} {message}\n")
            time.sleep(_ROUND_S)
            work.lead.attempt()
    line.passing("at rest")
    store.close()
    rest = Rest(message=message, calling=False)
    (story / "rest").write_text(json.dumps(asdict(rest)))


def one_life(order: Order) -> None:
    """Of whichever it is."""
    os.environ["KILLED_STORY"] = order.story
    if (Path(order.machine) / "controller").exists():
        live_controller(order)
    else:
        live(order, on_kubernetes)


if __name__ == "__main__":
    main(one_life)
