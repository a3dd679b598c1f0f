"""The answers to ``check``, ``status`` and ``hook`` from an agent: the same in the daemon and without one.

They only render, but for the prolog, which runs the engine before it answers.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from healthd.api.wire import Receipt, Reply
from healthd.config.values import did_you_mean
from healthd.core.check import declared_by, unknown
from healthd.core.errors import BackendError, StoreError, UsageError
from healthd.core.json_documents import json_document
from healthd.core.model import Clearance, ClearsBy, Event, Mode, Outcome, Verdict
from healthd.observe.report import EXIT_CODE, Report, as_brief, as_json, as_text
from healthd.state.monitor import has_live_job

if TYPE_CHECKING:
    from healthd.agent.agent import Agent
    from healthd.api.plan_cache import PlanCache
    from healthd.job.blame import JobVerdict
    from healthd.job.job import Job

CHECK_DEADLINE_S = 20.0
_PROLOG_DEADLINE_S = 5.0
_RECONCILE_WAIT_S = 4.0

Tick = Callable[[str], None]


def _silent(_: str) -> None:
    pass


def check_answer(
    agent: Agent,
    options: Namespace,
    environ: Mapping[str, str],
    tick: Tick = _silent,
    note: Callable[[Event], None] | None = None,
) -> Reply:
    """The verdict of all or some checks. Exit 0 usable, 1 critical, 2 unknown. Raises UsageError for a wrong name.

    ``tick`` gets the progress of active tests. ``note`` records the verdict that a script got; None: the audit trail.
    """
    if options.brief and options.json:
        raise UsageError("healthd check: --brief and --json exclude each other; give one of them")
    names = _known(options.names, agent, active=is_active(options))
    ran = _active_outcomes(agent, names, environ, tick) if is_active(options) else {}
    report = agent.checkup.report(names, deadline_s=CHECK_DEADLINE_S, active=ran)
    if options.context != "manual":  # a script decides by this answer: the audit trail shows it
        text = f"{options.context} asked for the verdict: {report.verdict}"
        (note or agent.monitor.record)(Event(at=report.generated_at, kind="check", text=text))
    return Reply(code=EXIT_CODE[report.verdict], out=_as_asked(report, agent, options))


def _as_asked(report: Report, agent: Agent, options: Namespace) -> str:
    if options.json:
        return as_json(report)
    return (
        as_brief(report)
        if options.brief
        else as_text(report, mode=agent.mode, verbose=options.verbose, colour=options.colour)
    )


def is_active(options: Namespace) -> bool:
    """Whether active tests are requested: by the option, or because the node has just booted."""
    return bool(options.active) or options.context == "boot"


def _active_outcomes(
    agent: Agent, names: Sequence[str], environ: Mapping[str, str], tick: Tick
) -> Mapping[str, Outcome]:
    """Run the active checks among these, or all. On a node that is not idle none starts, and each is unknown."""
    from healthd.observe.idle import not_idle  # loads the PCI bus; nearly every check is without active tests

    wanted = [name for name in names or agent.checkup.checks if agent.checkup.checks[name].on == "active"]
    busy = not_idle(agent.machine, agent.orchestrator, own_job=environ.get("SLURM_JOB_ID", ""))
    if busy is None:
        return agent.checkup.run_active(wanted, tick)
    now = datetime.now(UTC)
    tick(f"active tests do not run: {busy.why}")
    result = unknown(f"not run: {busy.why}", busy.do)
    return {name: Outcome(check=name, result=result, at=now, duration_s=0.0) for name in wanted}


def status_answer(agent: Agent, board: PlanCache, options: Namespace) -> Reply:
    """The status: findings, decisions and steps of the daemon. Exit 0: it answered."""
    from healthd.api.status import status_data, status_text  # loads the plan, and with it remediation

    data = status_data(agent, board)
    if options.json:
        return Reply(code=0, out=json_document(data))
    return Reply(code=0, out=status_text(data, verbose=options.verbose, colour=options.colour))


def history_answer(agent: Agent, options: Namespace, *, most: int | None = None) -> Reply:
    """The timeline of the audit trail, ``most`` lines of it at most. Exit 0: it answered. Raises StoreError, UsageError
    for a remediation that never was."""
    from healthd.api.timeline import asked_of, trail_data, trail_text, wanted  # loads SQLite

    if agent.store is None:
        raise StoreError("this agent only observes and keeps no history; start the daemon: `healthd run`")
    last = options.last if most is None else min(options.last, most)
    trail = asked_of(agent.store, wanted(options, datetime.now(UTC)), last=last)
    trail = replace(trail, names=agent.monitor.device_names())
    if last < options.last and len(trail.events) == last:
        cut = f"the newest {last} lines, the most for a user who may not act; be root to see older ones"
        trail = replace(trail, cut=cut)
    data = {"node": agent.machine.name, **trail_data(trail)}
    shown = json_document(data) if options.json else trail_text(data, verbose=options.verbose, colour=options.colour)
    return Reply(code=0, out=shown)


def job_answer(agent: Agent, options: Namespace) -> Reply:
    """This node's own verdicts on a job, oldest first, and the names of its devices, as JSON: ``healthd job`` completes
    them. Raises StoreError."""
    if agent.store is None:
        raise StoreError("this agent only observes and keeps no history; start the daemon: `healthd run`")

    found = [event.data for event in agent.store.events_of_job(options.job)]
    names = dict(agent.monitor.device_names().names)
    return Reply(code=0, out=json.dumps({"verdicts": found, "names": names}) + "\n")


class HookReply(Struct, frozen=True, kw_only=True):
    """A hook's answer, and the record of it for ``hook_ended``, once it is known whether the hook read the answer.

    ``drain``: the reason of our drain, for which a prolog refuses the job, or an epilog blames the node; "" where it
    passes. ``passed``: why a job passes on a node that is not healthy, or that is to blame for its end.
    """

    answer: Reply
    kind: str
    verdict: Verdict
    job: str
    drain: str = ""
    passed: str = ""

    @property
    def refuses(self) -> bool:
        """Whether the answer refuses the job, or blames the node. A hook that does not read it lets the job pass."""
        return bool(self.drain)


def hook_answer(agent: Agent, options: Namespace, environ: Mapping[str, str]) -> HookReply:
    """Answer a Slurm hook. The prolog may refuse, and the epilog may blame the node: both only while our drain is in
    place."""
    if options.kind == "epilog":
        return _epilog_answer(agent, environ)
    if options.kind == "prolog" and agent.job_verdicts is not None:
        agent.job_verdicts.begins(environ.get("SLURM_JOB_ID") or "unknown", datetime.now(UTC))
    report = agent.checkup.report(deadline_s=_PROLOG_DEADLINE_S)
    drain, reason_against = _our_drain(agent, report) if options.kind == "prolog" else ("", "")
    job = environ.get("SLURM_JOB_ID") or "?"
    reply = HookReply(answer=Reply(code=0), kind=options.kind, verdict=report.verdict, job=job)
    if report.verdict in (Verdict.OK, Verdict.WARNING):
        return reply
    if options.kind != "prolog":  # the audit trail has the findings; a line per job and minute adds nothing
        return replace(reply, answer=Reply(code=0, err=f"healthd: {options.kind}: verdict {report.verdict}\n"))
    if drain:
        from healthd.job.text import refusal  # loads the table of XIDs

        message = f"healthd: {refusal(agent.machine.name, job, agent.monitor.device_names().plain(drain))}"
        return replace(reply, answer=Reply(code=1, out=f"print {message}\n", err=f"{message}\n"), drain=drain)
    passed = f"prolog let job {job} pass: verdict {report.verdict}{reason_against}"
    return replace(reply, answer=Reply(code=0, err=f"healthd: {passed}\n"), passed=passed)


def _epilog_answer(agent: Agent, environ: Mapping[str, str]) -> HookReply:
    """Judge the job that has ended, write that down, and decide whether the Epilog blames this node to Slurm.

    Only where slurmctld asks its Epilogs, for a critical fault, behind our drain that was read back, and within the
    limit of an hour. Never for an unknown, and never for an error of ours.
    """
    now, job_id = datetime.now(UTC), environ.get("SLURM_JOB_ID") or "?"
    _job_has_ended(agent, environ.get("SLURM_JOB_ID") or "unknown")
    report = agent.checkup.report(deadline_s=_PROLOG_DEADLINE_S)
    is_fine = report.verdict in (Verdict.OK, Verdict.WARNING)
    err = "" if is_fine else f"healthd: epilog: verdict {report.verdict}\n"
    reply = HookReply(answer=Reply(code=0, err=err), kind="epilog", verdict=report.verdict, job=job_id)
    if agent.job_verdicts is None or agent.job_verdicts.was_refused(job_id):
        return reply
    outcomes = [view.outcome for view in report.checks]
    job, verdict = agent.job_verdicts.judge(environ, outcomes, now)
    from healthd.job.blame import Blame  # loads the table of XIDs

    if verdict.blame is not Blame.NODE:
        agent.job_verdicts.keep(job, verdict, blamed=False, now=now)
        return reply
    drain, against = _blaming(agent, report, job, verdict)
    agent.job_verdicts.keep(job, verdict, blamed=bool(drain), now=now)
    if not drain:
        return replace(reply, passed=f"epilog of job {job_id} does not blame this node to Slurm: {against}")
    reason = agent.monitor.device_names().plain(drain)
    message = f"healthd: node {agent.machine.name} is to blame for the end of job {job_id}: {reason}"
    return replace(reply, answer=Reply(code=1, out=f"blame {message}\n", err=f"{message}\n"), drain=drain)


def _blaming(agent: Agent, report: Report, job: Job, verdict: JobVerdict) -> tuple[str, str]:
    """(the reason text of our drain, behind which this node is blamed; else why it is not)."""
    assert agent.job_verdicts is not None  # noqa: S101 - it has judged
    if job.stop is not None:
        return "", f"the job was {job.stop}"
    if not verdict.is_critical:
        return "", "its fault is not critical"
    if against := agent.job_verdicts.reason_against_blame():
        return "", against
    drain, reason_against = _our_drain(agent, report)
    if not drain:
        return "", reason_against.removeprefix(", but ") or "healthd has not drained the node"
    return (drain, "") if not (over := agent.job_verdicts.over_limit()) else ("", over)


def hook_ended(agent: Agent, reply: HookReply, receipt: Receipt = Receipt.TAKEN) -> str:
    """Record and count the hook's answer, and return the record. An answer that was read too late refuses nothing."""
    refused = reply.refuses and receipt is not Receipt.GONE
    if reply.kind == "prolog" and agent.job_verdicts is not None:
        agent.job_verdicts.prolog_ended(reply.job, refused=refused)
    word = "blamed" if reply.kind == "epilog" else "refused"
    agent.hooks[reply.kind, reply.verdict, word if refused else "passed"] += 1
    text = _refusal(reply, receipt) if reply.refuses else reply.passed
    if text:
        agent.monitor.record(Event(at=datetime.now(UTC), kind="hook", text=text))
    return text


def _refusal(reply: HookReply, receipt: Receipt) -> str:
    if reply.kind == "epilog":
        return _blamed(reply, receipt)
    match receipt:
        case Receipt.TAKEN:
            return f"prolog refused job {reply.job}: {reply.drain}"
        case Receipt.GONE:
            return f"prolog let job {reply.job} pass: its hook ended before the refusal: {reply.drain}"
        case Receipt.UNKNOWN:
            return f"prolog refused job {reply.job}, which may pass: its hook has not read the refusal: {reply.drain}"


def _blamed(reply: HookReply, receipt: Receipt) -> str:
    match receipt:
        case Receipt.TAKEN:
            return f"epilog of job {reply.job} blames this node to Slurm: {reply.drain}"
        case Receipt.GONE:
            return f"epilog of job {reply.job} blames no node: its hook ended before the answer: {reply.drain}"
        case Receipt.UNKNOWN:
            return f"epilog of job {reply.job} may blame this node: its hook has not read the answer: {reply.drain}"


def _our_drain(agent: Agent, report: Report) -> tuple[str, str]:
    """(the reason text of our drain, read back just now, after a drain if one is needed; else why there is none).

    A refusal without our drain would make Slurm drain the node itself, as "Prolog error".
    """
    if report.verdict is not Verdict.CRITICAL:
        return "", ""
    if agent.mode is Mode.OBSERVE or agent.engine is None or agent.orchestrator is None:
        return "", ", but observe mode refuses no job"
    message = agent.engine.reconcile(datetime.now(UTC), wait_s=_RECONCILE_WAIT_S, hurry=True)
    try:
        remediation = agent.engine.holds_node()
        hold = agent.orchestrator.view().hold
        if (
            remediation is not None
            and remediation.hold is not None
            and hold is not None
            and hold.is_still(remediation.hold)
        ):
            return remediation.text, ""
    except (StoreError, BackendError) as error:
        message = str(error)
    return "", f", but healthd has not drained the node: {message}"


def _job_has_ended(agent: Agent, job: str) -> None:
    """End the faults of jobs whose processes are gone. A fault without a process ends once no other job's process
    runs."""
    now = datetime.now(UTC)
    agent.housekeeping(now)
    if not has_live_job(agent.monitor.history, lambda pid: agent.machine.proc.exists(str(pid))):
        agent.monitor.clear(Clearance(by=ClearsBy.JOB_END, note=f"job {job} has ended"), now)


def _known(names: Sequence[str], agent: Agent, *, active: bool) -> Sequence[str]:
    for name in names:
        check = agent.checkup.checks.get(name)
        if check is not None and check.on == "active" and not active:
            raise UsageError(f"healthd check: {name} puts load on the GPUs of an idle node; add --active to run it")
        if name not in agent.checkup.checks:
            hint = did_you_mean(name, agent.checkup.checks, "see `healthd checks`")
            if (found := declared_by(name, agent.checkup.checks.values())) is not None:  # what was read last was a code
                hint = f"{found[0].name} finds this code: `healthd check {found[0].name}`"
            raise UsageError(f"healthd check: no check is named {name!r}, or it is not enabled; {hint}")
    return names
