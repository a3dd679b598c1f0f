"""Laws of how a reason is told from what Slurm appended to it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from healthd.remediation.decide.remediation import remediation_id_of, visible_text
from healthd.remediation.orchestrators.slurm.reasons import (
    AUTOMATIC,
    REBOOTS,
    SEPARATOR,
    as_written,
    hold_of,
    is_automatic,
    without_remarks,
)

STAYS_DOWN = "reboot complete"
FIXED = [row.printed for row in AUTOMATIC if "%" not in row.printed] + [each for each in REBOOTS if each != STAYS_DOWN]
REMARKS = st.lists(st.sampled_from(FIXED), max_size=3).map(lambda texts: "".join(SEPARATOR + each for each in texts))
WORDS = st.text(alphabet="abc :[]@=" + "Not responding", max_size=40)


@given(text=st.text(min_size=1), remarks=REMARKS)
def test_nothing_is_lost_or_made_up(text: str, remarks: str) -> None:
    """Text and remark together are what was read, and what is taken off is Slurm's own words alone."""
    base, remark = without_remarks(text + remarks)
    assert base + remark == text + remarks
    assert base
    assert all(is_automatic(each) or each in REBOOTS for each in remark.split(SEPARATOR)[1:])
    assert remark.endswith(remarks)
    assert base.startswith(as_written(text + remarks))


@given(code=st.from_regex(r"[a-z.0-9]{1,20}", fullmatch=True), remarks=REMARKS)
def test_our_id_is_found_behind_whatever_slurm_appends(code: str, remarks: str) -> None:
    """Any number of remarks, in any order, leave our drain ours."""
    ours = visible_text(code, "gpu:GPU-5e1f", "7793f05b")
    before = hold_of(ours, "root", 5)
    now = hold_of(ours + remarks, "slurm" if remarks else "root", 9 if remarks else 5)
    assert now.is_still(before)
    assert remediation_id_of(now.text) == "7793f05b"


@given(added=WORDS, remarks=REMARKS)
def test_what_a_person_adds_to_our_text_makes_it_theirs(added: str, remarks: str) -> None:
    """Whatever is typed behind our text, and is not Slurm's own to the letter, is another text."""
    ours = visible_text("gpu.xid.79", "gpu:GPU-5e1f", "7793f05b")
    hold = hold_of(ours + added + remarks, "root", 9)
    assert (hold.text == ours) == (without_remarks(ours + added)[0] == ours)
    assert not hold.automatic


@given(before=REMARKS, after=REMARKS)
def test_a_node_that_stays_down_for_another_is_not_ours(before: str, after: str) -> None:
    """Whatever Slurm appends around the end of a reboot with nextstate=DOWN."""
    ours = visible_text("gpu.xid.79", "gpu:GPU-5e1f", "7793f05b")
    reason = f"{ours}{before}{SEPARATOR}{STAYS_DOWN}"
    assert not hold_of(reason + after, "root", 9).is_still(hold_of(ours, "root", 5))
    assert as_written(reason + after) == ours
