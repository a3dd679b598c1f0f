"""The operator's rules that hold on this node now: as configured, by the job on it, by the version of its driver."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from healthd.agent.freezes import freezes_on
from healthd.config.job_match import ModeByJob, mode_by_job
from healthd.config.match import Match
from healthd.config.schema.config import ApproveSection, Config, PolicySection
from healthd.core.errors import BackendError
from healthd.core.model import Mode, Remedy, RunningJob
from healthd.judge.history import Fault, FaultKey
from healthd.remediation.decide.ledger import Bounds
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.rules import STEPS, Policy, by_label

_MINUTES = {"m": 1, "h": 60, "d": 1440, "w": 10_080}
_AGE_S = 10.0
"""How old a reading may be: a fault is decided about within seconds, and slurmctld is not asked at each step."""


def rules_of(config: Config, policy: Policy, opt_out: tuple[str, str], now: datetime | None = None) -> Rules:
    """The operator's rules for this node, as configured; each call checks for the opt-out file. ``opt_out``: the
    feature of the node by which an operator opts it out, and the cluster's word for such a feature. ``now``: of the
    freezes that are on; None for the machine's clock."""
    remediation, (feature, called) = config.remediation, opt_out
    file = remediation.opt_out_file
    by_file = f"{file} exists" if file and os.path.exists(file) else ""
    return Rules(
        mode=remediation.mode,
        max_out=config.budget.max_out,
        replacements_per_hour=config.budget.replacements_per_hour,
        replacements_per_day=config.budget.replacements_per_day,
        opted_out=by_file or by_label(config.node.labels, remediation.opt_out_label),
        opt_out_feature=feature,
        feature_is=called,
        adopt_automatic=config.orchestrator.slurm.adopt_automatic_drains,
        approvals=approvals_of(remediation.approve),
        freezes=freezes_on(remediation.freeze, now or datetime.now(UTC)) if remediation.freeze else (),
        policy=policy,
        bounds=bounds_of(config.policy),
    )


def approvals_of(section: ApproveSection) -> dict[Remedy, timedelta | None]:
    """After which time without an answer each remedy goes ahead: see Rules."""
    return {remedy: _without_answer(getattr(section, remedy)) for remedy in STEPS}


def _without_answer(setting: str) -> timedelta | None:
    if setting == "ask":
        return None
    after = setting.removeprefix("go").removeprefix(" after ")
    return timedelta(minutes=int(after[:-1]) * _MINUTES[after[-1]]) if after else timedelta()


def bounds_of(section: PolicySection) -> Bounds:
    """The limits of a configuration: each is the setting of its name."""
    return Bounds(**{name: getattr(section, name) for name in Bounds.__struct_fields__})


class JobsHere:
    """The mode of a node by the job that is on it. ``read``, which raises BackendError, is called while a fault is
    open, and its answer counts for some seconds of ``monotonic_s``."""

    def __init__(
        self, matches: Sequence[Match], read: Callable[[], Sequence[RunningJob]], monotonic_s: Callable[[], float]
    ) -> None:
        self._matches, self._read, self._monotonic_s = matches, read, monotonic_s
        self._jobs: Sequence[RunningJob] | str = ()
        self._read_at: float | None = None
        self._lock = threading.Lock()

    def mode(self, base: Mode, *, is_calling: bool) -> ModeByJob:
        """The mode now. ``is_calling``: a fault is open; else nothing is read, and no job has a part in it."""
        if not (self._matches and is_calling):
            return ModeByJob(mode=base)
        return mode_by_job(self._matches, base, self._now())

    def _now(self) -> Sequence[RunningJob] | str:
        with self._lock:
            now_s = self._monotonic_s()
            if self._read_at is None or now_s - self._read_at >= _AGE_S:
                try:
                    self._jobs = tuple(self._read())
                except BackendError as error:
                    self._jobs = f"the job on this node is not known ({error})"
                self._read_at = now_s
            return self._jobs


class DriverAtFault:
    """The driver's version for the revision of a decision: what ``read`` gave when a fault opened last, not at each
    reconcile; "" without a driver, which is read again for as long as a fault is open."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read, self._version = read, ""
        self._seen: Mapping[FaultKey, Fault] | None = None

    def __call__(self, faults: Mapping[FaultKey, Fault]) -> str:
        """The version now. ``faults``: those that are open."""
        if self._has_opened(faults) or (faults and not self._version):
            self._version = self._read()
        self._seen = faults
        return self._version

    def _has_opened(self, faults: Mapping[FaultKey, Fault]) -> bool:
        if faults is self._seen:  # nothing was folded in since
            return False
        return self._seen is None or not faults.keys() <= self._seen.keys()
