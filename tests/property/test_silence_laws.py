"""Whatever the beats and the gaps: a page needs silence seen for a whole timeout, and lasts until a sign of life.

A node that goes Ready and not Ready is silent in both states until a heartbeat.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from healthd.core.model import ClusterTrouble
from healthd.remediation.orchestrators.kubernetes.objects.silent_nodes import (
    SilenceKind,
    Silences,
    silent_in,
    silent_text,
)

TIMEOUT_S, GAP_S = 100.0, 20.0
SILENT = ClusterTrouble.AGENT_SILENT
QUIET = st.one_of(
    st.none(),
    st.sampled_from(
        [
            SilenceKind(trouble=ClusterTrouble.NODE_DOWN),
            *(SilenceKind(trouble=ClusterTrouble.AGENT_SILENT, beat=each) for each in "ab"),
        ]
    ),
)
LOOKS = st.lists(st.tuples(st.integers(0, 60), QUIET, st.booleans()), max_size=40)


@given(LOOKS)
def test_it_pages_exactly_after_a_silence_that_was_seen_for_its_timeout(
    looks: list[tuple[int, SilenceKind | None, bool]],
) -> None:
    """Each look comes so many seconds after the one before; with ``True`` another leader makes it, which is told what
    paged, and counts what did not from its own first look."""
    silences = Silences(timeout_s=TIMEOUT_S, gap_s=GAP_S, paging={})
    paged: dict[str, SilenceKind] = {}
    now_s, seen_s, beat = 0.0, dict[ClusterTrouble, float](), ""
    for step_s, quiet, is_new_leader in looks:
        now_s += step_s
        counted_s = min(float(step_s), GAP_S)
        if is_new_leader:
            silences = Silences(timeout_s=TIMEOUT_S, gap_s=GAP_S, paging=silent_in(silent_text(paged)))
            counted_s, seen_s = 0.0, {each.trouble: TIMEOUT_S for each in paged.values()}
        if quiet is None or (quiet.beat and quiet.beat != beat and SILENT in seen_s):
            seen_s = {}
        beat = quiet.beat or beat if quiet is not None else ""
        if quiet is not None:
            seen_s[quiet.trouble] = seen_s[quiet.trouble] + counted_s if quiet.trouble in seen_s else 0.0
        paged = silences.silent({"n1": quiet} if quiet is not None else {}, now_s)
        is_long = quiet is not None and max(seen_s[quiet.trouble], seen_s.get(SILENT, 0.0)) >= TIMEOUT_S
        assert paged == ({"n1": quiet} if quiet is not None and is_long else {})
