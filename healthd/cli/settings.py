"""Loading the configuration for a verb."""

from __future__ import annotations

import contextlib
import os
from argparse import Namespace
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from healthd.agent.node_facts import ThisNode
from healthd.config.load import Loaded, checks_in_files, load
from healthd.config.schema.config import Config
from healthd.config.schema.daemon import DaemonSection
from healthd.core.errors import ConfigError, StartError
from healthd.sources.imds import FastStart


def loaded(options: Namespace, hurry: FastStart | None = None, names: Collection[str] | None = None) -> Loaded:
    """The configuration that a command line names, or the machine's. Raises ConfigError with every problem.

    ``hurry``: as of MetadataSource. ``names``: the checks whose settings are needed, beside those that the files set;
    None: all. A verb that runs no check needs none.
    """
    path = Path(options.config) if options.config else None

    def who(config: Config) -> ThisNode:
        return ThisNode(config, os.environ, hurry=hurry)

    if names is not None:
        with contextlib.suppress(ConfigError):  # it may be about the name of a check: all of them tell
            few = frozenset(names) | checks_in_files(path)
            return load(path, checks=check_settings(few) if few else {}, environ=os.environ, who=who)
    return load(path, checks=check_settings(), environ=os.environ, who=who)


def served(serve: Callable[[], int]) -> int:
    """Run a service and return its exit code.

    Raises StartError where the configuration loads but does not work on this machine now: Slurm's folder is not mounted
    yet, or the platform is unknown. systemd starts a service again that ends so, and none that ends with a ConfigError.
    """
    try:
        return serve()
    except ConfigError as error:
        raise StartError("\nhealthd: ".join(error.problems)) from error


def socket_path(options: Namespace) -> str:
    """The path of the daemon's socket; clients read no configuration for it."""
    return options.socket or os.environ.get("HEALTHD_SOCKET") or DaemonSection().socket


def check_settings(names: Collection[str] = ()) -> Mapping[str, type]:
    """Each check's name and settings class, as the configuration needs them. ``names``: as of discover."""
    from healthd.core.check import discover  # most verbs run no check

    return {name: check.settings for name, check in discover(names).items()}
