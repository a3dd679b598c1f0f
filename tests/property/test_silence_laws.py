"""Whatever the beats and the gaps: a page needs silence seen for a whole timeout, and lasts until a sign of life."""

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
    now_s, before, seen_s = 0.0, None, 0.0
    for step_s, quiet, is_new_leader in looks:
        now_s += step_s
        counted_s = min(float(step_s), GAP_S)
        if is_new_leader:
            silences = Silences(timeout_s=TIMEOUT_S, gap_s=GAP_S, paging=silent_in(silent_text(paged)))
            counted_s, before = 0.0, before if paged else None
        seen_s = seen_s + counted_s if quiet is not None and quiet == before else 0.0
        paged = silences.silent({"n1": quiet} if quiet is not None else {}, now_s)
        before = quiet
        assert paged == ({"n1": quiet} if quiet is not None and seen_s >= TIMEOUT_S else {})
