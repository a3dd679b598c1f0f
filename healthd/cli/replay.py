"""``healthd replay``: what healthd would have found, decided and done on past logs, and the cost in node-hours."""

from __future__ import annotations

import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from typing import Any

from msgspec.structs import asdict

from healthd.api.timeline import names_in
from healthd.api.wire import Reply
from healthd.cli.output import progress_line
from healthd.cli.settings import loaded
from healthd.core.errors import UsageError
from healthd.core.json_documents import json_document, json_fields
from healthd.core.model import Mode
from healthd.core.name_lists import number_of
from healthd.judge.devices import DeviceNames
from healthd.observe.text_lines import TextLine, joined
from healthd.replay.replay import Replayed, ReplayedFile, Trial, replay
from healthd.replay.story import DAY, HOUR, Story, most_within

SCHEMA = "healthd.replay/v1"
_OF_AN_OUTAGE = ("began", "ended", "action", "code", "remedy", "remedies", "out_s", "waiting_s")
_STORE = "event store"
_BY_THE_OPERATOR = "kept out for the operator"


def answer(options: Namespace) -> Reply:
    """Exit 0 where every file could be judged, whatever the findings; a file that is no log is an error."""
    if options.nodes < 0:
        raise UsageError(f"healthd replay: --nodes {options.nodes}; expected the number of nodes in the fleet")
    config = loaded(options).config
    trial = Trial(
        policy=options.policy,
        instance_type=options.instance_type or config.node.instance_type or None,
        mode=Mode(options.mode),
        nodes=options.nodes,
    )
    _, most = getrlimit(RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # where fs.nr_open is lower: the first file too many is named
        setrlimit(RLIMIT_NOFILE, (most, most))  # all files are open at once; 1,024 is usual
    done = replay([Path(name) for name in options.files], config, trial, _counted())
    progress_line("")
    out = json_document(as_data(done)) if options.json else as_text(done)
    return Reply(code=0, out=out)


def as_data(done: Replayed) -> dict[str, Any]:
    """For programs. Hours are of one node each."""
    return {
        "schema": SCHEMA,
        "policy": done.policy,
        "mode": done.mode,
        "sources": [asdict(source) for source in done.sources],
        "assumed": asdict(done.assumed),
        "hosts": [
            {
                "host": story.host,
                "happenings": [json_fields(each, *each.__struct_fields__) for each in story.happenings],
                "outages": [json_fields(outage, *_OF_AN_OUTAGE) for outage in story.outages],
                "decision": json_fields(story.decision, "action", "reason"),
                "open_faults": list(story.open_faults),
                **_hours([story]),
                **_conduct([story]),
            }
            for story in done.stories
        ],
        "total": {**_hours(done.stories), **_conduct(done.stories)},
    }


def as_text(done: Replayed) -> str:
    """As text: the files, each node's story, and the sum."""
    blocks = ["\n".join(line for source in done.sources for line in _source_lines(source))]
    names = _names(done.sources)
    blocks += [names.plain("\n".join(_story_lines(story))) for story in done.stories if story.happenings]
    blocks.append("\n".join(_sum_lines(done)))
    return joined(map(TextLine, "\n\n".join(blocks).split("\n")))


# ---------------------------------------------------------------------------------------------------------------------


def _counted() -> Callable[[int], None]:
    """A callback for the lines of each block: shows their number once a second."""
    total, again_s = 0, time.monotonic() + 1.0

    def read(lines: int) -> None:
        nonlocal total, again_s
        total += lines
        if time.monotonic() >= again_s:
            again_s = time.monotonic() + 1.0
            progress_line(f"healthd: {total:,} lines read")

    return read


def _names(sources: Sequence[ReplayedFile]) -> DeviceNames:
    """The names of the GPUs that event stores know, by their UUIDs: an address is another node's as well."""
    found: dict[str, str] = {}
    for each in sources:
        if each.form.startswith(_STORE):
            found |= {own: name for own, name in names_in(Path(each.path)).names.items() if own.startswith("gpu:GPU-")}
    return DeviceNames(found)


def _source_lines(source: ReplayedFile) -> Iterator[str]:
    unread = f", {source.unread:,} unreadable" if source.unread else ""
    what = "events" if source.form.startswith(_STORE) else "lines"
    judged = f"{source.kernel_lines:,} kernel lines to judge" if what == "lines" else f"{source.kernel_lines:,} faults"
    yield f"{source.path}: {source.form}, {source.lines:,} {what}, {judged}{unread}"
    yield from (f"  {note}" for note in source.notes)


def _story_lines(story: Story) -> Iterator[str]:
    times = f"{number_of(len(story.outages), 'time')} out"
    found = sum(each.kind == "found" for each in story.happenings)
    yield f"{story.host}: {found} found, {times}, {_text(_hours([story]))}"
    for each in story.happenings:
        where = f"{each.code} on {each.component}: " if each.code and each.kind in ("found", "ended") else ""
        yield f"  {each.at:%Y-%m-%d %H:%M:%S}  {each.kind:<9} {where}{each.text}"


def _sum_lines(done: Replayed) -> Iterator[str]:
    quiet = sum(not story.happenings for story in done.stories)
    yield f"policy {done.policy}, mode {done.mode}: {_text(_hours(done.stories))}"
    yield f"{number_of(len(done.stories), 'node')}, {quiet} of them without a finding"
    yield _conduct_text(_conduct(done.stories))
    took = done.assumed
    yield (
        f"assumed: a job runs on for {_h(took.drain_s)} after the drain; a reset takes {_h(took.reset_s)}, a reboot"
        f" {_h(took.reboot_s)}, a replacement {_h(took.replace_s)}; an operator who is paged comes after"
        f" {_h(took.person_s)}; every repair succeeds, until the log shows the fault again ([replay])"
    )


def _hours(stories: Sequence[Story]) -> dict[str, Any]:
    outages = [outage for story in stories for outage in story.outages]
    waiting_s = sum(outage.waiting_s for outage in outages)
    acts = Counter(word for outage in outages for word in outage.remedies or (_BY_THE_OPERATOR,))
    return {
        "times_out": len(outages),
        "by_remedy": dict(sorted(acts.items())),
        "out_hours": round(sum(outage.out_s for outage in outages) / 3600, 2),
        "of_that_draining_hours": round(waiting_s / 3600, 2),
    }


def _conduct(stories: Sequence[Story]) -> dict[str, Any]:
    """How the daemon would have behaved: read this before you allow it to act."""
    replaced = sorted(at for story in stories for at in story.quality.replaced_at)
    silent = max(stories, key=lambda story: story.quality.longest_silence_s, default=None)
    held = [story for story in stories if story.quality.held_codes]
    return {
        "longest_silence_hours": round(silent.quality.longest_silence_s / 3600, 2) if silent else 0.0,
        "longest_silence_host": silent.host if silent and silent.quality.longest_silence_s else "",
        "messages": sum(story.quality.messages for story in stories),
        "replacements_in_an_hour": most_within(replaced, HOUR),
        "replacements_in_a_day": most_within(replaced, DAY),
        "flaps": sum(story.quality.flaps for story in stories),
        "held_nodes": len(held),
        "held_codes": sorted({code for story in held for code in story.quality.held_codes}),
        "raised": sum(story.quality.raised for story in stories),
    }


def _conduct_text(conduct: dict[str, Any]) -> str:
    host, codes = conduct["longest_silence_host"], ", ".join(conduct["held_codes"])
    return (
        f"{conduct['messages']} messages; longest silence while a node was out or critical:"
        f" {conduct['longest_silence_hours']:g} h{f' ({host})' if host else ''}; most replacements:"
        f" {conduct['replacements_in_an_hour']} in an hour, {conduct['replacements_in_a_day']} in a day;"
        f" {conduct['flaps']} returns with the same fault within a day; {conduct['held_nodes']} nodes held back for"
        f" a fault of many nodes{f' ({codes})' if codes else ''}; {conduct['raised']} remediations raised"
    )


def _text(hours: dict[str, Any]) -> str:
    if not hours["times_out"]:
        return "no node-hours"
    by = ", ".join(f"{count} {remedy}" for remedy, count in hours["by_remedy"].items())
    draining = f", {hours['of_that_draining_hours']:g} of them while the job runs on" if by else ""
    return f"{hours['out_hours']:g} node-hours out{draining} ({by})"


def _h(seconds: float) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds / 60:g} min"
