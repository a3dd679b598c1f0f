"""The probes of ``healthd doctor`` beyond the machine: slurmctld and AWS. Kubernetes has a module of its own.

Each uses the code that would act, and changes nothing: AWS by its own dry run, where it has one. Without an answer the
result is unknown, not missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial

from healthd.agent.node_facts import runs_slurm
from healthd.agent.wiring import open_orchestrator, provisioner_of
from healthd.config.schema.config import Config
from healthd.core.errors import (
    BackendBusy,
    BackendDenied,
    BackendError,
    BackendRefused,
    BackendUnknown,
    ConfigError,
    SourceError,
)
from healthd.core.model import Remedy
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator, detect
from healthd.remediation.ports import Orchestrator
from healthd.setup.doctor import DoctorResult
from healthd.setup.kubernetes_probes import kubernetes_probes, state_of
from healthd.setup.machine_probes import DoctorProbe, with_machine
from healthd.sources.machine import Machine

_REMEDIES = (Remedy.REBOOT_NODE, Remedy.REPLACE_NODE)


def remote_probes(config: Config, environ: Mapping[str, str]) -> Mapping[str, DoctorProbe]:
    """The probes by name."""

    return {
        "slurmctld": with_machine(config, partial(_slurm, environ)),
        **kubernetes_probes(config, environ),
        "repair": with_machine(config, partial(_repair, environ)),
    }


def _slurm(environ: Mapping[str, str], config: Config, machine: Machine) -> DoctorResult:
    about, slurm = "slurmctld", config.orchestrator.slurm
    if not runs_slurm(config, environ):
        why = detect(environ=environ, bin_dir=slurm.bin_dir)[1]
        if "cannot be used" in why:  # its configuration is here, and scontrol is not
            fix = "install slurm-client, or set [orchestrator.slurm] bin_dir"
            return DoctorResult.missing(about, why, fix)
        return DoctorResult.unneeded(about, why)
    try:
        asked = open_orchestrator(config, machine, environ)
        asked.view()  # first by sinfo alone: squeue's error does not name an unknown node
        view = asked.view(jobs=True)  # with squeue and scontrol: every client that healthd needs
    except ConfigError as error:
        return DoctorResult.missing(about, str(error), "correct [node] name")
    except BackendUnknown as error:
        fix = "check slurmctld with `scontrol ping`, munged on both sides, and [orchestrator.slurm] bin_dir and conf"
        return DoctorResult.not_reported(about, str(error), fix)
    except BackendRefused as error:
        fix = "set [node] name to the NodeName of slurm.conf"
        return DoctorResult.missing(about, str(error), fix)
    else:
        why = f"slurmctld answers{_version(asked)}; {machine.name} is {state_of(view)}"
        return DoctorResult.ok(about, why)


def _version(asked: Orchestrator) -> str:
    if not isinstance(asked, SlurmOrchestrator):
        return ""
    with suppress(BackendError):
        return f" ({asked.scontrol('--version').strip()})"
    return ""


def _repair(environ: Mapping[str, str], config: Config, machine: Machine) -> Iterator[DoctorResult]:
    """Each remedy of the configured provisioner, by a dry run where the platform has one."""
    about, kind = "repair", config.provisioner.kind
    if kind == "none":
        yield DoctorResult.unneeded(about, '[provisioner] kind = "none": healthd reboots and replaces nothing')
        return
    try:
        provisioner = provisioner_of(config, machine, open_orchestrator(config, machine, environ))
    except ConfigError as error:
        yield DoctorResult.missing(about, str(error), "correct [provisioner]")
        return
    stands_down = cache(provisioner.stands_down)  # the same for each remedy, and a call to AWS
    for remedy in _REMEDIES:
        dry_run, why = partial(provisioner.dry_run, remedy), provisioner.reason_against(remedy)
        yield tried(f"repair: {remedy}", dry_run, why, stands_down)


def tried(
    about: str, dry_run: Callable[[], str], reason_against: str, stands_down: Callable[[], str] = str
) -> DoctorResult:
    """One remedy by its dry run; ``reason_against``: why this machine cannot execute it, or "". ``stands_down`` is read
    before each act, and so finds a wrong kind or role also where the platform has no dry run."""
    if reason_against:
        fix = "healthd pages for a fault that needs it; to change that, see [provisioner]"
        return DoctorResult.missing(about, reason_against, fix, optional=True)
    try:
        would = dry_run()
        if why := stands_down():
            fix = "healthd requests nothing while that holds: check [provisioner], and the policies of packaging/iam"
            return DoctorResult.not_reported(about, why, fix)
        return DoctorResult.ok(about, would)
    except BackendDenied as error:
        return DoctorResult.missing(about, str(error), "attach the policy of packaging/iam")
    except (BackendBusy, BackendUnknown, SourceError) as error:  # before refusals: *not now* says nothing about rights
        fix = "check the network to AWS (a VPC endpoint, a proxy) and the credentials of this machine"
        return DoctorResult.not_reported(about, str(error), fix)
    except BackendRefused as error:
        return DoctorResult.missing(about, str(error), "see docs/reference/aws-calls.md")
