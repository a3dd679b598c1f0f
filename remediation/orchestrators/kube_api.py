"""The one door to a Kubernetes API server: lightkube with a deadline, a rate of its own, and errors in our words.

It decides nothing and repeats nothing: whoever asked reads back and asks again. No watch and no LIST of nodes goes
through here. lightkube (1.0.1: 115 ms and 11 MB, measured) is imported by this module alone, and this module only where
Kubernetes is in use.

What the server says, in our words:

    404                       Missing          there is no such object
    409                       Conflict         the object is another than was read, or is there already
    429                       BackendBusy      overloaded: not applied; nothing is sent before Retry-After
    401, 403                  BackendDenied    no credentials, or not the right
    other 4xx                 BackendRefused   not applied; an admission policy's own sentence is in the message
    5xx, cut off, no answer   BackendUnknown   may have been applied

A reading that fails is *unknown* whatever the reason, but for Missing.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import yaml
from lightkube import Client
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError as LightkubeError
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.types import PatchType

from healthd.errors import BackendBusy, BackendDenied, BackendError, BackendRefused, BackendUnknown, ConfigError

FIELD_MANAGER = "healthd-agent"
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_AGE_S = 60.0
"""How long a token is used before its file is read again, as client-go does; kubelet renews it long before its end."""

_ANSWER_LIMIT_BYTES = 8 * 1024 * 1024  # etcd's objects end at 1.5 MiB


class Missing(BackendRefused):
    """There is no such object."""


class Conflict(BackendRefused):
    """The object was changed since it was read, or is there already: read it again."""


class Kind(Enum):
    """What is read or written, as (group, version, kind, plural, is namespaced)."""

    NODE = ("", "v1", "Node", "nodes", False)
    POD = ("", "v1", "Pod", "pods", True)
    LEASE = ("coordination.k8s.io", "v1", "Lease", "leases", True)
    EVENT = ("events.k8s.io", "v1", "Event", "events", True)


class How(Enum):
    """How a patch is merged. STRATEGIC merges a node's conditions by type; MERGE would replace all of them."""

    MERGE = PatchType.MERGE
    STRATEGIC = PatchType.STRATEGIC


class Pace:
    """At most ``rate_per_s`` requests a second over time, ``burst`` of them at once, and none while the server is
    overloaded. Used by several threads.
    """

    def __init__(self, *, rate_per_s: float, burst: int, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._rate_per_s, self._burst, self._monotonic_s = rate_per_s, burst, monotonic_s
        self._lock = threading.Lock()
        self._tokens, self._at_s = float(burst), monotonic_s()
        self._not_before_s = self._at_s

    def wait_s(self, most_s: float) -> float:
        """How long the next request has to wait, in seconds; it is counted. Raises BackendBusy for longer than that."""
        with self._lock:
            now_s = self._monotonic_s()
            self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._rate_per_s)
            self._at_s = now_s
            wait_s = max((1 - self._tokens) / self._rate_per_s, self._not_before_s - now_s, 0.0)
            if wait_s > most_s:
                raise BackendBusy(f"not asked: healthd's own rate allows the next request in {wait_s:.1f} s")
            self._tokens -= 1
            return wait_s

    def hold_off(self, for_s: float) -> None:
        """The server asked for this pause, in seconds."""
        with self._lock:
            self._not_before_s = max(self._not_before_s, self._monotonic_s() + for_s)


class KubeApi:
    """One connection to the API server, for several threads.

    ``timeout_s``: the deadline of a call, the wait for its turn included; a connection that is opened anew may take the
    same again. ``sleep``: waits these seconds. ``sent`` counts requests by verb and kind, for metrics and tests.
    """

    def __init__(
        self,
        client: Client,
        *,
        timeout_s: float,
        pace: Pace,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client, self._timeout_s, self._pace, self._sleep = client, timeout_s, pace, sleep
        self.sent: dict[str, int] = {}

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        """Read one object, past every cache. Raises Missing, BackendUnknown."""
        what = f"get {_named(kind, name, namespace)}"
        try:
            return self._ask(what, lambda: self._client.get(_class_of(kind), name, **_where(namespace)))
        except (Missing, BackendUnknown):
            raise
        except BackendError as error:
            raise BackendUnknown(f"could not be read: {error}") from error

    def patch(
        self,
        kind: Kind,
        name: str,
        body: Mapping[str, Any],
        *,
        how: How = How.MERGE,
        namespace: str | None = None,
        status: bool = False,
    ) -> dict[str, Any]:
        """Change one object, or its ``status``, and return it as it is then. Raises BackendError as above."""
        what = f"patch {_named(kind, name, namespace)}{'/status' if status else ''}"
        model = _class_of(kind)
        target = model.Status if status else model

        def send() -> Any:
            return self._client.patch(target, name, dict(body), patch_type=how.value, **_where(namespace))

        return self._ask(what, send)

    def create(self, kind: Kind, body: Mapping[str, Any], *, namespace: str) -> dict[str, Any]:
        """Create an object. Raises Conflict where it is there already, and BackendError as above."""
        what = f"create {_named(kind, body['metadata']['name'], namespace)}"
        return self._ask(what, lambda: self._client.create(_class_of(kind)(body), namespace=namespace))

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def _ask(self, what: str, send: Callable[[], Any]) -> dict[str, Any]:
        if (wait_s := self._pace.wait_s(self._timeout_s)) > 0:
            self._sleep(wait_s)
        key = " ".join(what.split()[:2]).partition("/")[0]
        self.sent[key] = self.sent.get(key, 0) + 1
        try:
            return dict(send())
        except httpx2.HTTPStatusError as error:
            raise self._error(what, error.response) from error
        except (httpx2.TransportError, httpx2.StreamError) as error:
            words = str(error) or type(error).__name__
            raise BackendUnknown(f"{what}: no answer within {self._timeout_s:g} s: {words}") from error
        except (httpx2.DecodingError, msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
            raise BackendUnknown(f"{what}: the answer is none of Kubernetes's: {error!r}") from error

    def _error(self, what: str, response: httpx2.Response) -> BackendError:
        code, said = response.status_code, f"{what}: {response.status_code} {_words(response)}"
        match code:
            case 404:
                return Missing(said)
            case 409:
                return Conflict(said)
            case 429:
                pause_s = _retry_after_s(response)
                self._pace.hold_off(pause_s)
                return BackendBusy(f"{said}; nothing is asked for {pause_s:g} s")
            case 401 | 403:
                return BackendDenied(f"{said}; see the ServiceAccount's roles and healthd's admission policies")
            case _ if 400 <= code < 500:
                return BackendRefused(said)
            case _:
                return BackendUnknown(f"{said}; it may have been applied all the same")


def connect(
    *, kubeconfig: str, timeout_s: float, pace: Pace, environ: Mapping[str, str], account: str = SERVICE_ACCOUNT
) -> KubeApi:
    """A connection as this pod's ServiceAccount, or as ``kubeconfig`` says. No request is sent.

    Raises ConfigError where there is neither.
    """
    try:
        config = KubeConfig.from_file(kubeconfig).get() if kubeconfig else _in_cluster(environ, account)
    except (LightkubeError, yaml.YAMLError, OSError, LookupError, AttributeError, TypeError, ValueError) as error:
        where = kubeconfig or f"{account} and KUBERNETES_SERVICE_HOST"
        problem = f"Kubernetes cannot be reached as {where} say: {error!r}; set [orchestrator.kubernetes] kubeconfig"
        raise ConfigError((problem,)) from error
    if config is None:
        raise ConfigError((f"{kubeconfig}: no current-context; name one there",))
    return KubeApi(_client(config, timeout_s), timeout_s=timeout_s, pace=pace)


def _in_cluster(environ: Mapping[str, str], account: str) -> SingleConfig:
    """As lightkube does, from ``environ`` and with a token that is read again."""
    folder = Path(account)
    host = environ["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    server = f"https://{host}:{environ.get('KUBERNETES_SERVICE_PORT', '443')}"
    ca, token = folder / "ca.crt", folder / "token"
    token.read_text()
    made = KubeConfig.from_dict(
        {
            "current-context": "pod",
            "clusters": [{"name": "pod", "cluster": {"server": server, "certificate-authority": str(ca)}}],
            "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
            "users": [{"name": "pod", "user": {"tokenFile": str(token)}}],
        }
    )
    return made.get()  # type: ignore[return-value] # there is a current context


def _client(config: SingleConfig, timeout_s: float) -> Client:
    user = config.user or User()
    token_file = str(config.abs_file(user.token_file)) if user.token_file else ""
    trust = verify_cluster(config.cluster, user, config.abs_file, trust_env=False)
    transport = _Transport(trust, timeout_s=timeout_s, token_file=token_file)
    if token_file:
        user = User()  # the transport signs
    return Client(
        config._replace(user=user),
        timeout=httpx2.Timeout(timeout_s),
        field_manager=FIELD_MANAGER,
        trust_env=False,
        transport=transport,
    )


class _Transport(httpx2.HTTPTransport):
    """Ends an answer at its deadline and at its size, however slowly it comes, and signs with the token of this minute.

    lightkube's own reading of a token file waits for a 401; httpx's time-outs begin anew with every chunk.
    """

    def __init__(self, trust: Any, *, timeout_s: float, token_file: str) -> None:
        super().__init__(verify=trust, trust_env=False)
        self._timeout_s, self._token_file = timeout_s, token_file
        self._token, self._read_s = "", -TOKEN_AGE_S

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        until_s = time.monotonic() + self._timeout_s
        if self._token_file:
            request.headers["Authorization"] = f"Bearer {self._current_token()}"
        response = super().handle_request(request)
        if response.status_code == 401:
            self._read_s = -TOKEN_AGE_S  # the next request reads the file
        response.stream = _Bounded(response.stream, until_s)
        return response

    def _current_token(self) -> str:
        now_s = time.monotonic()
        if now_s - self._read_s >= TOKEN_AGE_S:
            try:
                self._token, self._read_s = Path(self._token_file).read_text(encoding="utf-8").strip(), now_s
            except OSError as error:
                if not self._token:
                    raise httpx2.ConnectError(f"{self._token_file}: {error.strerror}") from error
        return self._token


class _Bounded(httpx2.SyncByteStream):
    def __init__(self, stream: Any, until_s: float) -> None:
        self._stream, self._until_s = stream, until_s

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for chunk in self._stream:
            size += len(chunk)
            if time.monotonic() > self._until_s:
                raise httpx2.ReadTimeout("the answer did not end in time")
            if size > _ANSWER_LIMIT_BYTES:
                raise httpx2.ReadError(f"the answer is longer than {_ANSWER_LIMIT_BYTES} bytes")
            yield chunk

    def close(self) -> None:
        self._stream.close()


def in_pod(environ: Mapping[str, str] = os.environ, account: str = SERVICE_ACCOUNT) -> bool:
    """Whether this process runs in a pod that may talk to its API server."""
    return bool(environ.get("KUBERNETES_SERVICE_HOST")) and Path(account, "token").exists()


_CLASSES: dict[Kind, Any] = {}


def _class_of(kind: Kind) -> Any:
    """lightkube's class of plain dictionaries for this kind: a model would drop the fields that it does not know."""
    if kind not in _CLASSES:
        group, version, name, plural, is_namespaced = kind.value
        make = create_namespaced_resource if is_namespaced else create_global_resource
        _CLASSES[kind] = make(group, version, name, plural)
    return _CLASSES[kind]


def _where(namespace: str | None) -> dict[str, Any]:
    return {} if namespace is None else {"namespace": namespace}


def _named(kind: Kind, name: str, namespace: str | None) -> str:
    return f"{kind.name.lower()} {namespace + '/' if namespace else ''}{name}"


def _words(response: httpx2.Response) -> str:
    """The server's own sentence."""
    try:
        said = response.json()["message"]
    except (ValueError, KeyError, TypeError, httpx2.HTTPError):
        said = response.text[:300] or response.reason_phrase
    return " ".join(str(said).split())


def _retry_after_s(response: httpx2.Response) -> float:
    """The pause that the server asked for, in seconds, from 1 to 60; 1 where it did not say (API Priority and
    Fairness always does)."""
    asked = response.headers.get("Retry-After", "")
    return min(60.0, max(1.0, float(asked))) if asked.isdecimal() else 1.0
