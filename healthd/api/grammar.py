"""The grammar of the command line: the one place that knows verbs and options. It parses, and nothing else.

The daemon parses with it too: its clients send their arguments as they are.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from healthd import __version__
from healthd.core.errors import UsageError

if TYPE_CHECKING:
    from healthd.drill.chain import DrillFault

CONTEXTS = ("manual", "prolog", "epilog", "boot")
EVENT_KINDS = ("check", "daemon", "decision", "drill", "fault", "hook", "job", "command", "step")
"""Of the lines of the audit trail."""
FLEET_KEYS = ("cause", "code", "rack", "partition", "type")
FLEET_STATES = (
    "ok",
    "warning",
    "draining",
    "repairing",
    "held",
    "needs-operator",
    "critical",
    "unknown",
    "stopped",
    "silent",
    "down",
    "drained",
    "asleep",
    "no-agent",
)
REPAIR_STEPS = ("reset", "reboot", "replace")
MAX_LINES = 100_000
LONGEST = timedelta(days=365)
_MINUTES = {"m": 1, "h": 60, "d": 1440, "w": 10_080}
_TIME = r"([0-9]{1,6})([mhdw])"
_JOB_ID = r"[0-9]{1,10}([_+][0-9]{1,10})?"


_SYNONYMS = {
    "cordon": "quarantine",
    "drain": "quarantine",
    "dry-run": "plan",
    "events": "history",
    "evict": "quarantine",
    "incidents": "fleet",
    "log": "history",
    "logs": "history",
    "mute": "ack",
    "nodes": "fleet",
    "reboot": "repair --step reboot",
    "replace": "repair --step replace",
    "reset": "repair --step reset",
    "resume": "release",
    "runbook": "explain",
    "silence": "ack",
    "simulate": "plan",
    "taint": "quarantine",
    "thaw": "freeze --end",
    "unack": "ack --end",
    "uncordon": "release",
    "undrain": "release",
    "unfreeze": "freeze --end",
    "validate": "config validate",
    "why": "fleet --why",
}
"""Words of Slurm, Kubernetes and Alertmanager for it. The nearest spelling of ``drain`` would be ``drill``, of
``incidents`` ``init``, which writes a configuration, and of ``runbook`` ``run``, which starts a daemon."""


class TextRequested(Exception):
    """The command line asks for a text, such as --help or --version. This ends the parse and is no error."""


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting: only ``output`` ends the process, and the daemon must not.

    Options cannot be abbreviated: the hot path compares each word with ``--config`` and its like.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._width: int | None = 80
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {_with_help(message, self.prog)}")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As the base's. An option that the verb does not have is answered with the nearest that it has."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            verb = self.verbs()[options.verb]
            known = [each for each in verb._option_string_actions if each.startswith("--")]
            verb.error(f"unrecognized arguments: {' '.join(unknown)}{_nearest_option(unknown[0], known)}")
        return options

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(each) for each in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            near = f"; did you mean {_SYNONYMS[value]}?" if value in _SYNONYMS else _nearest(value, choices)
            self.error(f"unknown verb {value!r}{near}")
        listed = f" (choose from {', '.join(choices)})"
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}{listed}{_nearest(value, choices)}")

    def verbs(self) -> Mapping[str, argparse.ArgumentParser]:
        """The grammar of each verb, by its name."""
        verbs: Mapping[str, argparse.ArgumentParser] = self._subcommands().choices
        return verbs

    def abouts(self) -> Mapping[str, str]:
        """The one line of help of each verb."""
        return {each.dest: each.help or "" for each in self._subcommands()._choices_actions}

    def _subcommands(self) -> Any:
        return next(each for each in self._actions if isinstance(each, argparse._SubParsersAction))

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise TextRequested(message or "")

    def print_help(self, file: object = None) -> None:
        self._width = None
        raise TextRequested(self.format_help())

    def _get_formatter(self) -> argparse.HelpFormatter:
        """Each added argument makes one, and without a width it loads shutil, which asks the terminal for it."""
        return argparse.HelpFormatter(self.prog, width=self._width)


class _Version(argparse.Action):
    def __call__(self, *_: object) -> NoReturn:
        raise TextRequested(f"healthd {__version__}\n")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command line. ``module`` of ``healthd.cli`` answers it; "": the one of the verb's own name.

    Raises UsageError; TextRequested for what asks for a text: --help, ``help``, ``help VERB``, ``version``, nothing.
    """
    match list(arguments):
        case [] | ["help"] | ["-h"] | ["--help"]:
            from healthd.api.overview import overview  # no verb needs it

            raise TextRequested(overview(_grammar().abouts()))
        case ["version", *more]:
            arguments = ["--version", *more]
        case ["help", verb, *_]:
            arguments = [verb, "--help"]
        case [option, *_] if option.startswith("-") and option != "--version":
            of_verbs = {name for verb in _grammar().verbs().values() for name in verb._option_string_actions}
            near = "" if option in of_verbs else _nearest_option(option, ("--help", "--version"))
            hint = near or "; write `healthd VERB OPTIONS`"
            raise UsageError(_with_help(f"healthd: {option!r} is no option before the verb{hint}", "healthd"))
    options: argparse.Namespace = _grammar(arguments[0]).parse_args(arguments)
    return options


def _grammar(verb: str = "") -> _Parser:
    """The grammar of every verb; of a verb that it knows, the group of that verb alone, which is made sooner."""
    top = _Parser(prog="healthd", description="Node health checks and remediation for GPU clusters.")
    top.add_argument("--version", action=_Version, nargs=0, help="print the version")
    top.set_defaults(module="", colour=False, watch=False)
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)
    for group in [each for each, of in _GROUPS.items() if verb in of] or _GROUPS:
        group(verbs)
    return top


def _looking(verbs: Any) -> None:
    """The verdict, and the daemon that gives it."""
    check = verbs.add_parser("check", help="print the verdict of this node for a job")
    check.add_argument("names", nargs="*", metavar="NAME", help="only these checks (default: all)")
    check.add_argument(
        "--context", choices=CONTEXTS, default="manual", help="the caller; all but manual are audited; boot is --active"
    )
    check.add_argument("--active", action="store_true", help="also run active tests, on an idle node: NCCL, GDRCopy")
    check.add_argument("--brief", action="store_true", help="one line without host and device, for `clush -b`")
    check.add_argument("--no-daemon", action="store_true", help="run the checks now, without the daemon")
    _verbose(check)
    _common(check, json=True, socket=True)

    run = verbs.add_parser("run", help="run the daemon")
    _common(run)

    status = verbs.add_parser("status", help="show the node, its faults, and what the daemon does about them")
    _watch(status, every_s=2)
    _verbose(status)
    _common(status, json=True, socket=True)


def _controlling(verbs: Any) -> None:
    """The verbs for a whole cluster."""
    controller = verbs.add_parser(
        "controller", help="run the cluster controller (reboots and replaces nodes that lack the AWS permissions)"
    )
    how = controller.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="run one sync, then exit")
    how.add_argument("--status", action="store_true", help="show the last status of the controller that leads")
    _watch(controller, every_s=10)
    _common(controller, json=True)

    uninstall = verbs.add_parser("uninstall", help="stop healthd in a Kubernetes cluster and release every node")
    how = uninstall.add_mutually_exclusive_group()
    how.add_argument("--yes", action="store_true", help="do not ask")
    _dry_run(how, "which nodes would be released")
    _common(uninstall, json=True)


def _overseeing(verbs: Any) -> None:
    """The whole cluster, read only."""
    fleet = verbs.add_parser(
        "fleet", help="show every node of the cluster, grouped by cause (from a head node; needs no daemon)"
    )
    fleet.add_argument(
        "node", nargs="?", default="", metavar="NODE|incidents|history|report",
        help="this node, by the cluster and by itself; causes that many share; the ledger's history or report",
    )  # fmt: skip
    fleet.add_argument("--node", dest="of_node", default="", metavar="NODE", help="history: only of this node")
    fleet.add_argument("--gpu", default="", metavar="SERIAL|UUID", help="history: only of this GPU, in whatever node")
    fleet.add_argument("--code", default="", metavar="CODE", help="history: only of this finding")
    fleet.add_argument(
        "--since", type=_length, metavar="TIME", help="history, report: so far back (report: 30d by default)"
    )
    fleet.add_argument("--markdown", action="store_true", help="report: as markdown")
    fleet.add_argument(
        "--why", action="store_true", help="a line for each node that is out: by whom, why, since when, at which step"
    )
    fleet.add_argument(
        "--state", action="append", default=[], choices=FLEET_STATES, metavar="STATE",
        help=f"only nodes in this state; may be given again ({', '.join(FLEET_STATES)})",
    )  # fmt: skip
    fleet.add_argument("--by", choices=FLEET_KEYS, default="cause", help="group by (default: cause)")
    _watch(fleet, every_s=10)
    _common(fleet, json=True)

    case = verbs.add_parser("case", help="write the text of a support case about a node, from the ledger or the node")
    case.add_argument("node", metavar="NODE")
    case.add_argument("--since", type=_length, metavar="TIME", help="so far back (default: 30d)")
    _common(case, json=True)


def _blaming(verbs: Any) -> None:
    """A job and the blame for its end."""
    job = verbs.add_parser("job", help="say whose fault the end of a job was: a node's, its own, or unknown")
    job.add_argument("job", type=_job_id, metavar="JOBID", help="the number of the job in Slurm")
    job.add_argument(
        "--compare",
        action="store_true",
        help="a running job: rank its nodes and GPUs by how far they are from their peers",
    )
    _common(job, json=True, socket=True)


def _freezing(verbs: Any) -> None:
    """The freeze of a whole cluster."""
    freeze = verbs.add_parser(
        "freeze", help="begin no reset, reboot or replacement in the cluster for a time; without options: show it"
    )
    freeze.add_argument("--for", dest="length", type=_length, metavar="TIME", help="begin it: 30m, 12h, 7d, 2w")
    freeze.add_argument("--end", action="store_true", help="end it now")
    _reason(freeze)
    _dry_run(freeze, "what would change")
    _common(freeze, json=True)


def _telling(verbs: Any) -> None:
    """The daemon's answers to every user."""
    plan = verbs.add_parser(
        "plan", help="show what healthd would do about each fault, by which rule, and what forbids it"
    )
    _verbose(plan)
    _watch(plan, every_s=2)
    _daemons(plan)

    history = verbs.add_parser("history", help="show findings, decisions, steps and commands; newest last")
    history.add_argument(
        "--last",
        type=_count,
        default=100,
        metavar="N",
        help="number of lines (default: 100; at most 1000 for a user who may not act)",
    )
    history.add_argument("--since", type=_length, metavar="TIME", help="only so far back: 30m, 12h, 7d, 2w")
    history.add_argument(
        "--kind", action="append", default=[], choices=EVENT_KINDS, metavar="KIND",
        help=f"only lines of this kind; may be given again ({', '.join(EVENT_KINDS)})",
    )  # fmt: skip
    history.add_argument("--case", default="", metavar="ID", help="only lines of this remediation")
    history.add_argument(
        "-v", "--verbose", action="store_true", help="also the lines of check runs; devices by their own names"
    )
    history.add_argument("--follow", action="store_true", help="go on with each new line, until Ctrl-C")
    history.add_argument("--after", type=_event, default=0, help=argparse.SUPPRESS)  # of --follow: lines after this
    _common(history, json=True, socket=True)


def _ordering(verbs: Any) -> None:
    """The operator's commands to the daemon."""
    relearn = verbs.add_parser("relearn", help="make checks learn this instance again: accept the hardware as it is")
    relearn.add_argument("names", nargs="*", metavar="NAME", help="only of these checks (default: all that learn)")
    _reason(relearn, required=True)
    how = relearn.add_mutually_exclusive_group()
    how.add_argument("--yes", action="store_true", help="do not ask")
    _dry_run(how, "what would be forgotten")
    _daemons(relearn)

    ack = verbs.add_parser("ack", help="acknowledge an open fault: keep the node in service for a time")
    ack.add_argument("fault", metavar="FAULT", help="an open fault: CODE, or CODE@COMPONENT where several have it")
    how_long = ack.add_mutually_exclusive_group(required=True)
    how_long.add_argument("--for", dest="length", type=_length, metavar="TIME", help="how long: 30m, 12h, 7d, 2w")
    how_long.add_argument("--end", action="store_true", help="end it now: the fault counts again")
    _reason(ack, required=True)
    _dry_run(ack, "what would be acknowledged, or count again")
    _daemons(ack)

    quarantine = verbs.add_parser("quarantine", help="take this node out of service until `healthd release`")
    _reason(quarantine, required=True)
    _dry_run(quarantine, "what each step would do")
    _daemons(quarantine)

    release = verbs.add_parser("release", help="verify this node and put it back in service")
    _reason(release)
    release.add_argument(
        "--force", action="store_true", help="release even if faults are open, and acknowledge them; needs --reason"
    )
    _dry_run(release, "what each step would do")
    _daemons(release)

    repair = verbs.add_parser("repair", help="take this node out of service, repair it, verify it and release it")
    repair.add_argument(
        "--step", choices=REPAIR_STEPS, help="this remedy (default: the policy's remedy for the worst fault)"
    )
    _reason(repair)
    how = repair.add_mutually_exclusive_group()
    how.add_argument("--yes", action="store_true", help="do not ask")
    _dry_run(how, "what each step would do, with AWS's own dry run")
    _daemons(repair)


def _approving(verbs: Any) -> None:
    """The operator's answers to a remediation."""
    approve = verbs.add_parser("approve", help='approve an act that waits in mode "approve"; it names the act')
    approve.add_argument("target", metavar="REMEDIATION|NODE", help="the id that `healthd status` shows, or this node")
    approve.add_argument("--step", choices=REPAIR_STEPS, help="the act that waits, as `healthd plan` shows it")
    _reason(approve)
    _dry_run(approve, "what each step would do")
    _daemons(approve)

    undo = verbs.add_parser("undo", help="take a remediation back before its act: request, drain and slot")
    undo.add_argument("target", metavar="REMEDIATION|NODE", help="the id that `healthd status` shows, or this node")
    _reason(undo, required=True)
    _dry_run(undo, "what each step would do")
    _daemons(undo)


def _explaining(verbs: Any) -> None:
    """Facts that need no node."""
    explain = verbs.add_parser("explain", help="show the runbook of a finding code, or explain a text of healthd's")
    explain.add_argument(
        "code", metavar="CODE|XID|TEXT", help="such as gpu.xid.79, 79, a reason, a condition, a reservation's name"
    )
    _common(explain, json=True)

    checks = verbs.add_parser("checks", help="list the checks, their settings and the codes they find")
    _common(checks, json=True)


def _setting_up(verbs: Any) -> None:
    """The setup of a node."""
    config = verbs.add_parser("config", help="show or validate the configuration, or print its JSON Schema")
    config.add_argument("what", choices=("show", "validate", "schema"), metavar="show|validate|schema")
    config.add_argument(
        "--here", action="store_true", help="validate: also try it out, as the daemon does at its start"
    )
    _common(config, json=True)

    init = verbs.add_parser("init", help="write a first configuration for this node; overwrites no file")
    init.add_argument("--output", metavar="FILE", help="write to FILE (default: /etc/healthd/config.toml)")
    init.add_argument("--print", action="store_true", help="print the configuration and write no file")
    init.add_argument(
        "--from-nhc", metavar="FILE", help="take the requirements from an nhc.conf instead of from this node's mounts"
    )
    init.add_argument("--json", action="store_true", help="as JSON")

    doctor = verbs.add_parser("doctor", help="find what is missing on this node and say how to fix it; needs no daemon")
    doctor.add_argument("--cluster", action="store_true", help="check only access to the Kubernetes API server")
    _watch(doctor, every_s=10)
    _common(doctor, json=True, socket=True)


def _deciding(verbs: Any) -> None:
    """The tools for the author of a policy."""
    policy = verbs.add_parser("policy", help="show the rule for each fault, or test a policy")
    policy.add_argument("what", choices=("show", "test"), metavar="show|test")
    policy.add_argument("args", nargs="*", metavar="CODE|FILE", help="for test: finding codes, XIDs, or log files")
    _trying(policy)
    _common(policy, json=True)

    replay = verbs.add_parser("replay", help="run past logs through healthd: findings, decisions and steps")
    replay.add_argument("files", nargs="+", metavar="FILE", help="kernel logs, journals, syslogs, .gz; healthd.db")
    _trying(replay)
    replay.add_argument("--mode", choices=("observe", "quarantine", "repair"), default="repair", help="default: repair")
    replay.add_argument("--nodes", type=int, default=0, metavar="N", help="nodes in the fleet; applies the budget")
    _common(replay, json=True)


def _hooking(verbs: Any) -> None:
    """The hooks of Slurm."""
    hook = verbs.add_parser("hook", help="answer a Slurm hook")
    hooks = ("prolog", "epilog", "health-check-program")
    hook.add_argument("kind", choices=hooks, metavar="|".join(hooks))
    _common(hook, socket=True)


def _drilling(verbs: Any) -> None:
    """The drill."""
    from healthd.drill.chain import KINDS  # no other verb needs the drills

    class Kinds(argparse.Action):
        def __call__(self, *_: object) -> NoReturn:
            raise TextRequested("".join(_played(kind) for kind in KINDS.values()))

    drill = verbs.add_parser("drill", help="play a fault and show what healthd would find, decide and do")
    drill.add_argument("kind", choices=tuple(KINDS), metavar="KIND", help="the fault to play; see --list")
    drill.add_argument("number", nargs="?", type=_number, metavar="NUMBER", help="of xid or sxid (default: 79, 20034)")
    drill.add_argument("--gpu", metavar="GPU", help="the GPU's index or PCI address (default: the first GPU)")
    drill.add_argument("--mount", metavar="PATH", help="the mount point (default: the first network one; /)")
    drill.add_argument("--force", action="store_true", help="play it even if a job runs, or may run, on the node")
    drill.add_argument(
        "--timeout", type=_seconds, metavar="SECONDS", help="how long to wait (default: the longest it may take)"
    )
    drill.add_argument("--notify", action="store_true", help="also send a message that is marked as a drill")
    drill.add_argument("--list", action=Kinds, nargs=0, help="only list the faults that can be played")
    _daemons(drill)


def _showing(verbs: Any) -> None:
    """The demo, for a user without such a node."""
    demo = verbs.add_parser("demo", help="watch healthd repair a fault on a SIMULATED p5.48xlarge")
    demo.add_argument(
        "--fail-provisioner", action="store_true", help="let the reboot fail: the demo must end in failure"
    )
    demo.add_argument("--keep", action="store_true", help="keep the simulated node's folder")
    demo.add_argument("--json", action="store_true", help="the timeline as JSON; the progress goes to standard error")


def _contributing(verbs: Any) -> None:
    """The tools for a checkout of healthd."""
    new = verbs.add_parser("new-check", help="write a new check and its test, in a checkout of healthd")
    new.add_argument("name", metavar="NAME", help="a family and a word, such as host.numa")
    kind = new.add_mutually_exclusive_group()
    kind.add_argument("--proc", dest="kind", action="store_const", const="proc", help="the check reads /proc (default)")
    kind.add_argument(
        "--kernel", dest="kind", action="store_const", const="kernel", help="the check matches lines of the kernel log"
    )
    kind.add_argument(
        "--nvml", dest="kind", action="store_const", const="nvml", help="the check asks NVML about each GPU"
    )
    new.set_defaults(kind="proc")
    _dry_run(new, "which files would be written")
    new.add_argument("--json", action="store_true", help="as JSON")


_GROUPS: Mapping[Callable[[Any], None], tuple[str, ...]] = {
    _looking: ("check", "run", "status"),
    _controlling: ("controller", "uninstall"),
    _overseeing: ("fleet", "case"),
    _blaming: ("job",),
    _freezing: ("freeze",),
    _telling: ("plan", "history"),
    _ordering: ("relearn", "ack", "quarantine", "release", "repair"),
    _approving: ("approve", "undo"),
    _explaining: ("explain", "checks"),
    _setting_up: ("config", "init", "doctor"),
    _deciding: ("policy", "replay"),
    _hooking: ("hook",),
    _drilling: ("drill",),
    _showing: ("demo",),
    _contributing: ("new-check",),
}
"""The parts of the grammar, in the order of the help, each with the verbs that it adds."""


def _with_help(message: str, prog: str) -> str:
    """The message with the command that shows the help."""
    return f"{message} See {prog} --help" if message.endswith("?") else f"{message}; see {prog} --help"


def _nearest(word: str, known: Sequence[str]) -> str:
    """``; did you mean WORD?``, or "" where nothing is near."""
    from healthd.config.values import did_you_mean  # only for a mistyped word

    near = did_you_mean(word, known, "")
    return f"; {near}" if near else ""


def _nearest_option(word: str, known: Sequence[str]) -> str:
    """As ``_nearest``, of the options; of a single letter the only one that begins with it, of a file ``--config``."""
    if not word.startswith("-"):
        return f"; did you mean --config {word}?" if word.endswith(".toml") and "--config" in known else ""
    name = word.partition("=")[0]
    if len(name) == len("-w"):
        begin = [each for each in known if each[2] == name[1].lower()]
        return f"; did you mean {begin[0]}?" if len(begin) == 1 else ""
    return _nearest(name, known)


def _count(text: str) -> int:
    """A number of lines. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= MAX_LINES):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines; expected 1 to {MAX_LINES}")
    return int(text)


def _event(text: str) -> int:
    """The number of an event. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of an event")
    return int(text)


def _seconds(text: str) -> float:
    """The pause between two requests, in seconds. Raises ArgumentTypeError."""
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", text) or not 0.5 <= float(text) <= 3600:
        loose = re.fullmatch(r"([0-9]{1,4}(?:\.[0-9]{1,3})?) ?s[a-z]*", text.lower())
        near = f"; did you mean {loose[1]}?" if loose else ""
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds; expected 0.5 to 3600{near}")
    return float(text)


def _number(text: str) -> int:
    """The number of an XID or an SXid. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of an XID or SXid; expected one such as 79")
    return int(text)


def _length(text: str) -> timedelta:
    """A length of time. Raises ArgumentTypeError."""
    parts = re.fullmatch(_TIME, text)
    length = timedelta(minutes=int(parts[1]) * _MINUTES[parts[2]]) if parts else timedelta()
    if not timedelta() < length <= LONGEST:
        loose = re.fullmatch(r"([0-9]{1,6}) ?([mhdw])[a-z]*", text.lower())
        near = f"; did you mean {loose[1]}{loose[2]}?" if loose and not parts else ""
        expected = f"expected a number and m, h, d or w, such as 12h or 7d, up to {LONGEST.days}d"
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid length of time; {expected}{near}")
    return length


def _job_id(text: str) -> str:
    """The number of a job, of an array ``12_3``, of a heterogeneous one ``12+1``. Raises ArgumentTypeError."""
    if not re.fullmatch(_JOB_ID, text):
        expected = "expected one such as 4711, 4711_3 or 4711+1"
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a job; {expected}")
    return text


def _text(text: str) -> str:
    """A reason, on one line. Raises ArgumentTypeError for an empty one."""
    message = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    if not message:
        raise argparse.ArgumentTypeError(f"{text!r} is empty; expected the reason, for the audit trail")
    return message


def _played(kind: DrillFault) -> str:
    """A fault that can be played, in three lines."""
    options = f" [{kind.number}]" if kind.number is not None else ""
    options += f" [--{kind.on} {kind.on.upper()}]" if kind.on else ""
    return f"{kind.name}{options}\n  {kind.title}; {kind.check} must find it\n  {kind.enters}\n"


def _daemons(parser: argparse.ArgumentParser) -> None:
    """A verb that only the daemon answers, by ``healthd.cli.daemon_verbs``: it reads no configuration."""
    parser.set_defaults(module="daemon_verbs")
    parser.add_argument("--json", action="store_true", help="as JSON")
    _socket(parser)


def _socket(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--socket", metavar="PATH", help="the daemon's socket (default: $HEALTHD_SOCKET)")


def _reason(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """The operator's reason, for the audit trail: one line, and never empty."""
    parser.add_argument(
        "--reason", type=_text, required=required, metavar="TEXT", help="the reason, for the audit trail"
    )


def _dry_run(parser: argparse._ActionsContainer, what: str) -> None:
    """``what``: the part of the help that follows "only show"."""
    parser.add_argument("--dry-run", action="store_true", help=f"only show {what}")


def _trying(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", metavar="NAME|FILE", default="", help="use this policy, not the configured one")
    parser.add_argument("--instance-type", metavar="TYPE", default="", help="act as if on this EC2 instance type")


def _verbose(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="each finding by itself, with its UUID; each check"
    )


def _watch(parser: argparse.ArgumentParser, *, every_s: float) -> None:
    parser.add_argument("--watch", action="store_true", help="refresh the output, until Ctrl-C")
    parser.add_argument(
        "--every", type=_seconds, default=every_s, metavar="SECONDS",
        help=f"with --watch: how often to ask (default: {every_s:g})",
    )  # fmt: skip


def _common(parser: argparse.ArgumentParser, *, json: bool = False, socket: bool = False) -> None:
    parser.add_argument("--config", metavar="FILE", help="read only this configuration, not /etc/healthd")
    if json:
        parser.add_argument("--json", action="store_true", help="as JSON")
    if socket:
        _socket(parser)
