"""What daemon and controller say on their own: messages to people, and the daemon's metrics as a file. Loops, each in a
thread of its own, and only where configured: a receiver that does not answer keeps nobody waiting but its thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from healthd.agent import Agent
from healthd.clockwatch import ClockWatch
from healthd.config.notify_schema import NotifySection
from healthd.course import Course
from healthd.errors import StoreError
from healthd.model import Severity
from healthd.news import Topic, topics
from healthd.notifier import NEWS, Notifier, channels_of, still_told
from healthd.remediation.standings import State
from healthd.textfile import replace_file

TICK_S = 5.0
ROUNDS_LAST_S = 300.0
"""How long no round of the controller must have succeeded before anybody is told: slurmctld and API servers restart."""


def open_notifier(agent: Agent) -> Notifier | None:
    """The notifier of this node, or None where nobody is to be told. Raises StoreError."""
    channels = channels_of(agent.config.notify)
    store = agent.store
    if not channels or store is None:
        return None
    return Notifier(
        channels,
        per_hour=agent.config.notify.per_hour,
        wrong=lambda: wrong_with(agent),
        about=lambda: about(agent),
        keep=lambda text: store.keep(NEWS, text),
        kept=store.fact(NEWS),
    )


def wrong_with(agent: Agent) -> Sequence[Topic]:
    """What is wrong with this node now and worth telling."""
    monitor, engine, store = agent.monitor, agent.engine, agent.store
    diagnoses = monitor.diagnoses()
    try:
        case = store.open_case() if store is not None else None
    except StoreError:  # said in the log, in the metrics and by `healthd status`; the diagnoses are still to be told
        case = None
    return topics(
        verdict=monitor.verdict(monitor.outcomes().values()),
        diagnoses=diagnoses,
        acknowledged=[each for each in diagnoses if monitor.is_acknowledged(each)],
        decision=engine.decision if engine is not None else None,
        case=case,
        least=Severity(agent.config.notify.severity),
    )


def about(agent: Agent) -> Mapping[str, Any]:
    """Who speaks: what each message begins with."""
    return {
        "node": agent.machine.name,
        "instance_id": agent.machine.identity.instance_id,
        "instance_type": agent.machine.instance_type or "",
        "verdict": agent.monitor.verdict(agent.monitor.outcomes().values()),
        "mode": agent.mode,
        "notices": list(agent.checkup.notices),
    }


def controller_notifier(
    notify: NotifySection, course: Course, *, name: str, kept: str, keep: Callable[[str], None]
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


def wrong_with_controller(course: Course) -> Sequence[Topic]:
    """What a controller knows that asks for a person, or that no node can tell: one that does not come back, and rounds
    that do not succeed."""
    found = []
    for each in course.standings:
        if each.page and each.node:
            words = f"{each.node}: a person is needed: {each.said}"
            found.append(Topic(key=f"page {each.node}", words=words))
        elif each.state is State.SILENT:
            found.append(Topic(key=f"silent {each.node}", words=f"{each.node}: {each.said}"))
    if course.problem:
        words = f"no round succeeds, so that nothing is counted, drained or replaced: {course.problem}"
        found.append(Topic(key="rounds", words=words, lasts_s=ROUNDS_LAST_S))
    return found


def about_controller(course: Course, name: str) -> Mapping[str, Any]:
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


def keep_telling(
    notifier: Notifier, stop: threading.Event, log: Any, *, speaks: Callable[[], bool] = lambda: True
) -> None:
    """Tell people until ``stop``. What could not be delivered is said, and tried again. ``speaks``: whether it is still
    this process's to tell."""
    watch = ClockWatch(datetime.now(UTC), time.monotonic())
    while not stop.wait(TICK_S):
        now = datetime.now(UTC)
        if by := watch.look(now, time.monotonic()):
            notifier.clock_was_set(by, now)
        if not speaks():
            continue
        try:
            for failure in notifier.tick(now, stopping=lambda: stop.is_set() or not speaks()):
                log.error("notification", said=failure)
        except StoreError as error:
            log.error("notification", said=f"what was told could not be kept, and may be told again: {error}")


def keep_writing(agent: Agent, page: Callable[[], tuple[str, str]], stop: threading.Event, log: Any) -> None:
    """Write the metrics to their file until the daemon stops, and then take it away: an old page looks like news."""
    path, problem = Path(agent.config.metrics.textfile), ""
    wait_s = TICK_S  # the first look at the machine is worth waiting for
    while not stop.wait(wait_s):
        wait_s = agent.config.metrics.every_s
        try:
            replace_file(path, page()[1])
            problem = ""
        except OSError as error:
            if str(error) != problem:
                problem = str(error)
                log.error("the metrics were not written", path=str(path), error=problem)
    path.unlink(missing_ok=True)
