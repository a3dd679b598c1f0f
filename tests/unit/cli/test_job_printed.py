"""``healthd job`` on an operator's terminal."""

from __future__ import annotations

from healthd.cli.job import job_data, job_text


def test_a_text_that_a_user_chose_writes_nothing_else_on_the_terminal() -> None:
    """A finding may name a process of the job, and a process may have any name."""
    here = {
        "user": "alice",
        "nodes": "n1",
        "restarts": 0,
        "end": "2026-01-01T00:00:00+00:00",
        "ending": "signal 9",
        "verdict": "job",
        "why": "out of memory: \x1b]0;all is well\x07 was killed\nverdict   node",
        "evidence": [],
    }
    shown = job_text(job_data("7", None, [here], (), problem=""))
    assert "out of memory: ?]0;all is well? was killed?verdict   node" in shown
    assert [line for line in shown.splitlines() if line.startswith("verdict")] == ["verdict   job"]
