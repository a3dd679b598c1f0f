"""The grammar of the command line: the one place that knows verbs and options. It parses, and nothing else.

The daemon parses with it too: its clients send their arguments as they are.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn

from healthd import __version__
from healthd.core.errors import UsageError
from healthd.drill.chain import KINDS, DrillFault

CONTEXTS = ("manual", "prolog", "epilog", "boot")
REPAIR_STEPS = ("reset", "reboot", "replace")
MAX_LINES = 100_000
LONGEST = timedelta(days=365)
_MINUTES = {"m": 1, "h": 60, "d": 1440, "w": 10_080}
_TIME = re.compile(r"([0-9]{1,6})([mhdw])")


class TextRequested(Exception):
    """The command line asks for a text, not for work: --help and --version end the parse with one. No error."""


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting: only ``output`` ends the process, and the daemon must not.

    Options are not abbreviated: the hot path looks for ``--config`` and its like word by word, and must not miss one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}; see {self.prog} --help")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise TextRequested(message or "")

    def print_help(self, file: object = None) -> None:
        raise TextRequested(self.format_help())


class _Version(argparse.Action):
    def __call__(self, *_: object) -> NoReturn:
        raise TextRequested(f"healthd {__version__}\n")


class _Kinds(argparse.Action):
    def __call__(self, *_: object) -> NoReturn:
        raise TextRequested("".join(_played(kind) for kind in KINDS.values()))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command line. ``module`` of ``healthd.cli`` answers it; "": the one of the verb's own name.

    Raises UsageError; Shown for what asks for a text, such as --help.
    """
    return _grammar().parse_args(arguments)


def _grammar() -> _Parser:
    top = _Parser(prog="healthd", description="Node health checks and remediation for GPU clusters.")
    top.add_argument("--version", action=_Version, nargs=0, help="print the version")
    top.set_defaults(module="")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)
    for group in (
        _looking,
        _controlling,
        _telling,
        _ordering,
        _explaining,
        _setting_up,
        _deciding,
        _hooking,
        _drilling,
        _showing,
        _contributing,
    ):
        group(verbs)
    return top


def _looking(verbs: Any) -> None:
    """What is well and what is not, and the daemon that sees it."""
    check = verbs.add_parser("check", help="the verdict of this node for a job, now")
    check.add_argument("names", nargs="*", metavar="NAME", help="only these checks (default: all)")
    check.add_argument(
        "--context", choices=CONTEXTS, default="manual", help="who asks; all but manual are audited; boot is --active"
    )
    check.add_argument("--active", action="store_true", help="also test what needs an idle node: NCCL, GDRCopy")
    check.add_argument("--no-daemon", action="store_true", help="look now, without asking the daemon")
    _common(check, json=True, socket=True)

    run = verbs.add_parser("run", help="the daemon")
    _common(run)

    status = verbs.add_parser("status", help="what the daemon sees, decided and does")
    status.add_argument("--watch", action="store_true", help="show it anew as it changes, until Ctrl-C")
    status.add_argument(
        "--every", type=_seconds, default=2.0, metavar="SECONDS", help="with --watch: how often to ask (default: 2)"
    )
    _common(status, json=True, socket=True)


def _controlling(verbs: Any) -> None:
    """What runs on the head node."""
    controller = verbs.add_parser("controller", help="on the head node: act for nodes that have no right to")
    how = controller.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="one round, with what is due now, and end")
    how.add_argument("--status", action="store_true", help="what the controller that leads said last")
    _common(controller, json=True)

    uninstall = verbs.add_parser("uninstall", help="stop healthd in a Kubernetes cluster, and let every node in")
    how = uninstall.add_mutually_exclusive_group()
    how.add_argument("--yes", action="store_true", help="do not ask")
    _dry_run(how, "which nodes would be let in")
    _common(uninstall)


def _telling(verbs: Any) -> None:
    """What the daemon tells everybody."""
    plan = verbs.add_parser("plan", help="what would be done now about each fault, by which rule, and why not")
    _asking(plan)

    history = verbs.add_parser("history", help="what was found, decided and done, and by whose order; newest last")
    history.add_argument(
        "--last",
        type=_count,
        default=100,
        metavar="N",
        help="so many lines (default: 100); 1000 at most for whoever may not act",
    )
    _common(history, json=True, socket=True)


def _ordering(verbs: Any) -> None:
    """What a person may order of the daemon."""
    relearn = verbs.add_parser("relearn", help="forget what checks learned on this instance: what is there is right")
    relearn.add_argument("names", nargs="*", metavar="NAME", help="only of these checks (default: all that learn)")
    _reason(relearn, required=True)
    how = relearn.add_mutually_exclusive_group()
    how.add_argument("--yes", action="store_true", help="do not ask")
    _dry_run(how, "what would be forgotten")
    _daemons(relearn)

    ack = verbs.add_parser("ack", help="keep the node in service although this fault is open, for a time")
    ack.add_argument("fault", metavar="FAULT", help="an open fault: CODE, or CODE@COMPONENT where several have it")
    ack.add_argument(
        "--for", dest="length", type=_length, required=True, metavar="TIME", help="how long: 30m, 12h, 7d, 2w"
    )
    _reason(ack, required=True)
    _dry_run(ack, "what would be acknowledged")
    _daemons(ack)

    quarantine = verbs.add_parser("quarantine", help="take this node out, until `healthd release`")
    _reason(quarantine, required=True)
    _dry_run(quarantine, "what each step would do")
    _daemons(quarantine)

    release = verbs.add_parser("release", help="let this node in again, once it is verified")
    _reason(release)
    release.add_argument(
        "--force", action="store_true", help="whatever is open, which is then acknowledged; needs --reason"
    )
    _dry_run(release, "what each step would do")
    _daemons(release)

    repair = verbs.add_parser("repair", help="take this node out, mend it, verify it and let it in again")
    repair.add_argument(
        "--step", choices=REPAIR_STEPS, help="this remedy (default: what the policy says for the worst)"
    )
    _reason(repair)
    how = repair.add_mutually_exclusive_group()
    how.add_argument("--yes", action="store_true", help="do not ask")
    _dry_run(how, "what each step would do, and what AWS says to it")
    _daemons(repair)


def _explaining(verbs: Any) -> None:
    """What there is to know without a node."""
    explain = verbs.add_parser("explain", help="what a finding code or an XID means and calls for")
    explain.add_argument("code", metavar="CODE|XID")
    explain.add_argument("--json", action="store_true", help="as JSON")

    checks = verbs.add_parser("checks", help="the checks that exist, their settings and what they can find")
    _common(checks, json=True)


def _setting_up(verbs: Any) -> None:
    """What gets a node ready."""
    config = verbs.add_parser("config", help="show or validate the configuration; or its JSON Schema, for editors")
    config.add_argument("what", choices=("show", "validate", "schema"))
    config.add_argument("--here", action="store_true", help="validate: try it out too, as the daemon's start would")
    _common(config, json=True)

    init = verbs.add_parser("init", help="write a first configuration from what is on this node; never over another")
    init.add_argument("--output", metavar="FILE", help="write it there (default: /etc/healthd/config.toml)")
    init.add_argument("--print", action="store_true", help="to standard output, and write nothing")

    doctor = verbs.add_parser("doctor", help="what is missing on this node, and how to mend it; needs no daemon")
    doctor.add_argument("--cluster", action="store_true", help="only what the API server of Kubernetes says")
    _common(doctor, json=True, socket=True)


def _deciding(verbs: Any) -> None:
    """What would be done, for whoever writes a policy."""
    policy = verbs.add_parser("policy", help="what is done about which fault, and why")
    policy.add_argument("what", choices=("show", "test"))
    policy.add_argument("args", nargs="*", metavar="CODE|FILE", help="for test: finding codes, XIDs, or log files")
    _trying(policy)
    _common(policy, json=True)

    replay = verbs.add_parser("replay", help="what would have been found, decided and done on past logs")
    replay.add_argument("files", nargs="+", metavar="FILE", help="kernel logs, journals, syslogs, .gz; healthd.db")
    _trying(replay)
    replay.add_argument("--mode", choices=("observe", "quarantine", "repair"), default="repair", help="default: repair")
    replay.add_argument("--nodes", type=int, default=0, metavar="N", help="nodes in the fleet; applies the budget")
    _common(replay, json=True)


def _hooking(verbs: Any) -> None:
    """What Slurm asks."""
    hook = verbs.add_parser("hook", help="answer a Slurm hook")
    hook.add_argument("kind", choices=("prolog", "epilog", "health-check-program"))
    _common(hook, socket=True)


def _drilling(verbs: Any) -> None:
    """What is played."""
    drill = verbs.add_parser("drill", help="play a fault that is not there: what would be found, decided and done")
    drill.add_argument("kind", nargs="?", choices=tuple(KINDS), metavar="KIND", help="what to play; see --list")
    drill.add_argument("number", nargs="?", type=int, metavar="NUMBER", help="of xid or sxid (default: 79, 20034)")
    drill.add_argument("--gpu", metavar="GPU", help="its index or PCI address (default: the first)")
    drill.add_argument("--mount", metavar="PATH", help="the mount point (default: the first network one; /)")
    drill.add_argument("--force", action="store_true", help="also where a job runs, or may run")
    drill.add_argument(
        "--timeout", type=_seconds, metavar="SECONDS", help="how long to wait (default: as long as it may take)"
    )
    drill.add_argument("--notify", action="store_true", help="also send a message, which says that it is a drill")
    drill.add_argument("--list", action=_Kinds, nargs=0, help="only say what can be played")
    _asking(drill)


def _showing(verbs: Any) -> None:
    """What is shown to whoever has no such node."""
    demo = verbs.add_parser("demo", help="watch a fault being repaired on a SIMULATED p5.48xlarge")
    demo.add_argument(
        "--fail-provisioner", action="store_true", help="let the reboot fail: the demo must end in failure"
    )
    demo.add_argument("--keep", action="store_true", help="keep the simulated node's folder")


def _contributing(verbs: Any) -> None:
    """What is used in a checkout of healthd."""
    new = verbs.add_parser("new-check", help="write a new check and its test, in a checkout of healthd")
    new.add_argument("name", metavar="NAME", help="a family and a word, such as host.numa")
    kind = new.add_mutually_exclusive_group()
    kind.add_argument("--proc", dest="kind", action="store_const", const="proc", help="it reads /proc (default)")
    kind.add_argument("--kernel", dest="kind", action="store_const", const="kernel", help="it knows a line of the log")
    kind.add_argument("--nvml", dest="kind", action="store_const", const="nvml", help="it asks NVML of each GPU")
    new.set_defaults(kind="proc")
    _dry_run(new, "which files would be written")


def _count(text: str) -> int:
    """A number of lines. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_LINES):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of lines; expected 1 to {MAX_LINES}")
    return int(text)


def _seconds(text: str) -> float:
    """How long to wait between two questions, in seconds. Raises ArgumentTypeError."""
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", text) or not 0.5 <= float(text) <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds; expected 0.5 to 3600")
    return float(text)


def _length(text: str) -> timedelta:
    """A length of time. Raises ArgumentTypeError."""
    parts = _TIME.fullmatch(text)
    length = timedelta(minutes=int(parts[1]) * _MINUTES[parts[2]]) if parts else timedelta()
    if not timedelta() < length <= LONGEST:
        expected = f"expected a number and m, h, d or w, such as 12h or 7d, up to {LONGEST.days}d"
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time that may be; {expected}")
    return length


def _words(text: str) -> str:
    """A reason, on one line. Raises ArgumentTypeError for an empty one."""
    words = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    if not words:
        raise argparse.ArgumentTypeError(f"{text!r} says nothing; expected a few words for whoever reads the trail")
    return words


def _played(kind: DrillFault) -> str:
    """What can be played, in three lines."""
    options = f" [{kind.number}]" if kind.number is not None else ""
    options += f" [--{kind.on} {kind.on.upper()}]" if kind.on else ""
    return f"{kind.name}{options}\n  {kind.title}; {kind.check} must find it\n  {kind.enters}\n"


def _asking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")
    _daemons(parser)


def _daemons(parser: argparse.ArgumentParser) -> None:
    """What only the daemon can answer, by a row of ``healthd.cli.asking``: no configuration is read for it."""
    parser.set_defaults(module="asking")
    _socket(parser)


def _socket(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--socket", metavar="PATH", help="the daemon's socket (default: $HEALTHD_SOCKET)")


def _reason(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """What the trail keeps of a person's words: never none, and never more than a line."""
    parser.add_argument("--reason", type=_words, required=required, metavar="TEXT", help="why, for the audit trail")


def _dry_run(parser: argparse._ActionsContainer, what: str) -> None:
    """``what``: what it only says."""
    parser.add_argument("--dry-run", action="store_true", help=f"only say {what}")


def _trying(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", metavar="NAME|FILE", default="", help="this policy instead of the configured one")
    parser.add_argument("--instance-type", metavar="TYPE", default="", help="as on this EC2 instance type")


def _common(parser: argparse.ArgumentParser, *, json: bool = False, socket: bool = False) -> None:
    parser.add_argument("--config", metavar="FILE", help="this configuration only, instead of /etc/healthd")
    if json:
        parser.add_argument("--json", action="store_true", help="as JSON")
    if socket:
        _socket(parser)
