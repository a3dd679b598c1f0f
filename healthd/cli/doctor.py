"""``healthd doctor``: what is missing on this node and how to fix it. It needs no daemon, and no probe hangs it."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

from healthd.agent.node_facts import ThisNode
from healthd.api.wire import Reply
from healthd.cli.settings import check_settings
from healthd.cli.watch import watched
from healthd.config.load import load
from healthd.config.schema.config import Config
from healthd.core.errors import ConfigError, SourceError, SourceTimeout
from healthd.setup.doctor import DoctorResult, as_json, as_text, exit_code
from healthd.setup.forked_calls import answer_apart, ask_apart
from healthd.setup.kubernetes_probes import cluster_probes
from healthd.setup.machine_probes import machine_probes
from healthd.setup.remote_probes import remote_probes

HERE_S, REMOTE_S = 15.0, 45.0
"""How long the probes of this machine may take together, and then those beyond it, in seconds: longer than their own
deadlines, which are those of NVML, and of two calls to AWS or four to Slurm."""
_MATCH_S = 15.0
_HANGS = "find what it waits for: `ps -eo pid,stat,wchan,cmd` and the kernel log; the server of a mount may be lost"
_UNREADABLE = "make readable what this line names: run as root, in a container with the host's /proc, /sys and devices"


def answer(options: Namespace) -> Reply:
    """Exit 0: nothing is missing; 1: something is missing; 2: nothing is missing, but a probe has no answer. With
    ``--watch`` 0, at Ctrl-C."""
    return watched(options, lambda: _answer(options))


def _answer(options: Namespace) -> Reply:
    try:
        config, first = _configuration(options)
    except ConfigError as error:
        fix = "`healthd config validate` marks the mistakes; `healthd init --print` prints a valid one"
        lines = [DoctorResult.missing("configuration", "; ".join(error.problems), fix)]
    else:
        socket = options.socket or os.environ.get("HEALTHD_SOCKET") or config.daemon.socket
        here = {} if options.cluster else machine_probes(config, socket)
        afar = cluster_probes(config, os.environ) if options.cluster else remote_probes(config, os.environ)
        answers = ask_apart(here, list[DoctorResult], deadline_s=HERE_S)
        answers |= ask_apart(afar, list[DoctorResult], deadline_s=REMOTE_S)
        lines = [*first, *(line for name, each in answers.items() for line in _lines(name, each))]
    out = as_json(lines) if options.json else as_text(lines, colour=options.colour)
    return Reply(code=exit_code(lines), out=out)


def _lines(name: str, answer: list[DoctorResult] | SourceError) -> Iterable[DoctorResult]:
    if not isinstance(answer, SourceError):
        return answer
    fix = _HANGS if isinstance(answer, SourceTimeout) else _UNREADABLE
    return [DoctorResult.not_reported(name, str(answer), fix)]


def _configuration(options: Namespace) -> tuple[Config, list[DoctorResult]]:
    """The configuration of this node, and the doctor's lines about it. Raises ConfigError."""
    try:
        path = Path(options.config).absolute() if options.config else None
    except OSError as error:
        wrong = (
            f"--config {options.config}: the working directory cannot be read: {error.strerror}; give the whole path"
        )
        raise ConfigError((wrong,)) from error
    loaded = load(path, checks=check_settings(), environ=os.environ, who=lambda config: _DoctorNode(config, os.environ))
    files = sorted({each.origin.partition(":")[0] for each in loaded.settings.values() if each.origin.startswith("/")})
    why = (
        f"{', '.join(files) or 'no configuration file, all values are defaults'}; mode {loaded.config.remediation.mode}"
    )
    lines = [DoctorResult.ok("configuration", why)]
    if not files:
        fix = "`healthd init` writes a first one for this node"
        lines = [DoctorResult.missing("configuration", f"{why}: healthd only observes", fix, optional=True)]
    lines += [DoctorResult.not_reported("configuration", each, _HANGS) for each in loaded.notices]
    return loaded.config, lines


class _DoctorNode(ThisNode):
    """The node for the match sections. Its partitions come from Slurm, whose files may hang."""

    def partition(self) -> tuple[str, ...]:
        """As ThisNode, within a deadline. Raises SourceError."""
        return answer_apart(super().partition, tuple[str, ...], deadline_s=_MATCH_S)
