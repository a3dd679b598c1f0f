"""Stand-ins on loopback for the services that take messages: any HTTP server, every host of https, a mail server."""

from __future__ import annotations

import contextlib
import json
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec import Struct, field


class Service(Struct):
    """A service, and what it was asked. ``answers``: a status and a body by path."""

    url: str = ""
    asked: list[tuple[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    answers: Callable[[str, Any], tuple[int, Any]] = lambda path, body: (200, {"ok": True})

    def take(self, handler: BaseHTTPRequestHandler) -> None:
        """Read a request, keep it and answer it."""
        raw = handler.rfile.read(int(handler.headers["Content-Length"])).decode()
        is_json = "json" in handler.headers.get("Content-Type", "json")
        try:
            body = json.loads(raw) if is_json else raw
        except ValueError:
            body = raw
        host = handler.headers.get("Host", "")
        path = handler.path if "127.0.0.1" in host else f"https://{host}{handler.path}"
        self.asked.append((path, body))
        self.headers.append(dict(handler.headers.items()))
        status, answer = self.answers(path, body)
        text = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)


def handler_of(service: Service, context: ssl.SSLContext | None = None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            service.take(self)

        def do_CONNECT(self) -> None:
            """As a proxy: it is each host itself."""
            assert context is not None
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError), context.wrap_socket(self.connection, server_side=True) as inner:
                Inner(inner, self.client_address, self.server)
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    class Inner(Handler):
        pass

    return Handler


@contextlib.contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def a_service() -> Iterator[Service]:
    """A service by plain HTTP."""
    made = Service()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler_of(made)) as server, serving(server):
        made.url = f"http://127.0.0.1:{server.server_port}"
        yield made


@contextlib.contextmanager
def the_internet(certificate_file: Path) -> Iterator[tuple[Service, Mapping[str, str]]]:
    """A proxy on loopback that is every host of https itself, under a certificate that a client trusts which has these
    variables in its environment."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(certificate_file))
    made = Service()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler_of(made, context)) as server, serving(server):
        made.url = f"http://127.0.0.1:{server.server_port}"
        yield (
            made,
            {
                "HTTPS_PROXY": made.url,
                "https_proxy": made.url,
                "NO_PROXY": "",
                "no_proxy": "",
                "REQUESTS_CA_BUNDLE": str(certificate_file),
            },
        )


def certificate(path: Path) -> Path:
    """A certificate of the three services, with its key, that is its own authority."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stand-in")])
    hosts = ("api.opsgenie.com", "sns.eu-west-1.amazonaws.com", "prod-1.westeurope.logic.azure.com")
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM) + key.private_bytes(serialization.Encoding.PEM, *form)
    )
    return path


class Mailbox(socketserver.StreamRequestHandler):
    """A mail server that takes one message, by RFC 5321."""

    got: list[str] = []  # noqa: RUF012  of the one server that a test starts

    def handle(self) -> None:
        self.wfile.write(b"220 mail\r\n")
        while line := self.rfile.readline():
            verb = line[:4].upper()
            if verb == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = iter(self.rfile.readline, b".\r\n")
                self.got.append(b"".join(lines).decode())
            self.wfile.write(b"221 bye\r\n" if verb == b"QUIT" else b"250 ok\r\n")
            if verb == b"QUIT":
                return
