"""The EC2 instance metadata service, version 2: a token first, short time-outs, no proxy, no retry.

It is asked only on a machine whose firmware says Amazon EC2, or where an endpoint is set; never when
``AWS_EC2_METADATA_DISABLED=true``. (EC2 User Guide, "Use IMDSv2", read 2026.)
"""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

from healthd.errors import SourceMissing, SourceTimeout, SourceUnreadable

DEFAULT_ENDPOINT = "http://169.254.169.254"
_TIMEOUT_S = 1.0
_TOKEN_TTL_S = 300


def read_metadata(endpoint: str, path: str, *, timeout_s: float = _TIMEOUT_S) -> str:
    """The text of ``/latest/meta-data/<path>``.

    Raises SourceMissing (404: there is no such item), SourceTimeout, SourceUnreadable (anything else).
    """
    connection = _connection(endpoint, timeout_s)
    try:
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_TTL_S)}
        token = _answer(connection, "PUT", "/latest/api/token", ttl)
        return _answer(connection, "GET", f"/latest/meta-data/{path}", {"X-aws-ec2-metadata-token": token})
    except TimeoutError as error:
        raise SourceTimeout(f"IMDS at {endpoint} did not answer within {timeout_s:g} s") from error
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        raise SourceUnreadable(f"IMDS at {endpoint}: {error}; check hop limit and [sources] imds_endpoint") from error
    finally:
        connection.close()


class MetadataSource:
    """The service of one node. ``endpoint`` "": there is none to ask. A cut-off item costs a second at most."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def read(self, path: str) -> str | None:
        """The item, or None where the service has none of that name.

        Raises SourceMissing (no service here, or no token from it), SourceTimeout, SourceUnreadable.
        """
        if not self._endpoint:
            raise SourceMissing("no instance metadata service: this is not EC2 by its DMI, or asking it is disabled")
        try:
            return read_metadata(self._endpoint, path)
        except SourceMissing as error:
            if path in str(error):
                return None
            raise SourceUnreadable(f"{error}, where every IMDSv2 has one; check [sources] imds_endpoint") from error


def _connection(endpoint: str, timeout_s: float) -> http.client.HTTPConnection:
    try:
        where = urlsplit(endpoint)
        host, port = where.hostname, where.port
    except ValueError as error:
        raise SourceUnreadable(f"IMDS at {endpoint}: {error}; check [sources] imds_endpoint") from error
    if where.scheme != "http" or not host:
        raise SourceUnreadable(f"IMDS at {endpoint}: expected http://HOST[:PORT]; check [sources] imds_endpoint")
    return http.client.HTTPConnection(host, port or 80, timeout=timeout_s)


def _answer(connection: http.client.HTTPConnection, method: str, path: str, headers: dict[str, str]) -> str:
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    body = response.read(65536).decode("utf-8", "replace").strip()
    if response.status == 404:
        raise SourceMissing(f"IMDS has no {path}")
    if response.status != 200:
        raise SourceUnreadable(f"IMDS answered {response.status} to {method} {path}; expected 200")
    return body
