"""``healthd hook`` without a daemon: look, and act if need be, within a deadline of our own.

Our own trouble never refuses a job: Slurm would drain node after node for it, with "Prolog error" as the reason.
"""

from __future__ import annotations

import os
import signal
import sys
from argparse import Namespace
from pathlib import Path

from healthd.agent import acting_agent, catch_up_kernel_log
from healthd.api.answers import hook_answer
from healthd.api.wire import Answer
from healthd.cli.settings import loaded
from healthd.errors import HealthdError
from healthd.state_lock import lock_state

DEADLINE_S = 9
_LOCK_WAIT_S = 6.0


def answer(options: Namespace) -> Answer:
    """Exit 1 only where the prolog drained the node for a critical finding; everything else lets the job pass."""
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(DEADLINE_S)
    try:
        return _looked(options)
    except HealthdError as error:
        return _let_pass(options, str(error))
    except Exception as error:  # noqa: BLE001 - a defect of ours would drain node after node with "Prolog error"
        return _let_pass(options, f"{type(error).__name__}: {error}; this is a defect of healthd")
    finally:
        signal.alarm(0)


def _looked(options: Namespace) -> Answer:
    """Prologs that come together wait for each other: the first one drains, the others find it done."""
    values = loaded(options)
    config = values.config
    lock = lock_state(Path(config.daemon.state_dir), wait_s=_LOCK_WAIT_S if options.kind == "prolog" else 0.0)
    try:
        agent = acting_agent(config, source="local", environ=os.environ, changed=lambda: None, notices=values.notices)
        try:
            catch_up_kernel_log(agent)
            return hook_answer(agent, options, os.environ)
        finally:
            agent.close()
    finally:
        os.close(lock)


def _let_pass(options: Namespace, why: str) -> Answer:
    return Answer(code=0, err=f"healthd: hook {options.kind} could not look, the job passes: {why}\n")


def _out_of_time(*_: object) -> None:
    """The deadline: leave at once, whatever hangs, and let the job pass."""
    sys.stderr.write(f"healthd: hook ran out of its {DEADLINE_S} s, the job passes\n")
    sys.stderr.flush()
    os._exit(0)
