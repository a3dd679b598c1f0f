"""Receivers are told once, no more often than they may be, again when they did not take it, and across restarts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from healthd.config.schema.notify import NotifySection
from healthd.core.errors import StoreError
from healthd.notify.delivery import NotDeliveredError, Receiver, RefusedError
from healthd.notify.message import Message, Sender
from healthd.notify.news import Topic
from healthd.notify.notifier import MOST_IN_A_ROW, MOST_WAITING, Notifier
from healthd.notify.receivers import channels_of

T0 = datetime(2026, 1, 1, 3, 0, tzinfo=UTC)
ABOUT = Sender(node="p5-1", verdict="critical", notices=("a drill",), mode="repair")


def topic(key: str) -> Topic:
    return Topic(key=key, message=f"{key} is bad", lasts_s=0)


class KilledError(BaseException):
    """The process ends here."""


class Desk:
    """A notifier with two receivers, each a list, and what can go wrong with them."""

    def __init__(
        self, *, per_hour: int = 12, kept: str = "", runbooks: str = "", names: Sequence[str] = ("slack", "webhook")
    ) -> None:
        self.got: dict[str, list[Message]] = {name: [] for name in names}
        self.broken: dict[str, NotDeliveredError] = {}
        self.refused: dict[str, str] = {}
        self.hangs: dict[str, str] = {}
        self.wrong: Sequence[Topic] = ()
        self.kept, self.full, self.killed = kept, False, False
        self.seconds = 0.0
        self.notifier = Notifier(
            {name: Receiver(deliver=self._receiver(name)) for name in self.got},
            per_hour=per_hour,
            wrong=lambda: self.wrong,
            about=lambda: ABOUT,
            keep=self._keep,
            kept=kept,
            runbooks=runbooks,
        )

    def after(self, seconds: float, *wrong: str) -> tuple[str, ...]:
        """So much later this is wrong; what is logged."""
        self.seconds += seconds
        self.wrong = [topic(key) for key in wrong]
        return self.notifier.tick(T0 + timedelta(seconds=self.seconds))

    def told(self, name: str = "slack") -> list[list[str]]:
        """state and key of each piece in each message."""
        return [[f"{each['state']} {each['key']}" for each in message.data["news"]] for message in self.got[name]]

    def _receiver(self, name: str) -> Any:
        def deliver(message: Message) -> None:
            if name in self.broken:
                raise self.broken[name]
            news = [f"{each['state']} {each['key']}" for each in message.data["news"]]
            if self.refused.get(name) in news:
                raise RefusedError("answered 400")
            if self.hangs.get(name) in news:
                raise NotDeliveredError("no whole answer within 10 s")
            self.got[name].append(message)
            if self.killed:
                raise KilledError

        return deliver

    def _keep(self, text: str) -> None:
        if self.full:
            raise StoreError("the disk is full")
        self.kept = text


def test_each_receiver_is_told_once_and_of_the_end() -> None:
    """One message for each incident, none while nothing changes, one when it is over."""
    desk = Desk()
    for _ in range(5):
        assert desk.after(5, "a", "b") == ()
    for _ in range(5):
        desk.after(5, "b")
    assert desk.told() == desk.told("webhook") == [["wrong a"], ["wrong b"], ["over a"]]


def test_a_message_says_who_speaks_for_people_and_for_programs() -> None:
    """The sender with every notice, such as that of a drill, is in the text and in the data."""
    desk = Desk()
    desk.after(5, "a")
    (message,) = desk.got["slack"]
    assert message.text == "p5-1: a is bad.\na drill\nPROBLEM: a is bad (since 2026-01-01 03:00:05 UTC)"
    assert (message.data["schema"], message.data["id"]) == ("healthd.notification/v2", "p5-1/a")
    assert message.about.sender == ABOUT
    assert message.data["news"] == [
        {
            "key": "a",
            "state": "wrong",
            "message": "a is bad",
            "since": "2026-01-01T03:00:05Z",
            "over": None,
            "next_step": "",
            "out": False,
        }
    ]


def test_a_message_leads_to_the_runbook() -> None:
    """The page of its code, where the code has one; a page for an operator has that of its code."""
    desk = Desk(runbooks="https://docs.example.com/runbooks/")
    desk.after(5, "gpu.xid.79 gpu:GPU-1", "page efa.missing node", "unknown")
    xid, efa = (f"https://docs.example.com/runbooks/{code}.html" for code in ("gpu.xid.79", "efa.missing"))
    assert [each.about.runbook for each in desk.got["slack"]] == [xid, efa, ""]
    assert [each.about.code for each in desk.got["slack"]] == ["gpu.xid.79", "efa.missing", ""]
    assert desk.got["slack"][0].text.splitlines()[-1] == f"runbook: {xid}"


def test_a_drill_is_told_past_the_queue_and_says_what_it_is() -> None:
    """Once, to everybody, with no news in it; who did not take it is named, and it is neither counted nor repeated."""
    desk = Desk()
    desk.broken["slack"] = NotDeliveredError("https://hooks.example answered 503")
    failed = desk.notifier.drill("DRILL d1, nothing is wrong", T0)
    assert failed == {"slack": "https://hooks.example answered 503", "webhook": ""}
    (message,) = desk.got["webhook"]
    assert message.text == "p5-1: DRILL d1, nothing is wrong"
    assert (message.data["drill"], message.data["news"]) == (True, [])
    assert message.data["sender"]["notices"] == ["DRILL d1, nothing is wrong"]
    desk.broken.clear()
    desk.after(600)
    assert desk.got["slack"] == []
    assert [(each.delivered, each.failed, each.undelivered) for each in desk.notifier.channels] == [(0, 0, 0)] * 2


def test_a_receiver_that_fails_is_tried_again_later_each_time_and_said_to_fail() -> None:
    """30, 60, 120 s and so on up to ten minutes; the log has each failure, status what waits and since when."""
    desk = Desk()
    desk.broken["slack"] = NotDeliveredError("https://hooks.example answered 503")
    failed = [line for _ in range(120) for line in desk.after(10, "a")]
    pauses = [line.partition(" in ")[2].partition(":")[0] for line in failed]
    assert pauses[:7] == ["30 s", "60 s", "120 s", "240 s", "480 s", "600 s", "600 s"][: len(pauses[:7])]
    assert len(failed) == 6
    slack, webhook = desk.notifier.channels
    assert (slack.failed, slack.delivered, slack.undelivered) == (6, 0, 1)
    assert (webhook.failed, webhook.delivered, webhook.undelivered) == (0, 1, 0)
    (problem,) = desk.notifier.problems()
    assert problem == (
        "notify: deliveries to slack fail since 2026-01-01 03:00:10 UTC; 1 wait: https://hooks.example answered 503"
    )
    desk.broken.clear()
    desk.after(600, "a")
    assert (desk.told(), desk.notifier.problems(), slack.undelivered) == ([["wrong a"]], (), 0)


@pytest.mark.parametrize("receiver", ["slack", "webhook"])
def test_a_message_that_is_refused_for_good_delays_no_other(receiver: str) -> None:
    """Later pages go out at once, its own retries come less and less often, and status shows them; the end of its
    incident is another message, which is tried at once."""
    desk = Desk()
    desk.refused[receiver] = "wrong poison"
    assert len(desk.after(5, "poison", "a")) == 1
    failed = [line for number in range(720) for line in desk.after(5, "poison", "a", *("b" * (number >= 300)))]
    assert len(failed) == 9, "30, 60, 120, 240, 480 and 600 s"
    assert desk.told(receiver) == [["wrong a"], ["wrong b"]]
    assert desk.notifier.problems() == (
        f"notify: deliveries to {receiver} fail since 2026-01-01 03:00:05 UTC; 1 wait: answered 400",
    )
    desk.after(5, "a", "b")
    desk.after(15, "a", "b")
    assert desk.told(receiver)[2:] == [["over poison"]]
    assert desk.notifier.problems() == ()


def test_a_message_with_which_a_receiver_hangs_is_tried_behind_the_others() -> None:
    """Where a failure does not say what it is about, all wait; then the others come first."""
    desk = Desk()
    desk.hangs["slack"] = "wrong poison"
    desk.after(5, "poison", "a", "b")
    assert desk.told() == []
    assert len(desk.after(30, "poison", "a", "b")) == 1
    assert desk.told() == [["wrong a"], ["wrong b"]]


def test_a_summary_that_is_refused_goes_out_one_incident_at_a_time() -> None:
    """What makes a receiver refuse it is in one of them."""
    desk = Desk(per_hour=5)
    desk.refused["slack"] = "wrong poison"
    wrong = ("a", "poison", "b", "c")
    assert len(desk.after(5, *wrong)) == 1
    assert len(desk.after(30, *wrong)) == 1
    assert desk.told() == [["wrong a"], ["wrong b"], ["wrong c"]]


def test_a_receiver_that_is_gone_for_good_ends_nothing() -> None:
    """Two thousand failures in a row are two weeks of a dead webhook: it is tried again, and others are told."""
    desk = Desk()
    desk.broken["webhook"] = NotDeliveredError("https://hooks.example answered 404")
    failed = [line for number in range(2000) for line in desk.after(600, f"a{number % 20}")]
    assert failed[-1] == "webhook: not delivered, retrying in 600 s: https://hooks.example answered 404"
    slack, webhook = desk.notifier.channels
    assert (webhook.failed, slack.failed, slack.delivered > 2000) == (2000, 0, True)


def test_a_receiver_that_says_when_is_not_asked_before() -> None:
    """Retry-After outweighs a shorter pause of our own."""
    desk = Desk()
    desk.broken["slack"] = NotDeliveredError("429", retry_s=300)
    assert desk.after(1, "a") == ("slack: not delivered, retrying in 300 s: 429",)
    desk.broken.clear()
    desk.after(290, "a")
    assert desk.told() == []
    desk.after(20, "a")
    assert desk.told() == [["wrong a"]]


def test_what_is_over_before_it_could_be_told_is_told_as_that() -> None:
    """No message says that something is wrong which is not any more."""
    desk = Desk()
    desk.broken["slack"] = NotDeliveredError("503", retry_s=1_000)
    desk.after(1, "a")
    for _ in range(10):
        desk.after(5)
    desk.broken.clear()
    desk.after(1_000)
    assert desk.told() == [["over a"]]
    assert desk.told("webhook") == [["wrong a"], ["over a"]]


def test_no_more_messages_than_allowed_and_nothing_is_lost() -> None:
    """Half of an hour's messages go out as they come; beyond them news gathers, and goes out in one message after some
    minutes, so that a page behind a storm does not wait for an hour."""
    desk = Desk(per_hour=4)
    for number in range(6):
        desk.after(60, *(f"a{each}" for each in range(number + 1)))
    assert desk.told() == [["wrong a0"], ["wrong a1"]]
    assert desk.notifier.channels[0].undelivered == 4
    assert desk.notifier.problems() == ()
    desk.after(960, *(f"a{each}" for each in range(6)))
    assert desk.told()[2:] == [["wrong a2", "wrong a3", "wrong a4", "wrong a5"]]
    desk.after(60, *(f"a{each}" for each in range(7)))
    assert len(desk.told()) == 3
    desk.after(1_140, *(f"a{each}" for each in range(7)))
    assert desk.told()[3:] == [["wrong a6"]]
    desk.after(1_139, *(f"a{each}" for each in range(8)))
    assert len(desk.told()) == 4, "twenty minutes apart"
    desk.after(61, *(f"a{each}" for each in range(8)))
    assert desk.told()[4:] == [["wrong a7"]]


def test_what_waits_is_bounded_and_what_went_is_counted() -> None:
    """More than 1,000 pieces for a receiver that is away: the oldest go, and the message says how many."""
    desk = Desk()
    desk.broken["slack"] = NotDeliveredError("503", retry_s=50)
    desk.after(1, *(f"a{number}" for number in range(MOST_WAITING + 7)))
    assert desk.notifier.channels[0].undelivered == MOST_WAITING + 7
    desk.broken.clear()
    desk.after(60, *(f"a{number}" for number in range(MOST_WAITING + 7)))
    (message,) = desk.got["slack"]
    assert (len(message.data["news"]), message.data["lost"]) == (MOST_WAITING, 7)
    assert message.about.title == f"p5-1: news of {MOST_WAITING} incidents"
    assert message.text.endswith("and 980 more\n7 older pieces of news were dropped")


def test_500_nodes_that_need_an_operator_at_once_page_each() -> None:
    """5 % of 10,000 nodes, whose pages begin in one tick: a receiver of incidents gets each of them."""
    got: list[Message] = []
    notifier = Notifier(
        {"pagerduty": Receiver(deliver=got.append, each_incident=True)},
        per_hour=12,
        wrong=lambda: [topic(f"page n{number}") for number in range(500)],
        about=lambda: ABOUT,
        keep=lambda _: None,
    )
    for second in range(0, 5 * 500 // MOST_IN_A_ROW, 5):
        notifier.tick(T0 + timedelta(seconds=second))
    assert {each.about.news[0].key for each in got} == {f"page n{number}" for number in range(500)}
    assert not any(each.about.lost for each in got)


def test_a_restart_neither_repeats_nor_loses_anything() -> None:
    """What was told and what was not taken is on disk before the daemon ends."""
    desk = Desk()
    desk.broken["slack"] = NotDeliveredError("503")
    desk.after(1, "a")
    again = Desk(kept=desk.kept)
    again.after(10, "a")
    assert (again.told("slack"), again.told("webhook")) == ([["wrong a"]], [])
    last = Desk(kept=again.kept)
    last.after(100)
    last.after(100)
    assert last.told() == last.told("webhook") == [["over a"]]


def test_a_receiver_that_is_added_hears_of_what_stands_and_no_other_does() -> None:
    """The page of the day before stands when somebody configures a receiver: it gets that page, once, and its end."""
    desk = Desk(names=("webhook",))
    desk.after(1, "a", "b")
    again = Desk(kept=desk.kept)
    again.after(10, "a", "b", "c")
    assert again.told("webhook") == [["wrong c"]]
    assert again.told() == [["still a"], ["still b"], ["wrong c"]]
    last = Desk(kept=again.kept)
    last.after(20, "a", "c")
    last.after(100, "a", "c")
    assert last.told() == last.told("webhook") == [["over b"]]


def test_a_state_that_names_no_receivers_adds_none() -> None:
    """What an earlier version kept: its receivers know what was reported."""
    desk = Desk()
    desk.after(1, "a")
    again = Desk(kept=desk.kept.replace('"receivers":["slack","webhook"],', ""))
    assert again.kept != desk.kept
    again.after(10, "a")
    assert again.told() == again.told("webhook") == []


def test_a_process_that_is_killed_while_it_sends_has_its_end_reported_by_the_next() -> None:
    """The receiver took the problem, and the process died before it could write that down; then the problem ended."""
    desk = Desk()
    desk.killed = True
    with pytest.raises(KilledError):
        desk.after(1, "a")
    assert desk.told() == [["wrong a"]]
    again = Desk(kept=desk.kept)
    again.after(10)
    again.after(100)
    assert again.told()[-1] == ["over a"]


def test_a_daemon_that_stops_asks_no_further_receiver_and_loses_nothing() -> None:
    """A receiver that hangs must not hold up the end once for each; the next daemon tells what waits."""
    desk = Desk()
    desk.wrong = [topic("a")]
    assert desk.notifier.tick(T0, stopping=lambda: True) == ()
    assert desk.told() == desk.told("webhook") == []
    again = Desk(kept=desk.kept)
    again.after(1, "a")
    assert again.told() == again.told("webhook") == [["wrong a"]]


def test_a_disk_that_refuses_keeps_nobody_from_being_told() -> None:
    """The message goes out, the failure is there for the log once, and it is kept when there is room again."""
    desk = Desk()
    desk.full = True
    assert desk.after(1, "a") == ("the state of messages cannot be written; some may be sent twice: the disk is full",)
    assert desk.after(1, "a") == ()
    assert (desk.told(), desk.kept) == ([["wrong a"]], "")
    desk.full = False
    desk.after(1, "a")
    assert '"reported":true' in desk.kept


@pytest.mark.parametrize("kept", ["", "{", '{"seen": 3}'])
def test_what_was_kept_in_another_form_is_no_reason_to_be_silent(kept: str) -> None:
    """It is worth one message too many."""
    desk = Desk(kept=kept)
    desk.after(1, "a")
    assert desk.told() == [["wrong a"]]


def test_only_what_is_configured_is_told() -> None:
    """No receiver by default; each setting adds one."""
    everything = NotifySection(slack_url_file="/etc/s", webhook_url="https://x.example/", command=("/bin/cat",))
    assert list(channels_of(NotifySection(), "")) == []
    assert list(channels_of(everything, "")) == ["slack", "webhook", "command"]
    assert list(channels_of(replace(everything, slack_url_file="", command=()), "")) == ["webhook"]


# ---------------------------------------------------------------------------------------------------------------------
# receivers that know incidents


class Board:
    """A receiver that names each message, and what it was asked to update."""

    def __init__(self, *, kept: str = "", wrong: Sequence[Topic] = ()) -> None:
        self.got, self.kept, self.wrong = list[Message](), kept, wrong
        self.notifier = Notifier(
            {
                "board": Receiver(deliver=self._take, each_incident=True, steps=True),
                "chat": Receiver(deliver=self._chat),
            },
            per_hour=2,
            wrong=lambda: self.wrong,
            about=lambda: ABOUT,
            keep=self._keep,
            kept=kept,
        )
        self.chat = list[Message]()

    def after(self, seconds: float, *wrong: Topic) -> None:
        self.wrong = wrong
        assert self.notifier.tick(T0 + timedelta(seconds=seconds)) == ()

    def _take(self, message: Message) -> str:
        self.got.append(message)
        return message.before or f"m{len(self.got)}"

    def _chat(self, message: Message) -> None:
        self.chat.append(message)

    def _keep(self, text: str) -> None:
        self.kept = text


def test_a_receiver_that_updates_gets_its_own_name_of_an_incident_back() -> None:
    """Also from the next daemon, until the incident is over; then the next one is a new message."""
    board = Board()
    board.after(0, topic("a"))
    board.after(5, topic("a"), topic("b"))
    again = Board(kept=board.kept)
    again.after(10, topic("b"))
    again.after(100, topic("b"))
    again.after(200, topic("a"), topic("b"))
    assert [(each.about.id, each.before) for each in board.got] == [("p5-1/a", ""), ("p5-1/b", "")]
    assert [(each.about.id, each.before) for each in again.got] == [("p5-1/a", "m1"), ("p5-1/a", "")]


def test_steps_of_a_repair_go_to_receivers_that_update_and_to_no_others() -> None:
    """A step that was not reported yet is no news of its own: the first message has it."""
    board, out = Board(), replace(topic("node"), step="drained")
    board.after(0, out)
    board.after(5, replace(out, step="reboot"))
    board.after(10, replace(out, step="reboot"))
    assert [(each.about.event, each.about.step) for each in board.got] == [("opened", "drained"), ("step", "reboot")]
    assert [each.about.event for each in board.chat] == ["opened"]
    desk = Desk()
    desk.broken["slack"] = NotDeliveredError("503", retry_s=50)
    for step in ("drained", "reboot"):
        desk.seconds += 5
        desk.wrong = [replace(topic("node"), step=step)]
        desk.notifier.tick(T0 + timedelta(seconds=desk.seconds))
    desk.broken.clear()
    desk.seconds += 60
    desk.notifier.tick(T0 + timedelta(seconds=desk.seconds))
    assert [(each.about.event, each.about.step) for each in desk.got["slack"]] == [("opened", "reboot")]


def test_a_receiver_that_keeps_incidents_gets_each_of_them_and_a_few_at_a_time() -> None:
    """Whatever the rate says; others get one message with all of them. None holds up the rest for minutes."""
    board, wrong = Board(), [topic(f"a{number}") for number in range(MOST_IN_A_ROW + 5)]
    board.after(0, *wrong)
    assert len(board.got) == MOST_IN_A_ROW
    board.after(5, *wrong)
    assert [each.about.id for each in board.got] == [f"p5-1/a{number}" for number in range(MOST_IN_A_ROW + 5)]
    assert [each.about.event for each in board.chat] == ["summary"]


# ---------------------------------------------------------------------------------------------------------------------
# the clock


@pytest.mark.parametrize("by_s", [3600.0, -3600.0])
def test_a_clock_that_is_set_neither_hurries_nor_delays_news(by_s: float) -> None:
    """What has lasted for ten of its fifteen seconds is told after five more, and its end after as long."""
    desk = Desk()
    desk.notifier = Notifier(
        {"slack": Receiver(deliver=desk._receiver("slack"))},
        per_hour=12,
        wrong=lambda: [replace(each, lasts_s=15.0) for each in desk.wrong],
        about=lambda: ABOUT,
        keep=desk._keep,
    )
    desk.after(0, "a")
    desk.after(10, "a")
    desk.seconds += by_s
    desk.notifier.clock_was_set(timedelta(seconds=by_s), T0 + timedelta(seconds=desk.seconds))
    desk.after(1, "a")
    assert desk.told() == []
    desk.after(5, "a")
    assert desk.told() == [["wrong a"]]
    desk.after(5)
    desk.seconds += by_s
    desk.notifier.clock_was_set(timedelta(seconds=by_s), T0 + timedelta(seconds=desk.seconds))
    desk.after(5)
    assert desk.told() == [["wrong a"]]
    desk.after(15)
    assert desk.told() == [["wrong a"], ["over a"]]


@pytest.mark.parametrize("by_s", [7200.0, -7200.0])
def test_a_receiver_is_tried_again_and_keeps_its_rate_whatever_the_clock(by_s: float) -> None:
    """Half a minute after it failed, and no more often in an hour than it may be told."""
    desk = Desk(per_hour=1)
    desk.broken["slack"] = NotDeliveredError("no answer")
    desk.after(0, "a")
    del desk.broken["slack"]
    desk.seconds += by_s
    desk.notifier.clock_was_set(timedelta(seconds=by_s), T0 + timedelta(seconds=desk.seconds))
    desk.after(5, "a", "b")
    assert (desk.told(), desk.told("webhook")) == ([], [["wrong a"]])
    desk.after(26, "a", "b")
    assert (desk.told(), desk.told("webhook")) == ([["wrong a", "wrong b"]], [["wrong a"]])
    desk.after(3600, "a", "b")
    assert desk.told("webhook") == [["wrong a"], ["wrong b"]]
