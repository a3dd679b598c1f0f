"""The log of a service, on stderr: JSON lines for the journal or a collector, and coloured lines on a terminal.

A line has the name of its event, and fields. The sentence of an event, where it has one, is made from the fields. A
line that cannot be written stops no thread: a user may have filled the disk that it goes to.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from healthd.observe.text_lines import printable

SENTENCES: Mapping[str, str] = {
    "clock.set": "{change}: every check runs again, and times that are remembered are moved with it{undated}",
    "daemon.ended_early": "healthd stopped with work under way ({left}): it is found again at the next start",
    "daemon.failed": "thread {thread} of the daemon failed, so healthd ends and is started again: report this defect",
    "daemon.started": "healthd {version} started: node {node}, mode {mode}",
    "daemon.stopping": "stopping",
    "daemon.waiting": "stopping: waiting at most {at_most_s:g} s for the step under way to end",
    "job.unreported": "{problem}",
    "fleet.unread": "the fleet was not read, and is read when a fault needs it: {error}",
    "duty.failed": "duty {duty} of the daemon failed; please report this defect of healthd",
    "matches.decided": "every [[match]] of the configuration can be decided now: restarting with them",
    "metadata.answers": "the metadata service answers now: restarting with its answers",
    "slurm.found": "Slurm is found on this node now: restarting as one of its nodes",
    "metadata.silent": "the metadata service has not answered yet; facts that it alone has are unknown until then",
    "metrics.left": "the metrics stay in {path}, older with each minute: {error}; remove the file",
    "metrics.unwritten": "the metrics were not written to {path}: {error}",
    "reload.refused": "SIGHUP: the configuration cannot be used, and the one before stays in force: {error}",
    "reload.taken": "SIGHUP: the configuration loads; restarting with it",
    "state.unusable": "healthd observes, and acts on nothing until its state can be kept: {error}",
    "state.usable": "the state directory can be used again: restarting with it",
}
"""By event: the sentence, as a template of the line's fields."""


def service_logger(level: str) -> Any:
    """A structlog logger; ``level``: the least severe line that is written."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            add_sentence,
            *_renderers(on_terminal=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _LogStream(sys.stderr))),
    )
    logging.getLogger("apscheduler.scheduler").setLevel(logging.ERROR)
    logging.getLogger("apscheduler.executors").setLevel(logging.CRITICAL)  # the daemon's listener logs a failed job
    return structlog.get_logger()


class _LogStream:
    """Standard error, which may be a full disk or a pipe that nothing reads any more. The next line that can be written
    comes behind one with the number of those that are lost."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._lost, self._why = file, 0, ""

    def write(self, text: str) -> None:
        """Write a line, or count it as lost."""
        lost = {"event": "log.lost", "level": "error", "lines": self._lost, "error": self._why}
        try:
            self._file.write(f"{json.dumps(lost)}\n{text}" if self._lost else text)
            self._file.flush()
        except (OSError, ValueError) as error:  # the second: it was closed
            self._lost, self._why = self._lost + 1, str(error)
        else:
            self._lost = 0

    def flush(self) -> None:
        """Each line is written through."""


def add_sentence(_logger: WrappedLogger, _level: str, line: EventDict) -> EventDict:
    """The line with the sentence of its event as ``message``. A message that is there already stays."""
    if (sentence := SENTENCES.get(line["event"])) is not None:
        line["message"] = sentence.format_map(line)
    return line


def message_first(_logger: WrappedLogger, _level: str, line: EventDict) -> EventDict:
    """The line as a terminal shows it: the sentence, and the name of the event behind it. A user may have named the
    process in it: no control character reaches the terminal."""
    if "message" in line:
        line["event"], line["name"] = line.pop("message"), line["event"]
    return {key: printable(each.replace("\n", "; ")) if isinstance(each, str) else each for key, each in line.items()}


def _write_traceback(stream: TextIO, exc_info: ExcInfo) -> None:
    """Below its line, for a terminal: the text of an exception may come from outside as well."""
    lines = "".join(traceback.format_exception(*exc_info)).rstrip("\n").split("\n")
    stream.write("\n".join(["", *map(printable, lines)]))


def _renderers(*, on_terminal: bool) -> list[Processor]:
    if on_terminal:
        colors = not os.environ.get("NO_COLOR")
        return [message_first, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_write_traceback)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
