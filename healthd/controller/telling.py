"""What a controller tells people, while it leads: nodes that need a person, and rounds that do not succeed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from healthd.api.controller_stats import ControllerStats
from healthd.config.schema.notify import NotifySection
from healthd.notify.news import AGAIN_S, LASTS_S, PAGED, Topic
from healthd.notify.notifier import Notifier, channels_of, still_told
from healthd.remediation.controller.node_status import RepairState

ROUNDS_LAST_S = 300.0
"""How long no round of the controller must have succeeded before anybody is told: slurmctld and API servers restart."""


def controller_notifier(
    notify: NotifySection, course: ControllerStats, *, name: str, kept: str, keep: Callable[[str], None]
) -> Notifier | None:
    """The notifier of the controller ``name``, or None where nobody is to be told. ``kept``: what the one before it
    told, as it gave it to ``keep``."""
    channels, before = channels_of(notify), still_told(kept)
    if not channels:
        return None
    return Notifier(
        channels,
        per_hour=notify.per_hour,
        wrong=lambda: [*wrong_with_controller(course), *(before if course.succeeded_s is None else ())],
        about=lambda: about_controller(course, name),
        keep=keep,
        kept=kept,
        head=_controllers_head,
    )


def wrong_with_controller(course: ControllerStats) -> Sequence[Topic]:
    """What a controller knows that asks for a person, or that no node can tell: one that does not come back, and rounds
    that do not succeed."""
    found = []
    for each in course.standings:
        if each.page:
            words = f"{each.node or 'the cluster'}: an operator is needed: {each.said}"
            cause = " ".join((each.state, each.refusal or "", *each.troubles))
            found.append(Topic(key=f"{PAGED}{each.node or 'cluster'}", words=words, cause=cause, again_s=AGAIN_S))
        elif each.state is RepairState.SILENT:
            found.append(Topic(key=f"silent {each.node}", words=f"{each.node}: {each.said}", again_s=AGAIN_S))
    if why := course.slow() or course.problem:
        words = f"no round succeeds, so that nothing is counted, drained or replaced: {why}"
        lasts_s = LASTS_S if course.slow() else ROUNDS_LAST_S
        found.append(Topic(key="rounds", words=words, lasts_s=lasts_s, cause="rounds", again_s=AGAIN_S))
    return found


def about_controller(course: ControllerStats, name: str) -> Mapping[str, Any]:
    """Who speaks: what each message of the controller begins with."""
    return {
        "controller": name,
        "orchestrator": course.orchestrator,
        "provisioner": course.provisioner,
        "mode": course.mode,
        "person_needed": sum(each.page for each in course.standings),
        "notices": [],
    }


def _controllers_head(about: Mapping[str, Any]) -> str:
    return f"healthd controller {about['controller']}: nodes that need a person: {about['person_needed']}"
