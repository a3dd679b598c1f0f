"""TLS that is loaded by its first use: what imports it all the same, and that it works as ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.limits import limit_s
from tests.support.services import certificate

pytestmark = pytest.mark.process

LISTS_LOADED = """
import sys
from healthd.daemon.late_tls import import_without_tls
import_without_tls()
import healthd.api.http, healthd.daemon.daemon, healthd.sources.imds
print(*sorted({"_hashlib", "_ssl", "apscheduler", "asyncio", "http.client", "structlog"} & set(sys.modules)))
"""
BEGINS = """
import sys
from healthd.daemon.late_tls import import_without_tls
import_without_tls()
import asyncio, http.client, threading
assert "_ssl" not in sys.modules
"""
ASYNCIO = f"""{BEGINS}
import ssl
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1])
async def answers(reader, writer):
    writer.write(await reader.readline())
    writer.close()
async def main():
    server = await asyncio.start_server(answers, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    trusting = ssl.create_default_context(cafile=sys.argv[1])
    host = "api.opsgenie.com"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname=host)
    writer.write(b"as ever\\n")
    print((await reader.readline()).decode(), end="")
    writer.close()
    server.close()
asyncio.run(main())
"""
HTTPS = f"""{BEGINS}
import socket
server = socket.create_server(("127.0.0.1", 0))
def serve():
    import ssl
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[1])
    with context.wrap_socket(server.accept()[0], server_side=True) as client:
        client.recv(65536)
        client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 8\\r\\n\\r\\nas ever\\n")
asked = http.client.HTTPSConnection("127.0.0.1", server.getsockname()[1])  # its context is made by the late ssl
asked._context.check_hostname = False
asked._context.load_verify_locations(sys.argv[1])
threading.Thread(target=serve).start()
asked.request("GET", "/")
print(asked.getresponse().read().decode(), end="")
"""


def printed(script: str, *arguments: str) -> str:
    """What a Python prints that runs the script."""
    argv = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit_s(30.0))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_daemon_that_sends_nothing_loads_no_openssl() -> None:
    """Its modules import ssl through asyncio and http.client: 4 MB on each node of a fleet."""
    assert printed(LISTS_LOADED) == "apscheduler asyncio http.client structlog\n"


@pytest.mark.parametrize("script", [ASYNCIO, HTTPS], ids=["asyncio", "http.client"])
def test_tls_works_as_ever(script: str, tmp_path: Path) -> None:
    """A plug-in or a page may speak it at any time, by either of the two."""
    assert printed(script, str(certificate(tmp_path / "one.pem"))) == "as ever\n"
