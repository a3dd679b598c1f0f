"""The settings of the daemon itself: ``[daemon]``.

As ``schema``: a docstring under every field, and nothing here reads a file or the machine.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from healthd.config.value_types import Name, SocketPath
from healthd.core.setting_types import AbsolutePath, Seconds

_PORT = r"(6553[0-5]|655[0-2]\d|65[0-4]\d{2}|6[0-4]\d{3}|[0-5]?\d{1,4})"
MaybeAddress = Annotated[
    str,
    Meta(
        pattern=rf"^([^\s:]+:{_PORT}|\[[0-9a-fA-F:.]+\]:{_PORT})?\Z",
        description='HOST:PORT with a port up to 65535, or ""',
    ),
]


class DaemonSection(Struct, frozen=True, kw_only=True):
    """The daemon itself: its sockets, its state and its limits."""

    socket: SocketPath = "/run/healthd/healthd.sock"
    """The unix socket of the command line and the hooks. Clients take it from ``--socket`` or HEALTHD_SOCKET and read
    no configuration, so set it there as well if you move it. A second socket beside it, with ``.op`` behind its name,
    is for root and ``group`` alone: hooks and operators use that one, so that no other user can block them."""

    state_dir: AbsolutePath = "/var/lib/healthd"
    """The folder of the store. It must outlive reboots, because a remediation continues after one. In mode repair
    ``healthd doctor`` fails where it is on tmpfs, overlay or an instance store. If it is full or read-only at the
    start, the daemon only observes, and reports it. If a write finds the disk full, healthd deletes the ``ballast``
    file (4 MB) there."""

    http: MaybeAddress = "127.0.0.1:9809"
    """Address of the read-only HTTP server, such as ``127.0.0.1:9809``, ``[::1]:9809`` or, for every
    address of either family, ``[::]:9809``. Empty: none. Loopback by default; a scraper on another machine needs an
    address it can reach."""

    http_names: tuple[Name, ...] = ()
    """Further host names that the HTTP server answers to, beside an address, ``localhost`` and the machine's own host
    name in any domain. A request under another name may come from a web site that has taken our address (DNS
    rebinding). ``/healthz`` answers to any name."""

    group: Name = ""
    """The unix group whose members may act through the socket, beside root. Empty: root only. ``readers`` sets who may
    read. A group that does not exist yet does not delay the daemon's start: healthd looks it up until it exists."""

    readers: Name = ""
    """The unix group whose members may read through the socket (``check``, ``status``, ``history``, ``plan``), beside
    root and ``group``. Empty: every user of the node may read findings, and commands with their users. Hooks do not
    need it. HTTP does not identify the user: with a group here, users of the node get over ``http`` what other
    machines get: metrics, the verdict without its evidence, and for the fleet ``/history`` (faults and remediations
    without notes and commands), ``/inventory`` and ``/readings``. An empty ``http`` gives them nothing."""

    stop_s: Seconds = 370.0
    """How long, in seconds, the daemon waits after SIGTERM for the step that it executes: it begins no further step and
    interrupts none. Longer than a GPU reset with the stop of a service before it (300 + 60 s). The service manager must
    wait longer still: TimeoutStopSec with KillMode=mixed in systemd, terminationGracePeriodSeconds in Kubernetes."""

    workers: Annotated[int, Meta(ge=1, le=64, description="a whole number from 1 to 64")] = 4
    """How many checks the daemon may run at once. Checks mostly wait; with four, one slow source does not delay the
    others. A command or a hook that runs the checks itself runs all at once."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level of log lines that are written."""
