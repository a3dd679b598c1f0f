"""systemd's notification protocol (sd_notify(3)): one datagram to the socket that it names. Nothing without systemd."""

from __future__ import annotations

import os
import socket


def take_address() -> str:
    """The socket's address, or "" without systemd. Taken out of the environment: what we run must not speak for us.

    (systemctl reports its own errors there, as ``ERRNO=``: seen with systemd 252.)
    """
    return os.environ.pop("NOTIFY_SOCKET", "")


def notify(address: str, state: str) -> None:
    """Send ``READY=1``, ``WATCHDOG=1`` or ``STOPPING=1``. An abstract socket is named with a leading ``@``.

    A socket that does not take it is ignored on purpose: systemd's own time-out is what reports a silent service.
    """
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.sendto(state.encode(), address)
        except OSError:
            return
