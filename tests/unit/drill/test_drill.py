"""What can be decided about a drill without a machine: its kinds, its chain, its time, its words."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from healthd.checklib.xids import XidLine, parse_line, parse_sxid
from healthd.core.check import discover
from healthd.core.errors import UsageError
from healthd.drill.chain import (
    EXIT_CODE,
    IN_THE_LINE,
    KERNEL_LIMIT_S,
    KINDS,
    TITLE,
    DrillFault,
    DrillReport,
    DrillStage,
    Ended,
    StageReached,
    banner,
    check_options,
    ended,
    limit_s,
    next_link,
    number_of,
    sxid_line,
    xid_line,
)


def marks(*links: DrillStage) -> tuple[StageReached, ...]:
    return tuple(StageReached(link=link, at_s=float(number), message="") for number, link in enumerate(links))


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_kind_is_one_that_its_check_can_find(kind: DrillFault) -> None:
    """The check exists, declares each code, and has the setting that its silence is read from."""
    check = discover()[kind.check]
    declared = {code.code.removesuffix("*") for code in check.codes}
    for code in kind.codes_of(kind.number):
        assert any(code == each or (each.endswith(".") and code.startswith(each)) for each in declared), code
    assert kind.of_kernel is (check.on == "kernel")
    assert not kind.silence or getattr(check.settings(), kind.silence) > 0
    assert "{" not in "".join(kind.codes_of(kind.number))


def test_lines_are_the_drivers_own_and_say_what_they_are() -> None:
    """The parsers of the real lines read them, and whoever quotes one quotes that nothing happened."""
    xid, sxid = xid_line("0000:53:00", 79), sxid_line("0000:d0:00.0", 20034)
    message, switch = parse_line(xid), parse_sxid(sxid)
    assert isinstance(message, XidLine)
    assert switch is not None
    assert (message.xid, message.pci, message.numbered) == (79, "0000:53:00", True)
    assert (switch.sxid, switch.pci, switch.word, switch.continues) == (20034, "0000:d0:00", "Fatal", False)
    assert IN_THE_LINE in message.text
    assert IN_THE_LINE in switch.text


def test_a_chain_is_whole_when_its_last_link_is_there() -> None:
    """What is missing is the first link that never came; an end before its time is not the chain's fault."""
    whole, half = marks(*DrillStage), marks(DrillStage.INJECTED, DrillStage.READ)
    assert (next_link(whole), next_link(half), next_link(())) == (None, DrillStage.FINDING, DrillStage.INJECTED)
    assert ended(whole, "") is Ended.COMPLETE
    assert ended(whole, "the daemon is stopping") is Ended.COMPLETE
    assert ended(half, "") is Ended.INCOMPLETE
    assert ended(half, "the daemon is stopping") is Ended.INTERRUPTED


def test_exit_codes() -> None:
    """0 whole, 1 not, 2 refused: a script can tell a broken chain from one that was never tried."""
    assert set(EXIT_CODE) == set(Ended)
    assert (EXIT_CODE[Ended.COMPLETE], EXIT_CODE[Ended.INCOMPLETE], EXIT_CODE[Ended.REFUSED]) == (0, 1, 2)


def test_how_long_it_may_take_follows_from_the_check() -> None:
    """A kernel line takes no time; a level takes the looks that it needs, at the daemon's own jitter."""
    look = {"interval_s": 60.0, "timeout_s": 30.0, "silence_s": 0.0}
    assert limit_s(KINDS["xid"], **look) == KERNEL_LIMIT_S
    assert limit_s(KINDS["efa-loss"], **look) == pytest.approx(60 * 1.1 + 30 + 15)
    assert limit_s(KINDS["nvml-hang"], interval_s=15, timeout_s=12, silence_s=20) == pytest.approx(3 * 16.5 + 12 + 15)
    assert limit_s(KINDS["lustre-hang"], interval_s=120, timeout_s=60, silence_s=60) == pytest.approx(2 * 132 + 75)


def test_a_number_is_for_the_kinds_that_have_one() -> None:
    """Without one the usual fault is played; another kind refuses it and names those that take one."""
    assert (number_of(KINDS["xid"], None), number_of(KINDS["xid"], 48)) == (79, 48)
    assert number_of(KINDS["nvml-hang"], None) is None
    with pytest.raises(UsageError, match="nvml-hang takes no number, got 79; only xid and sxid do"):
        number_of(KINDS["nvml-hang"], 79)


def test_an_option_that_says_nothing_is_refused() -> None:
    """A GPU for a mount, or a mount for a GPU, is a mistake and never passed over."""
    check_options(KINDS["xid"], gpu="3", mount="")
    check_options(KINDS["read-only"], gpu="", mount="/")
    with pytest.raises(UsageError, match="sxid takes no --gpu, got '3'; only xid, remap-pending do"):
        check_options(KINDS["sxid"], gpu="3", mount="")
    with pytest.raises(UsageError, match="xid takes no --mount"):
        check_options(KINDS["xid"], gpu="", mount="/fsx")


def test_a_report_says_how_long_it_took() -> None:
    """From the injection to the last link that was reached; nothing where nothing was."""
    began = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    report = DrillReport(
        id="d1", node="n1", kind="xid", what="", who="uid 0", began=began, limit_s=15, ended=Ended.REFUSED
    )
    assert report.took_s == 0.0
    told = banner("d1", "XID 79 on GPU 3", began, "uid 0")
    assert told.startswith(f"{TITLE} d1 runs since 03:04:05 UTC: XID 79 on GPU 3, started by uid 0.")
    assert told.endswith("everything below is real and not part of the drill")


def test_the_time_of_a_report_is_that_of_its_last_mark() -> None:
    """A chain that broke took as long as it went on."""
    began = datetime(2026, 1, 2, tzinfo=UTC)
    report = DrillReport(
        id="d1",
        node="n1",
        kind="xid",
        what="",
        who="uid 0",
        began=began,
        limit_s=15,
        ended=Ended.INCOMPLETE,
        marks=marks(DrillStage.INJECTED, DrillStage.READ, DrillStage.FINDING),
    )
    assert report.took_s == 2.0
