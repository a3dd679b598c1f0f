"""How a provisioner looks: how often, and what a look without an answer means before an act."""

from __future__ import annotations

import pytest
from msgspec import Struct, field

from healthd.core.errors import BackendBusy, BackendUnknown
from healthd.core.model import Remedy
from healthd.remediation.ports import StateOwner
from healthd.remediation.provisioners.platform_reads import Paced, before_acting
from healthd.testing import FakeClock


class Platform(Struct):
    """A Provisioner that counts what it is asked. ``busy``: why it stands down; ``silent``: it does not answer;
    ``refuses``: it has no time for acts."""

    kind: str = "hyperpod"
    state_owner: StateOwner = StateOwner.ENGINE
    delegates: bool = False
    acts_late: bool = False
    busy: str = ""
    silent: bool = False
    refuses: bool = False
    asked: list[str] = field(default_factory=list)

    def reason_against(self, remedy: Remedy) -> str:
        return ""

    def stands_down(self) -> str:
        self.asked.append("stands_down")
        return self.busy

    def machine(self) -> str:
        self.asked.append("machine")
        return f"i-{len(self.asked)}"

    def progress(self) -> str:
        self.asked.append("progress")
        if self.silent:
            raise BackendUnknown("no answer")
        return f"look {len(self.asked)}"

    def reboot(self) -> None:
        self._act("reboot")

    def replace(self) -> None:
        self._act("replace")

    def _act(self, name: str) -> None:
        self.asked.append(name)
        if self.refuses:
            raise BackendBusy("InstanceIdInUse")

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        return 0.0

    def take_back(self, *, carried_out: bool) -> bool:
        return carried_out

    def dry_run(self, remedy: Remedy) -> str:
        return f"would {remedy}"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_who_waits_asks_once_in_a_while(clock: FakeClock) -> None:
    """What was said is said again until then, an answer that did not come included."""
    platform = Platform()
    paced = Paced(platform, every_s=30.0, monotonic_s=clock)
    assert [paced.progress() for _ in range(5)] == ["look 1"] * 5
    clock.advance(30.0)
    platform.silent = True
    for _ in range(3):
        with pytest.raises(BackendUnknown, match="no answer"):
            paced.progress()
    assert platform.asked == ["progress"] * 2
    assert [paced.machine() for _ in range(3)] == ["i-3"] * 3


def test_a_no_is_repeated_and_a_yes_is_asked_for_each_time(clock: FakeClock) -> None:
    """A platform that began meanwhile must be seen right before an act."""
    platform = Platform()
    paced = Paced(platform, every_s=30.0, monotonic_s=clock)
    assert paced.stands_down() == ""
    platform.busy = "it acts already"
    assert [paced.stands_down() for _ in range(3)] == ["it acts already"] * 3
    assert len(platform.asked) == 2
    platform.busy = ""
    clock.advance(30.0)
    assert paced.stands_down() == ""


@pytest.mark.parametrize("act", ["reboot", "replace"])
def test_after_an_act_everything_is_asked_anew(clock: FakeClock, act: str) -> None:
    """What was said before it is of another time."""
    platform = Platform()
    paced = Paced(platform, every_s=30.0, monotonic_s=clock)
    assert paced.progress() == "look 1"
    getattr(paced, act)()
    assert paced.progress() == "look 3"
    assert (paced.reason_against(Remedy.REBOOT_NODE), paced.take_back(carried_out=True)) == ("", True)
    assert paced.dry_run(Remedy.REPLACE_NODE) == "would replace_node"


@pytest.mark.parametrize("act", ["reboot", "replace"])
def test_a_platform_without_time_for_an_act_is_left_alone_for_a_while(clock: FakeClock, act: str) -> None:
    """Who looks before acting is told so, and neither writes an intent down nor asks again every few seconds."""
    platform = Platform(refuses=True)
    paced = Paced(platform, every_s=30.0, monotonic_s=clock)
    with pytest.raises(BackendBusy):
        getattr(paced, act)()
    clock.advance(29.0)
    assert paced.stands_down() == "InstanceIdInUse"
    clock.advance(1.0)
    assert paced.stands_down() == ""
    assert platform.asked == [act, "stands_down"]


def test_a_look_without_an_answer_before_an_act_leaves_nothing_applied() -> None:
    """It can be asked again at once, and nobody waits for what was never asked for."""
    with pytest.raises(BackendBusy, match="no answer; no request was sent yet"), before_acting():
        raise BackendUnknown("no answer")
