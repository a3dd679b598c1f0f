"""The daemon itself, as it is configured: ``[daemon]``.

As ``schema``: a docstring under every field, and nothing here reads a file or the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from healthd.config.kinds import AbsolutePath, Name, Seconds, SocketPath

MaybeAddress = Annotated[
    str, Meta(pattern=r"^([^\s:]+:\d{1,5}|\[[0-9a-fA-F:.]+\]:\d{1,5})?\Z", description='HOST:PORT, or ""')
]


@dataclass(frozen=True, kw_only=True)
class DaemonSection:
    """The daemon itself: where it listens and where it keeps its state."""

    socket: SocketPath = "/run/healthd/healthd.sock"
    """The unix socket of the command line and the hooks. Clients take it from ``--socket`` or HEALTHD_SOCKET and read
    no configuration, so a moved socket must be told to them as well. Beside it, with ``.op`` behind its name, stands a
    second one, which only root and ``group`` can open: hooks and operators come by that one, so that no other user can
    keep them out."""

    state_dir: AbsolutePath = "/var/lib/healthd"
    """The folder of the store. It must outlive reboots: what was begun before one is finished after it. In mode repair
    ``healthd doctor`` fails where it is on tmpfs, overlay or an instance store. While it is full or read-only at the
    start, the daemon only looks, and says so. Its ``ballast`` (4 MB) is given up when a write finds the disk full."""

    http: MaybeAddress = "127.0.0.1:9809"
    """Address of the read-only HTTP server (metrics, health), such as ``127.0.0.1:9809``, ``[::1]:9809`` or, for every
    address of either family, ``[::]:9809``. Empty: none. Loopback by default; a scraper on another machine needs an
    address it can reach."""

    http_names: tuple[Name, ...] = ()
    """Further names under which the HTTP server may be asked, beside an address, ``localhost`` and the machine's own
    host name in any domain: a request under another one may come from a web site that has taken our address (DNS
    rebinding). ``/healthz`` answers under any."""

    group: Name = ""
    """The unix group whose members may act through the socket, beside root. Empty: root only. Who may read, ``readers``
    says. It is looked up until it is there: one that is not there yet keeps no daemon from its start."""

    readers: Name = ""
    """The unix group whose members may ask through the socket (``check``, ``status``, ``history``, ``plan``), beside
    root and ``group``. Empty: every user of the node, of whom each may read what was found and by whose order. Hooks
    need it not. Over HTTP nobody is known: with a group here users of the node are told by ``http`` what another
    machine is, which is the metrics and the verdict without its evidence; an empty ``http`` leaves nothing."""

    stop_s: Seconds = 370.0
    """How long, in seconds, the daemon waits after SIGTERM for what it is doing to its node: no further step is begun,
    and one that is under way is not broken off. Longer than a GPU reset with the stop of a service before it
    (300 + 60 s). Whoever stops it must be more patient still: TimeoutStopSec with KillMode=mixed in systemd,
    terminationGracePeriodSeconds in Kubernetes."""

    workers: Annotated[int, Meta(ge=1, le=64, description="a whole number from 1 to 64")] = 4
    """How many checks may run at once. Checks wait more than they work; four keep one slow source from holding up the
    others."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe log line that is written."""
