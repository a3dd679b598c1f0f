"""Whether the Python that runs this trusts a certificate, as its default context does: a TLS handshake in memory.

    python handshake.py CERTIFICATE KEY      prints the version of TLS, or why the certificate was refused

It runs in the roots of test_distributions.py and test_rpm.py, with the packages' own CPython.
"""

from __future__ import annotations

import ssl
import sys


def handshake(certificate: str, key: str) -> str:
    """The version of TLS that a client and a server for localhost agree on, or the client's objection."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(to_client, to_server, server_hostname="localhost")
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return error.verify_message
    return str(client.version())


if __name__ == "__main__":
    sys.stdout.write(handshake(*sys.argv[1:]) + "\n")
