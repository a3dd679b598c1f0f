"""What a controller shows of itself: at /metrics for Prometheus, in messages for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from healthd.api.controller_metrics import ControllerPage
from healthd.api.controller_stats import ControllerStats
from healthd.config.schema.config import Config, RemediationSection
from healthd.config.schema.notify import NotifySection
from healthd.controller.kubernetes import KubernetesWork
from healthd.controller.notifications import FAILING_LASTS_S, controller_notifier, wrong_with_controller
from healthd.core.model import Mode, Refusal, Remedy
from healthd.notify.delivery import NotDeliveredError, Receiver
from healthd.notify.message import Message
from healthd.notify.news import AGAIN_S, LASTS_S
from healthd.notify.notifier import Channel, Notifier
from healthd.remediation.controller.node_status import NodeStatus, RepairState
from healthd.remediation.decide.fleet import Scope
from healthd.remediation.orchestrators.kubernetes.api import KubeApi

NOW = datetime(2026, 11, 28, tzinfo=UTC)
PAGED = NodeStatus(node="n1", message="refused: it is not drained", page=True, state=RepairState.REFUSED)
SILENT = NodeStatus(node="n2", message="it did not come back from its reboot", state=RepairState.SILENT)
REPAIRED = NodeStatus(node="n3", message="asked for", remedy=Remedy.REPLACE_NODE, state=RepairState.REPAIR)


def course(**more: Any) -> ControllerStats:
    made = ControllerStats(orchestrator="slurm", provisioner="ec2", mode=Mode.REPAIR, **more)
    made.leads = lambda: True
    made.took_lead()
    return made


def samples(made: ControllerStats) -> dict[tuple[str, ...], float]:
    """Name and label values of every sample."""
    text = ControllerPage(made).render()
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(each.name, *each.labels.values()): each.value for each in found}


def test_the_page_counts_nodes_by_state_and_names_none() -> None:
    """A fleet of any size has as many series; the cluster itself is no node, and may need a person too."""
    made = course()
    made.statuses = (PAGED, SILENT, REPAIRED, NodeStatus(node="", message="x", page=True))
    found = samples(made)
    assert [found["healthd_controller_nodes", state] for state in ("refused", "silent", "repair", "waits")] == [
        1,
        1,
        1,
        0,
    ]
    assert sum(value for key, value in found.items() if key[0] == "healthd_controller_nodes") == 3
    assert found["healthd_controller_operator_needed",] == 2
    assert not any(node in key for key in found for node in ("n1", "n2", "n3"))
    many = course()
    many.statuses = tuple(NodeStatus(node=f"n{number}", message="x") for number in range(500))
    assert len(samples(many)) == len(found)


def test_every_word_is_there_from_the_start() -> None:
    """A counter that appears with its first event would be missed by increase()."""
    found = samples(course())
    assert {key[1] for key in found if key[0] == "healthd_controller_refusals_total"} == set(Refusal)
    assert {key[1] for key in found if key[0] == "healthd_controller_decisions_total"} == set(RepairState)
    assert {key[1] for key in found if key[0] == "healthd_controller_sync_seconds_count"} == {"ok", "cluster", "store"}


def test_one_that_led_reports_nothing_of_its_lead() -> None:
    """What failed then fails no more, and the waiting message is the next leader's: its alerts end with the lead."""
    made = course()

    def refuse(message: Message) -> None:
        raise NotDeliveredError("away")

    made.statuses = (PAGED,)
    made.notifier = controller_notifier(
        NotifySection(webhook_url="http://127.0.0.1:1/"),
        made,
        name="head-1",
        kept="",
        keep=lambda _: None,
        state_dir="/",
    )
    assert made.notifier is not None
    made.notifier.channels = (Channel("webhook", Receiver(deliver=refuse), per_hour=9),)
    made.ended("ok", 0.1, "")
    for second in (0, 30):
        made.notifier.tick(NOW + timedelta(seconds=second))
    made.ended("store", 0.1, "disk is full")
    made.ledger_failing = True
    failing = ("healthd_store_failing",), ("healthd_controller_ledger_failing",)
    waits = ("healthd_notifications_undelivered", "webhook")
    assert [samples(made)[each] for each in (*failing, waits)] == [1, 1, 1]
    made.left_lead()
    found = samples(made)
    assert [found.get(each) for each in (*failing, waits)] == [0, 0, None]


def test_only_the_leader_falls_behind() -> None:
    """From when it took the lead, or from its last round that succeeded; one that waits does not."""
    made = course()
    assert made.led_s is not None
    made.led_s -= 400
    assert samples(made)["healthd_controller_last_success_seconds",] == pytest.approx(400, abs=5)
    made.ended("cluster", 0.5, "slurmctld does not answer")
    assert samples(made)["healthd_controller_last_success_seconds",] > 399
    made.ended("ok", 0.5, "")
    assert samples(made)["healthd_controller_last_success_seconds",] < 5
    made.leads = lambda: False
    made.led_s -= 400
    found = samples(made)
    assert (found["healthd_controller_leads",], found["healthd_controller_last_success_seconds",]) == (0, 0)
    assert found["healthd_controller_sync_seconds_sum", "cluster"] == 0.5


def test_the_budget_is_told_as_far_as_it_is_known() -> None:
    """On Slurm the limit is in the nodes' configuration: a limit that nobody holds to is not shown."""
    scope = Scope(name="cluster", out=frozenset({"n1"}), total=8, limit=2)
    made = course()
    made.scopes = (scope,)
    found = samples(made)
    assert (found["healthd_budget_out_nodes", "cluster"], found["healthd_budget_nodes", "cluster"]) == (1, 8)
    assert ("healthd_budget_limit_nodes", "cluster") not in found
    made.limits = True
    assert samples(made)["healthd_budget_limit_nodes", "cluster"] == 2


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.QUARANTINE])
def test_in_observe_mode_a_budget_cannot_be_spent(mode: Mode) -> None:
    """A cluster in which others cordon many nodes would page for a limit by which healthd takes none out."""
    config = Config(remediation=RemediationSection(mode=mode))
    made = KubernetesWork(config, {}, opened=lambda *_, **__: cast("KubeApi", None)).stats
    made.scopes = (Scope(name="cluster", out=frozenset({"n1", "n2"}), total=8, limit=2),)
    found = samples(made)
    assert found["healthd_budget_out_nodes", "cluster"] == 2
    assert (("healthd_budget_limit_nodes", "cluster") in found) is (mode is not Mode.OBSERVE)


def test_a_store_that_fails_is_seen() -> None:
    """The same metric as a daemon's, so the same alert."""
    made = course()
    made.ended("store", 0.1, "the disk is full")
    assert samples(made)["healthd_store_failing",] == 1
    made.ended("ok", 0.1, "")
    assert samples(made)["healthd_store_failing",] == 0


# -- messages ---------------------------------------------------------------------------------------------------------


def test_people_hear_of_what_no_node_can_tell() -> None:
    """A person is needed, a node is silent, no round succeeds; a repair that goes on is nobody's business."""
    made = course()
    made.statuses = (PAGED, SILENT, REPAIRED)
    assert [topic.key for topic in wrong_with_controller(made)] == ["page n1", "silent n2"]
    assert {topic.again_s for topic in wrong_with_controller(made)} == {AGAIN_S}, "each day that it stands"
    made.ended("cluster", 0.5, "slurmctld does not answer")
    last = wrong_with_controller(made)[-1]
    assert (last.key, last.lasts_s) == ("rounds", FAILING_LASTS_S)
    assert [topic.key for topic in wrong_with_controller(made)][:2] == ["page n1", "silent n2"], "no answer is no end"
    made.slow = lambda: "a sync has not finished for over 300 s"
    last = wrong_with_controller(made)[-1]
    assert (last.key, last.lasts_s) == ("rounds", LASTS_S), "it has lasted already"
    assert "a sync has not finished" in last.message


class Post:
    """A receiver, a memory, and one notifier after the other."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.kept = ""

    def opened(self, made: ControllerStats) -> Notifier:
        notify = NotifySection(command=("/bin/true",))
        notifier = controller_notifier(notify, made, name="head-1", kept=self.kept, keep=self._keep, state_dir="")
        assert notifier is not None
        (channel,) = notifier.channels
        channel._receiver = Receiver(deliver=lambda message: self.texts.append(message.text))
        return notifier

    def _keep(self, text: str) -> None:
        self.kept = text


@pytest.mark.parametrize("bus", ["", "arn:aws:events:us-east-1:123456789012:event-bus/healthd"])
def test_who_is_not_told_has_no_notifier(bus: str) -> None:
    """Nothing is configured by default; and a bus gets what only nodes report. A notice that the bus was told of an
    incident, and so the nodes' messages held, would be wrong."""
    notify = NotifySection(eventbridge_bus=bus)
    assert controller_notifier(notify, course(), name="head-1", kept="", keep=lambda _: None, state_dir="") is None


def test_the_next_leader_neither_repeats_nor_forgets() -> None:
    """Until it has looked itself, what was told is still so; then the end of it is told, once."""
    from datetime import UTC, datetime, timedelta

    at = datetime(2026, 1, 1, tzinfo=UTC)
    post, first = Post(), course()
    first.statuses = (PAGED,)
    first.ended("ok", 0.1, "")
    notifier = post.opened(first)
    for seconds in range(0, 60, 5):
        notifier.tick(at + timedelta(seconds=seconds))
    assert len(post.texts) == 1
    assert post.texts[0].splitlines()[0] == "n1 needs an operator: refused: it is not drained."
    assert "PROBLEM: n1: an operator is needed: refused: it is not drained" in post.texts[0]

    second = course()
    notifier = post.opened(second)
    for seconds in range(60, 120, 5):
        notifier.tick(at + timedelta(seconds=seconds))
    assert len(post.texts) == 1, "it has not looked yet"
    second.ended("ok", 0.1, "")
    for seconds in range(120, 180, 5):
        notifier.tick(at + timedelta(seconds=seconds))
    assert len(post.texts) == 2
    assert "RESOLVED: n1: an operator is needed" in post.texts[1]
