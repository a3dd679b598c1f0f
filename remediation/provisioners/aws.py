"""AWS as the provisioners see it: one call, one child process, one deadline, and errors in healthd's own words.

It must not retry (the child does, where that is safe) and must not interpret an answer.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, Protocol

from healthd.core.errors import (
    BackendBusy,
    BackendDenied,
    BackendError,
    BackendRefused,
    BackendUnknown,
    SourceError,
    SourceTimeout,
)
from healthd.core.node import CommandResult
from healthd.remediation.provisioners.aws_calls import IamScope, find_call
from healthd.remediation.provisioners.aws_errors import CallTrouble
from healthd.remediation.request_stats import RequestStats
from healthd.sources.command import TRUNCATED, import_path, run_command
from healthd.sources.deadline import Deadline

_CHILD = "healthd.remediation.provisioners.aws_child"
_LIMIT_BYTES = 32 * 1024 * 1024  # ListClusterNodes gives about 500 bytes per node
_METADATA_TRIES = {"AWS_METADATA_SERVICE_NUM_ATTEMPTS": "3"}  # one lost answer must not pass for no credentials
_METADATA_HOSTS = "169.254.169.254,[fd00:ec2::254]"  # by a proxy they would give the credentials of the proxy's machine
_NO_CREDENTIALS = "NoCredentialsError"  # botocore's, where it found none in any place
_SENT_WITH_CREDENTIALS = frozenset({CallTrouble.DENIED, CallTrouble.THROTTLED, CallTrouble.BUSY, CallTrouble.WOULD_DO})
_NOT_APPLIED = frozenset({CallTrouble.THROTTLED, CallTrouble.BUSY, CallTrouble.UNSENT, CallTrouble.CREDENTIALS})
_START_S = 5.0  # for Python and boto3 to load on a busy node, beside the call's own deadline


class RunChild(Protocol):
    """The runner of the child: run_command, or a test's own."""

    def __call__(
        self,
        argv: tuple[str, ...],
        *,
        timeout_s: float,
        env: Mapping[str, str],
        input: str,  # noqa: A002  as run_command has it
        limit_bytes: int,
    ) -> CommandResult:
        """As run_command."""


class Aws:
    """AWS in one region. ``endpoint_url`` "": AWS itself, or AWS_ENDPOINT_URL. ``calls`` counts each call. ``leads``
    raises BackendError where this process may not act any more: it is asked right before each call that acts, because
    the reads before it may take longer than a lead lasts."""

    def __init__(
        self,
        *,
        region: str = "",
        endpoint_url: str = "",
        timeout_s: float = 20.0,
        run: RunChild = run_command,
        calls: RequestStats | None = None,
        leads: Callable[[], None] = lambda: None,
    ) -> None:
        self._leads = leads
        self.region, self._calls = region, calls or RequestStats()
        self._endpoint_url, self._timeout_s, self._run = endpoint_url, timeout_s, run
        self._had_credentials = False

    def within(self, deadline: Deadline) -> Aws:
        """The same client, whose children end by this deadline; one that is over raises TimeoutError."""

        def run(argv: tuple[str, ...], *, timeout_s: float, **more: Any) -> CommandResult:
            return self._run(argv, timeout_s=min(timeout_s, deadline.left_s()), **more)

        made = copy(self)
        made._run = run
        return made

    def call(self, service: str, operation: str, **parameters: Any) -> Mapping[str, Any]:
        """Make one call of the table and return its answer; of a read, with all its pages. Times come as text.

        Raises BackendDenied (no right, or no credentials at all), BackendBusy (throttled, another operation, no
        capacity), BackendRefused (refused), BackendUnknown (no answer). A read without an answer is unknown, whatever
        the cause.
        """
        if (known := find_call(service, operation)) is not None and known.acts:
            self._leads()
        with self._calls.counting("aws", f"{service}:{operation}"):
            reply = self._ask(service, operation, parameters)
            if "answer" in reply:
                self._had_credentials = True
                answer: Mapping[str, Any] = reply["answer"] or {}
                return answer
            raise self._error(service, operation, reply)

    def would(self, service: str, operation: str, **parameters: Any) -> str:
        """Ask EC2, by its own DryRun, whether it would make this call; returns the sentence. Raises as ``call``."""
        reply = self._ask(service, operation, {**parameters, "DryRun": True})
        if reply.get("trouble") != CallTrouble.WOULD_DO:
            raise self._error(service, operation, reply)
        return f"{service}:{operation} {_shown(parameters)}: AWS would carry it out (DryRun)"

    def _ask(self, service: str, operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        question = {
            "service": service,
            "operation": operation,
            "parameters": parameters,
            "region": self.region,
            "endpoint_url": self._endpoint_url,
            "timeout_s": self._timeout_s,
        }
        argv = (sys.executable, "-P", "-m", _CHILD)
        try:
            result = self._run(
                argv,
                timeout_s=self._timeout_s + _START_S,
                env=_environment(),
                input=json.dumps(question),
                limit_bytes=_LIMIT_BYTES,
            )
        except SourceTimeout as error:
            return {"trouble": CallTrouble.UNKNOWN, "code": "Deadline", "message": str(error)}
        except SourceError as error:  # it was not started
            return {"trouble": CallTrouble.UNSENT, "code": "NoChild", "message": str(error)}
        return _told(result)

    def _error(self, service: str, operation: str, reply: Mapping[str, Any]) -> BackendError:
        call, trouble = find_call(service, operation), reply.get("trouble")
        action = call.action if call else f"{service}:{operation}"
        text = f"{action}: {reply.get('code', '')}: {reply.get('message', '')}"
        none_ever = (
            trouble == CallTrouble.CREDENTIALS and reply.get("code") == _NO_CREDENTIALS and not self._had_credentials
        )
        self._had_credentials = self._had_credentials or trouble in _SENT_WITH_CREDENTIALS
        if none_ever:
            return BackendDenied(f"{text}; this machine has no AWS credentials: give it a role, see packaging/iam")
        match trouble:
            case CallTrouble.DENIED:
                scope = "" if call is None or call.scope is IamScope.ANY else f", for {call.scope.value}"
                return BackendDenied(f"{text}; the role needs the IAM action {action}, see packaging/iam{scope}")
            case CallTrouble.REFUSED:  # of a wrong region AWS says only that the thing is not there
                return BackendRefused(f"{text} (region {self.region})" if self.region else text)
            case CallTrouble.CREDENTIALS:
                check = "the machine's clock, its role and the role's trust policy, and its metadata service"
                text = f"{text}; no valid credentials now: check {check}"
        if trouble in _NOT_APPLIED:
            acts = call is None or call.acts
            return BackendBusy(f"{text}; AWS applied nothing, healthd tries again") if acts else BackendUnknown(text)
        acted = "; AWS may have applied it" if call and call.acts else ""
        return BackendUnknown(f"{text}{acted}")


def _environment() -> dict[str, str]:
    """This process's environment, in which the child can import healthd wherever it is installed, and asks the metadata
    service without a proxy."""
    direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    if direct != "*":  # every host, which it says only where it stands alone
        direct = ",".join(filter(None, (direct, _METADATA_HOSTS)))
    return {**_METADATA_TRIES, **os.environ, "PYTHONPATH": import_path(), "no_proxy": direct}


def _told(result: CommandResult) -> Mapping[str, Any]:
    """The child's answer. A child that failed may have sent its call before."""
    try:
        reply = json.loads(result.stdout)
    except ValueError:
        reply = None
    if result.code == 0 and isinstance(reply, dict):
        return reply
    cut = " (its answer was too long)" if TRUNCATED in result.stdout[-200:] else ""
    output = f"the child ended with {result.code}{cut}: {result.stderr.strip()[-300:]}"
    return {"trouble": CallTrouble.UNKNOWN, "code": "ChildBroke", "message": output}


def _shown(parameters: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in parameters.items())
