"""The notifier of a node: its problems, and the sender."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from healthd.checklib.titles import title_of
from healthd.config.schema.notify import NotifySection
from healthd.core.model import NODE, Mode, Severity
from healthd.judge.devices import DeviceNames, with_range
from healthd.notify.delivery import Receiver
from healthd.notify.incident_hold import IncidentHold
from healthd.notify.message import Sender
from healthd.notify.news import ABSENT, NODE_KEY, PAGED, Topic, TopicAbout, of_absent, topics, unkept
from healthd.notify.notifier import NEWS, Hold, Notifier, still_told
from healthd.notify.receivers import channels_of
from healthd.observe.cause_text import operators_step
from healthd.observe.checkup import Checkup
from healthd.remediation.decide.remediation import Remediation, ended_last
from healthd.remediation.engine.absent import AbsentNode
from healthd.remediation.engine.engine import Engine
from healthd.remediation.records.incident_notices import IncidentNotices
from healthd.state.monitor import Monitor
from healthd.state.store import Store


def open_notifier(
    config: NotifySection,
    checkup: Checkup,
    *,
    engine: Engine | None,
    store: Store | None,
    mode: Mode,
    state_dir: str,
    absent: Callable[[], Sequence[AbsentNode]] = tuple,
    absent_pages: Callable[[], frozenset[str] | None] = frozenset,
    notices: Callable[[], IncidentNotices] | None = None,
) -> Notifier | None:
    """The notifier of this node, or None without a receiver. Raises StoreError. ``absent``: other nodes that page and
    have no daemon. ``absent_pages``: all such nodes, also those that another agent pages for; None where that was not
    read yet. ``notices``: reads the notices of incidents; None where the cluster has none. ``state_dir``: the
    daemon's.

    ``engine``: before its first reconcile. Pages of an earlier daemon stay open until the engine has decided: its first
    reconcile waits for the kernel log, and for a cluster that answers.
    """
    channels = channels_of(config, state_dir)
    if not channels or store is None:
        return None
    return node_notifier(
        channels,
        config,
        checkup.monitor,
        engine=engine,
        store=store,
        about=lambda: about(checkup, mode),
        absent=absent,
        absent_pages=absent_pages,
        hold=_hold_of(config, checkup.machine.name, notices),
    )


def _hold_of(config: NotifySection, node: str, notices: Callable[[], IncidentNotices] | None) -> Hold | None:
    if notices is None or not config.incident_wait_s:
        return None
    return IncidentHold(node, notices, wait_s=config.incident_wait_s)


def node_notifier(
    channels: Mapping[str, Receiver],
    config: NotifySection,
    monitor: Monitor,
    *,
    engine: Engine | None,
    store: Store,
    about: Callable[[], Sender],
    absent: Callable[[], Sequence[AbsentNode]] = tuple,
    absent_pages: Callable[[], frozenset[str] | None] = frozenset,
    hold: Hold | None = None,
) -> Notifier:
    """The notifier for these receivers; ``about`` gives the sender. Raises StoreError."""
    kept = store.fact(NEWS)
    left = [topic for topic in still_told(kept) if topic.key == NODE_KEY or topic.key.startswith(PAGED)]
    ended: Remediation | None = None
    for remediation in store.remediations():
        ended = ended_last(remediation, ended)

    def stands(topic: Topic) -> bool:
        """Whether a topic that the daemon before this one left open is still so, or not read yet."""
        if topic.key.startswith(ABSENT):
            return (pages := absent_pages()) is None or topic.about.subject in pages
        return engine is not None and not engine.has_decided

    def wrong() -> Sequence[Topic]:
        found = [
            *wrong_with(monitor, engine, Severity(config.severity), ended=ended),
            *(of_absent(each.node, each.message) for each in absent()),
        ]
        left[:] = filter(stands, left)
        keys = {topic.key for topic in found if not topic.last}
        return [*found, *(topic for topic in left if topic.key not in keys)]

    return Notifier(
        channels,
        per_hour=config.per_hour,
        wrong=wrong,
        about=about,
        keep=lambda text: store.keep(NEWS, text),
        kept=kept,
        hold=hold,
        cluster=config.cluster,
        runbooks=config.runbooks,
        page=config.page,
    )


def wrong_with(
    monitor: Monitor, engine: Engine | None, least: Severity, *, ended: Remediation | None = None
) -> Sequence[Topic]:
    """The open topics of this node, from severity ``least`` on. It reads nothing from the disk: a store that fails
    hides no topic, and is one itself. ``ended``: the last remediation that ended before this daemon started."""
    diagnoses = monitor.diagnoses()
    found = topics(
        verdict=monitor.verdict(monitor.outcomes().values()),
        diagnoses=diagnoses,
        acknowledged=[each for each in diagnoses if monitor.is_acknowledged(each)],
        decision=engine.decision if engine is not None else None,
        remediation=engine.remediation if engine is not None else None,
        least=least,
        ended=engine.ended or ended if engine is not None else None,
        faults=monitor.history.faults.values(),
    )
    return [*for_operators(found, monitor.device_names()), *unkept(monitor.store_problem)]


def for_operators(found: Iterable[Topic], names: DeviceNames) -> Iterator[Topic]:
    """The topics with the names that operators have for devices, and with what to do about a fault. A topic about
    the node names all devices of the fault."""
    found = tuple(found)
    devices: dict[str, list[str]] = {}
    for each in (fault for fault in found if fault.remedy is not None):
        devices.setdefault(each.code, []).append(names.of(each.component))
    for each in found:
        step = operators_step(each.code, each.remedy) if each.remedy is not None else each.next_step
        yield replace(
            each,
            message=_read(each.message, each, devices, names),
            title=_read(each.title, each, devices, names),
            next_step=step,
            about=_named(each.about, each.reason, names),
        )


def _read(text: str, topic: Topic, devices: Mapping[str, Sequence[str]], names: DeviceNames) -> str:
    """A text of a topic with the names of devices; ``devices``: those of each code that is open."""
    code, plain = topic.about.code, names.plain(text)
    return plain if topic.remedy is not None else with_range(plain, code, devices.get(code, ()))


def _named(about: TopicAbout, reason: str, names: DeviceNames) -> TopicAbout:
    """The same with the device as operators name it, and with what is wrong: the code's title, else the message of the
    fault."""
    device = names.of(about.device) if about.device not in ("", str(NODE)) else ""
    return replace(about, device=device, what=title_of(about.code, device) or names.plain(reason))


def about(checkup: Checkup, mode: Mode) -> Sender:
    """The sender of a node's messages."""
    machine, monitor = checkup.machine, checkup.monitor
    return Sender(
        node=machine.name,
        instance_id=machine.identity.instance_id or "",
        instance_type=machine.instance_type or "",
        verdict=monitor.verdict(monitor.outcomes().values()),
        mode=mode,
        notices=tuple(checkup.notices),
    )
