"""What pages of a node or the cluster as standings and as Events."""

from __future__ import annotations

from healthd.controller.kube_troubles import (
    AGAIN_S,
    AT_ONCE,
    MANY,
    REASONS,
    ClusterFinding,
    EventsDue,
    news_of_trouble,
    statuses_of,
)
from healthd.core.model import ClusterTrouble


def down(*names: str) -> list[ClusterFinding]:
    return [ClusterFinding(node=name, trouble=ClusterTrouble.NODE_DOWN, message="it is not Ready") for name in names]


def names(count: int) -> list[str]:
    return [f"n{number:03}" for number in range(count)]


def test_each_pages_by_itself_up_to_a_number() -> None:
    """Ten nodes are ten pages."""
    made = statuses_of(down(*names(MANY)))
    assert [each.node for each in made if each.page] == names(MANY)


def test_many_with_one_trouble_page_once() -> None:
    """They have one cause; each is shown, and another trouble pages beside them."""
    odd = ClusterFinding(node="n900", trouble=ClusterTrouble.ODD_RECORD, message="it is odd")
    made = statuses_of([*down(*names(MANY + 5)), odd])
    assert [(each.node, each.troubles) for each in made if each.page] == [
        ("n900", (ClusterTrouble.ODD_RECORD,)),
        ("", (ClusterTrouble.NODE_DOWN,)),
    ]
    assert "15 nodes are not Ready" in made[-1].message
    assert "and 5 more" in made[-1].message
    assert {each.node for each in made if ClusterTrouble.NODE_DOWN in each.troubles} == {*names(MANY + 5), ""}


def test_a_trouble_of_a_node_has_an_event() -> None:
    """All but a drain's, which has its own, and the policies, which are of no node."""
    assert REASONS.keys() == set(ClusterTrouble) - {ClusterTrouble.DRAIN_STUCK, ClusterTrouble.NO_POLICIES}
    assert news_of_trouble(ClusterFinding(node="", trouble=ClusterTrouble.NO_POLICIES, message="x"), "u") is None
    news = news_of_trouble(down("n1")[0], "u1")
    assert news is not None
    assert (news.reason, news.about, news.warning) == ("NodeDown", "u1", True)


def test_an_event_is_told_once_an_hour_while_it_stands() -> None:
    """What is over is new when it comes back."""
    due = EventsDue()
    news = news_of_trouble(down("n1")[0], "u1")
    assert news is not None
    assert due.due([("n1", news)], 0.0) == [("n1", news)]
    assert due.due([("n1", news)], 5.0) == [("n1", news)], "it was not told"
    due.told("n1", news, 10.0)
    assert due.due([("n1", news)], 10.0 + AGAIN_S - 1) == []
    assert due.due([("n1", news)], 10.0 + AGAIN_S) == [("n1", news)]
    due.told("n1", news, 4000.0)
    assert due.due([], 4001.0) == []
    assert due.due([("n1", news)], 4002.0) == [("n1", news)]


def test_a_fleet_that_goes_down_at_once_is_no_storm_of_events() -> None:
    """So many in a round; in the next rounds the others."""
    due, told = EventsDue(), set()
    news = [(each.node, made) for each in down(*names(3 * AT_ONCE)) if (made := news_of_trouble(each, each.node))]
    for number in range(3):
        some = due.due(news, float(number))
        assert len(some) == AT_ONCE
        for name, each in some:
            due.told(name, each, float(number))
            told.add(name)
    assert told == set(names(3 * AT_ONCE))
