"""``healthd hook`` without a daemon: run the checks, and act if needed, within a deadline.

An error of healthd never refuses a job: Slurm would drain node after node for it, with the reason "Prolog error".
"""

from __future__ import annotations

import os
import signal
from argparse import Namespace
from pathlib import Path

from healthd.agent.agent import acting_agent, catch_up_kernel_log
from healthd.api.answers import hook_answer, hook_ended
from healthd.api.wire import Reply
from healthd.cli.settings import loaded, socket_path
from healthd.core.errors import HealthdError
from healthd.core.streams import print_answer
from healthd.core.unseen import note
from healthd.state.lock import lock_state

DEADLINE_S = 9
_LOCK_WAIT_S = 6.0


class _Deadline:
    """The hook's deadline, by SIGALRM. ``answer``: the decision that was made before the deadline. The job gets it
    whatever comes after, because the audit trail has it."""

    def __init__(self, options: Namespace) -> None:
        self._options = options
        self.answer: Reply | None = None

    def begin(self) -> None:
        signal.signal(signal.SIGALRM, self._over)
        signal.alarm(DEADLINE_S)

    def _over(self, *_: object) -> None:
        """End the process at once, whatever hangs."""
        answer = self.answer or _let_pass(self._options, f"the {DEADLINE_S} s deadline passed")
        print_answer(answer.code, answer.out, answer.err)
        os._exit(answer.code)


def answer(options: Namespace) -> Reply:
    """Exit 1 only where the prolog drained the node for a critical finding; in every other case the job passes."""
    deadline = _Deadline(options)
    deadline.begin()
    try:
        return _checked(options, deadline)
    except HealthdError as error:
        return deadline.answer or _let_pass(options, str(error))
    except Exception as error:  # noqa: BLE001 - a defect of healthd would drain node after node with "Prolog error"
        why = f"{type(error).__name__}: {error}; this is a defect of healthd"
        return deadline.answer or _let_pass(options, why)
    finally:
        signal.alarm(0)


def _checked(options: Namespace, deadline: _Deadline) -> Reply:
    """Run the checks under the state lock: of concurrent prologs the first drains, the others find it done, and of
    concurrent epilogs each judges its job."""
    values = loaded(options)
    config = values.config
    waits_s = 0.0 if options.kind == "health-check-program" else _LOCK_WAIT_S
    lock = lock_state(Path(config.daemon.state_dir), wait_s=waits_s)
    try:
        agent = acting_agent(
            config,
            source="local",
            environ=os.environ,
            changed=lambda: None,
            notices=values.notices,
            by_job=values.by_job,
        )
        try:
            catch_up_kernel_log(agent)
            reply = hook_answer(agent, options, os.environ)
            deadline.answer = reply.answer
            hook_ended(agent, reply)
            if agent.job_verdicts is not None:
                agent.job_verdicts.tell()
            return reply.answer
        finally:
            agent.close()
    finally:
        os.close(lock)


def _let_pass(options: Namespace, why: str) -> Reply:
    note(socket_path(options), (options.kind,))
    return Reply(code=0, err=f"healthd: hook {options.kind} could not run its checks; the job passes: {why}\n")
