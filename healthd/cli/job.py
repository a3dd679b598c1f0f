"""``healthd job``: whose fault the end of a job was, by what its nodes wrote. It changes nothing.

slurmctld has the sentences of all nodes in the job's AdminComment, and their summaries; the daemon of this node, where
one runs, has its own verdict with the evidence, and the ledger of a head node the one for all nodes: both also of a job
that slurmctld has forgotten.
"""

from __future__ import annotations

import json
import os
import socket
from argparse import Namespace
from collections import ChainMap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from healthd.agent.node_facts import runs_slurm
from healthd.api.client import ask
from healthd.api.wire import Reply, Request
from healthd.cli.output import talk
from healthd.cli.settings import loaded, socket_path
from healthd.config.schema.config import Config
from healthd.core.errors import BackendError, HealthdError, StoreError
from healthd.core.hostlist import unfolded
from healthd.core.json_documents import json_document, json_fields
from healthd.fleet.nodes import FleetNode
from healthd.job.blame import Blame
from healthd.job.held import release_words
from healthd.job.text import advice, verdict_of
from healthd.judge.devices import DeviceNames
from healthd.ledger.database import kept_ledger
from healthd.ledger.entries import LedgerJob
from healthd.observe.text_lines import TextLine, joined
from healthd.remediation.orchestrators.slurm.job_comments import SlurmJob, read_job
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from healthd.remediation.records.job_summaries import run_word

SCHEMA = "healthd.job/v1"
EXIT_CODE: Mapping[Blame, int] = {Blame.NONE: 0, Blame.JOB: 0, Blame.NODE: 1, Blame.UNKNOWN: 2}
_NO_FAULT = frozenset({"COMPLETED", "PREEMPTED", "CANCELLED"})
"""States of a job of which no node wrote anything: its end is no failure."""
_SHOWN = 16
"""Nodes with a line of their own, where all have nothing to say."""
_OF_AN_END = ("at", "run", "nodes", "state", "ending", "verdict", "sentence", "code")
"""The fields of the ledger's end of a job that ``--json`` has."""


def answer(options: Namespace) -> Reply:
    """Exit 0: no node is to blame; 1: one is; 2: it is not known. With ``--compare`` as of that."""
    config = loaded(options, names=()).config
    if options.compare:
        from healthd.cli.job_compare import answer as compared

        return compared(options, config)
    job, nodes, problem = _of_slurm(options.job, config)
    number = job.id if job is not None else options.job  # of 4711_3, by which nodes and controllers know the task
    own, names = _own(options, number)
    ends = _of_ledger(number, config)
    data = job_data(options.job, job, own, nodes, problem=problem if job is None and not ends else "", ends=ends)
    code = EXIT_CODE[Blame(data["verdict"])]
    if options.json:
        return Reply(code=code, out=json_document(data))
    return Reply(code=code, out=job_text(data, names), err=f"healthd: {problem}\n" if problem else "")


def _own(options: Namespace, job: str) -> tuple[Sequence[Mapping[str, Any]], DeviceNames]:
    """The verdicts of this node's daemon, oldest first, and its names of devices; none where no daemon answers."""
    try:
        reply = ask(socket_path(options), Request(arguments=("job", job, "--json")), talk)
    except HealthdError:
        return (), DeviceNames()  # a head node, or a user who may not ask: what slurmctld has is the answer
    if reply is None or reply.code:
        return (), DeviceNames()
    found = json.loads(reply.out)
    return found["verdicts"], DeviceNames(found.get("names", {}))


def _of_slurm(job: str, config: Config) -> tuple[SlurmJob | None, Sequence[FleetNode], str]:
    """The job and its nodes as slurmctld has them, and why not."""
    if not runs_slurm(config, os.environ):
        return None, (), "no Slurm is found here; set [orchestrator.slurm] conf"
    host = socket.gethostname().partition(".")[0]
    try:
        slurm = SlurmOrchestrator.of(config, host)
        found = read_job(slurm, job)
    except BackendError as error:
        return None, (), f"slurmctld does not tell of job {job}; it forgets a job after MinJobAge: {error}"
    try:
        from healthd.fleet.slurm import read_fleet

        names = set(unfolded(found.nodes))
        fleet = read_fleet(config, host, lambda: datetime.now(UTC))
        return found, [each for each in fleet.nodes if each.name in names], ""
    except BackendError as error:
        return found, (), f"the nodes of job {job} could not be read: {error}"


def _of_ledger(job: str, config: Config) -> Sequence[LedgerJob]:
    """The ends of the job in the ledger of this head node; none where there is none, or it may not be read."""
    try:
        with kept_ledger(config.controller.state_dir) as ledger:
            return ledger.job_ends(job)
    except StoreError:
        return ()  # as on a node: what slurmctld and the daemon have is the answer


def job_data(
    name: str,
    job: SlurmJob | None,
    own: Sequence[Mapping[str, Any]],
    nodes: Sequence[FleetNode],
    *,
    problem: str,
    ends: Sequence[LedgerJob] = (),
) -> dict[str, Any]:
    """All that is known, as ``--json`` prints it. The verdict is that of the job's last end. ``ends``: in the fleet's
    ledger, the first first."""
    run = job.restarts if job is not None and job.has_finished else 0
    end = next((each for each in reversed(ends) if each.run >= run), None)
    here = next((each for each in reversed(own) if each["restarts"] >= run), None)
    said = job.said if job is not None and not run else ()  # slurmctld takes no sentence about a run that has finished
    verdict = Blame.NODE if _is_named(job, nodes) else _verdict(job, said, here, end)
    known: ChainMap[str, Any] = ChainMap(_known_by_slurm(job), dict(here or {}), _known_by_ledger(end))
    return {
        "schema": SCHEMA,
        "job": name,
        "user": known.get("user", ""),
        "state": job.state if job is not None else "",
        "reason": job.reason if job is not None else "",
        "held": job is not None and job.held,
        "nodes": known.get("nodes", ""),
        "restarts": known.get("restarts", 0),
        "ending": known.get("ending", ""),
        "verdict": (verdict or Blame.UNKNOWN).value,
        "said": list(job.said) if job is not None else [],
        "by_node": [
            {
                "node": each.name,
                "state": each.state.value,
                "code": each.summary.code if each.summary is not None else "",
                "component": each.summary.component if each.summary is not None else "",
                "reason": each.listed.hold.shown if each.listed.hold is not None else "",
            }
            for each in nodes
        ],
        "here": list(own),
        "ledger": [json_fields(each, *_OF_AN_END) for each in ends],
        "advice": _advice(job, verdict, (*said[-1:], *((end.sentence,) if end is not None else ())))
        if job is not None or own or ends
        else f"read the job's own output; where slurmdbd runs, `sacct -j {name}` has how it ended",
        "problem": problem,
    }


def _known_by_slurm(job: SlurmJob | None) -> dict[str, Any]:
    """A job that it has forgotten in part has empty fields."""
    if job is None:
        return {}
    fields = {"user": job.user, "nodes": job.nodes}
    return {name: value for name, value in fields.items() if value} | {"restarts": job.restarts}


def _known_by_ledger(end: LedgerJob | None) -> dict[str, Any]:
    if end is None:
        return {}
    return {"user": end.user, "nodes": end.nodes, "restarts": end.run, "ending": end.ending}


def _is_named(job: SlurmJob | None, nodes: Sequence[FleetNode]) -> bool:
    """Whether a node reports that its own fault ended the job's last run that is over."""
    if job is None:
        return False
    run = run_word(job.id, job.restarts - (not job.has_finished))
    return any(each.summary is not None and each.summary.job == run for each in nodes)


def _verdict(
    job: SlurmJob | None, said: Sequence[str], own: Mapping[str, Any] | None, end: LedgerJob | None
) -> Blame | None:
    verdict = Blame(end.verdict) if end is not None else verdict_of(said)
    here = Blame(own["verdict"]) if own is not None else None
    if own is not None and here is Blame.JOB and sum(1 for _ in unfolded(own["nodes"])) > 1:
        here = Blame.UNKNOWN  # it saw no fault of its own: the others have not been heard
    if verdict is None or here is Blame.NODE:  # this node may know more than the sentence for all of them
        verdict = here or verdict
    return Blame.NONE if verdict is None and _state(job) in _NO_FAULT else verdict


def _state(job: SlurmJob | None) -> str:
    """How Slurm calls it; 22.05 calls a preempted one FAILED that ended in its grace."""
    if job is None:
        return ""
    return "PREEMPTED" if job.preempted and job.has_finished else job.state


def _advice(job: SlurmJob | None, verdict: Blame | None, sentences: Sequence[str]) -> str:
    runs_again = job is not None and job.restarts > 0 and not job.has_finished
    return advice(
        verdict,
        requeued=runs_again or any(each.endswith("; requeued") for each in sentences),
        release=release_words(job.acts_by or job.id, job.reason) if job is not None and job.held else "",
        state=_state(job),
        goes_on=job is not None and not job.has_finished,
    )


def job_text(data: Mapping[str, Any], names: DeviceNames) -> str:
    """The same as text. ``names``: of this node's devices."""
    of = f" of {data['user']}" if data["user"] else ""
    where = f" on {data['nodes']}" if data["nodes"] else ""
    why = f"{', held' if data['held'] else ''} ({data['reason']})" if data["reason"] else ""
    lines = [f"job       {data['job']}{of}: {data['state'] or 'not known here'}{why}{where}"]
    if data["restarts"]:
        lines.append(f"restarts  {data['restarts']}")
    lines.append(f"verdict   {data['verdict']}")
    lines += [f"said      {each}" for each in data["said"]]
    lines += [
        f"ledger    {each['at']}  {each['state']}, {each['ending']}: {each['verdict']}: {each['sentence']}"
        for each in data["ledger"]
    ]
    for each in data["here"]:
        lines.append(f"here      {each['end'] or 'end not known'}  {each['ending']}: {each['verdict']}: {each['why']}")
        lines += [f"          {seen['at']}  {seen['code']} {names.of(seen['component'])}" for seen in each["evidence"]]
    reported = [each for each in data["by_node"] if each["code"] or each["reason"]]
    for each in reported or data["by_node"][:_SHOWN]:
        words = (each["state"], each["code"], each["component"], each["reason"] and f"({each['reason']})")
        lines.append(f"node      {each['node']}  {' '.join(filter(None, words))}")
    lines.append(f"next      {data['advice']}")
    return joined(map(TextLine, lines))
