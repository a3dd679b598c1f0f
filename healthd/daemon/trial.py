"""Whether the daemon could start with a configuration, on this machine as it is now.

A start is rehearsed: its parts are put together and dropped. Nothing is begun, written or asked of the cluster; the
metadata service may be asked, and where the platform of AWS has to be found out, AWS, as at a start.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from healthd.agent.wiring import open_orchestrator, provisioner_of
from healthd.config.schema.config import Config
from healthd.core.errors import ConfigError
from healthd.remediation.policy_files import policy_of
from healthd.sources.machine import open_machine


def try_out(config: Config, environ: Mapping[str, str]) -> None:
    """Raises ConfigError with everything for which the daemon would not start, or not act as it is configured to."""
    folders = {"daemon.socket": Path(config.daemon.socket).parent, "daemon.state_dir": Path(config.daemon.state_dir)}
    problems = [wrong for key, folder in folders.items() if (wrong := _reason_against(key, folder))]
    with closing(open_machine(config)) as machine, ExitStack() as opened:
        with _added_to(problems):
            policy_of(config.policy, machine.instance_type)
        with _added_to(problems):
            orchestrator = open_orchestrator(config, machine, environ)
            if (close := getattr(orchestrator, "close", None)) is not None:
                opened.callback(close)
            provisioner_of(config, machine, orchestrator)
    if problems:
        raise ConfigError(tuple(problems))


@contextmanager
def _added_to(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        problems += error.problems


def _reason_against(key: str, folder: Path) -> str:
    """Why no file can be made in a folder, which is made itself where it is not there yet; or ""."""
    # os.path's: Path.exists raises for a user without rights.
    there = next(each for each in (folder, *folder.parents) if os.path.exists(each))
    if not os.path.isdir(there):
        return f"{key}: {there} is no folder; expected one for {folder}"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{key}: user {os.geteuid()} cannot write to {there}; check its rights and its file system"
    return ""
