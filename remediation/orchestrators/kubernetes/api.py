"""The client of the Kubernetes API server: lightkube with a deadline, a rate limit, and the errors of ``core.errors``.

It decides nothing, and retries only a compare-and-swap: every other caller reads back and retries itself. It opens no
watch, and sends a LIST for ``healthd controller`` alone. This module alone imports lightkube (1.0.1: 115 ms and 11 MB,
measured), and is imported only where Kubernetes is in use.

The server's answers, and the errors that they become:

    404                       Missing          there is no such object
    404, of no Status         NotServed        there is no such resource: its CustomResourceDefinition is missing
    409                       Conflict         the object has changed since it was read, or exists already
    429                       BackendBusy      overloaded: not applied; nothing is sent before Retry-After
    429, DisruptionBudget     Disrupting       a PodDisruptionBudget forbids this eviction now: not applied
    403, NamespaceTerminating Ending           the namespace is being deleted, and its pods with it
    401, 403                  BackendDenied    no credentials, or not the right
    other 4xx                 BackendRefused   not applied; an admission policy's own sentence is in the message
    5xx, cut off, no answer   BackendUnknown   may have been applied

A read that fails raises BackendUnknown, whatever the reason; only Missing stays Missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import msgspec
import yaml
from lightkube import Client
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError as LightkubeError
from lightkube.core.resource import ApiInfo
from lightkube.generic_resource import (
    GenericGlobalResource,
    GenericGlobalStatus,
    GenericNamespacedResource,
    GenericNamespacedStatus,
    create_api_info,
)
from lightkube.models.meta_v1 import ObjectMeta, Status
from lightkube.types import PatchType

from healthd.core.encodable import NOT_JSON
from healthd.core.errors import BackendBusy, BackendDenied, BackendError, BackendRefused, BackendUnknown, ConfigError
from healthd.remediation.orchestrators.kubernetes.transport import (
    ANSWER_LIMIT_BYTES,
    Pace,
    Transport,
    is_status,
    reasons_of,
    retry_after_s,
    sentence_of,
)
from healthd.remediation.request_stats import RequestStats

T = TypeVar("T")
FIELD_MANAGER = "healthd-agent"
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"

_LIST_LIMIT_BYTES = 256 * 1024 * 1024  # a server that answers from its cache may leave ``limit`` aside
_PAGE = 500
_AT = ("resourceVersion", "resourceVersionMatch")  # of which time a LIST is to be
_SWAPS = 12  # tries of one compare-and-swap; each failed try is another client's success


class Missing(BackendRefused):
    """There is no such object."""


class NotServed(BackendRefused):
    """The server has no such resource: the CustomResourceDefinition is not there, or serves another version."""


class Conflict(BackendRefused):
    """The object was changed since it was read, or is there already: read it again."""


class Disrupting(BackendBusy):
    """A PodDisruptionBudget has no room for this eviction now."""


class Ending(BackendBusy):
    """The namespace is being deleted: its pods go with it."""


class ResourceKind(Enum):
    """The resources that healthd reads or writes, as (group, version, kind, plural, is namespaced)."""

    NODE = ("", "v1", "Node", "nodes", False)
    POD = ("", "v1", "Pod", "pods", True)
    LEASE = ("coordination.k8s.io", "v1", "Lease", "leases", True)
    EVENT = ("events.k8s.io", "v1", "Event", "events", True)
    DAEMON_SET = ("apps", "v1", "DaemonSet", "daemonsets", True)
    DEPLOYMENT = ("apps", "v1", "Deployment", "deployments", True)
    NODE_HEALTH = ("healthd.io", "v1alpha1", "NodeHealth", "nodehealths", False)
    NODE_CLAIM = ("karpenter.sh", "v1", "NodeClaim", "nodeclaims", False)
    POLICY = ("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", False)
    POLICY_BINDING = (
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        False,
    )
    ACCESS_REVIEW = ("authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", False)
    SELF_REVIEW = ("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", False)


class PatchKind(Enum):
    """How a patch is merged. STRATEGIC merges a node's conditions by type; MERGE would replace all of them."""

    MERGE = PatchType.MERGE
    STRATEGIC = PatchType.STRATEGIC


class _PageMeta(msgspec.Struct):
    next_page: str = msgspec.field(name="continue", default="")


class _ListPage(msgspec.Struct):
    metadata: _PageMeta


# Made by one thread, see ``node``. lightkube reads an error with the second, an object that is created with the third.
_READS_PAGE = msgspec.json.Decoder(_ListPage)
_READS_LIGHTKUBES = (msgspec.json.Decoder(Status), msgspec.json.Decoder(ObjectMeta))


class KubeApi:
    """One connection to the API server, for several threads.

    ``timeout_s``: the deadline of a call with its wait for the rate limit, unless an empty Pace takes longer to fill;
    opening a connection again may take the same time once more. ``sent`` counts requests by verb and kind,
    ``calls`` their results. ``cluster``: its name in the kubeconfig; "" in a pod.
    """

    def __init__(
        self, client: Client, *, timeout_s: float, pace: Pace, calls: RequestStats | None = None, cluster: str = ""
    ) -> None:
        self.cluster = cluster
        self._client, self._timeout_s, self._pace = client, timeout_s, pace
        self._calls, self.sent = calls or RequestStats(), dict[str, int]()

    def get(self, kind: ResourceKind, name: str, *, namespace: str | None = None, ahead: int = 0) -> dict[str, Any]:
        """Read one object, past every cache; ``ahead`` requests follow at once. Raises Missing, BackendUnknown."""
        what = f"get {_named(kind, name, namespace)}"
        try:
            return self._ask(what, lambda: self._client.get(_class_of(kind), name, **_where(namespace)), ahead=ahead)
        except (Missing, BackendUnknown):
            raise
        except BackendError as error:
            raise BackendUnknown(f"could not be read: {error}") from error

    def patch(
        self,
        kind: ResourceKind,
        name: str,
        body: Mapping[str, Any],
        *,
        how: PatchKind = PatchKind.MERGE,
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

    def create(self, kind: ResourceKind, body: Mapping[str, Any], *, namespace: str | None = None) -> dict[str, Any]:
        """Create an object or a review. Raises Conflict where it is there already, and BackendError as above."""
        what = f"create {_named(kind, body.get('metadata', {}).get('name', ''), namespace)}"
        return self._ask(what, lambda: self._client.create(_class_of(kind)(body), **_where(namespace)))

    def pages(
        self, kind: ResourceKind, decode: Callable[[bytes], T], *, namespace: str | None = None, **params: str
    ) -> Iterator[T]:
        """Every page of a LIST, over all namespaces unless one is named, as ``decode`` reads it; it ends at the first
        page that says no more. ``params``: of the API, such as ``resourceVersion`` and ``fieldSelector``. Raises
        BackendUnknown."""
        group, version, _, plural, _ = kind.value
        within = f"namespaces/{namespace}/" if namespace is not None else ""
        path = f"{f'apis/{group}' if group else 'api'}/{version}/{within}{plural}"
        params = {"limit": str(_PAGE), **{name: value for name, value in params.items() if value}}
        while True:
            chunks: list[bytes] = []

            def send(asked: Mapping[str, str] = params, chunks: list[bytes] = chunks) -> Mapping[str, Any]:
                chunks.append(self._raw("GET", path, params=asked, limit_bytes=_LIST_LIMIT_BYTES))
                return {}

            try:
                self._ask(f"list {plural}", send)
                more = _READS_PAGE.decode(chunks[0]).metadata.next_page
                yield decode(chunks[0])
            except BackendUnknown:
                raise
            except (BackendError, *NOT_JSON) as error:
                raise BackendUnknown(f"could not be read: list {plural}: {error}") from error
            if not more:
                return
            # The version is in the token from here on.
            params = {**{key: value for key, value in params.items() if key not in _AT}, "continue": more}

    def evict(self, name: str, *, namespace: str, body: Mapping[str, Any]) -> None:
        """Ask for a pod's eviction, or with ``dryRun`` in ``body`` what that would come to. Raises Disrupting, Ending,
        Missing, Conflict (another pod of that name)."""
        path = f"api/v1/namespaces/{namespace}/pods/{name}/eviction"
        dry = {"dryRun": "All"} if body.get("deleteOptions", {}).get("dryRun") else None
        self._ask(
            f"evict pod {namespace}/{name}", lambda: msgspec.json.decode(self._raw("POST", path, params=dry, body=body))
        )

    def delete(
        self, kind: ResourceKind, name: str, *, uid: str = "", version: str = "", namespace: str | None = None
    ) -> None:
        """Delete an object of an API group, and what it owns; with ``uid`` only that very object, with ``version`` only
        while it is unchanged. Raises Missing, Conflict."""
        group, served, _, plural, _ = kind.value
        within = f"namespaces/{namespace}/" if namespace is not None else ""
        path = f"apis/{group}/{served}/{within}{plural}/{name}"
        wanted = {name: value for name, value in (("uid", uid), ("resourceVersion", version)) if value}
        options = {"preconditions": wanted} if wanted else {"propagationPolicy": "Background"}
        self._ask(
            f"delete {_named(kind, name, namespace)}",
            lambda: msgspec.json.decode(self._raw("DELETE", path, body=options)),
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _raw(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        limit_bytes: int = ANSWER_LIMIT_BYTES,
    ) -> bytes:
        """Requests that lightkube cannot make, over its own connection: pages at a version, evictions,
        preconditions."""
        http = self._client._client._client
        request = http.build_request(
            method,
            path,
            params=dict(params or {}),
            content=None if body is None else msgspec.json.encode(body),
            headers={"Content-Type": "application/json"} if body is not None else None,
            extensions={"timeout": httpx2.Timeout(self._timeout_s).as_dict(), "limit_bytes": limit_bytes},
        )
        response = http.send(request)
        response.raise_for_status()
        return bytes(response.content)

    def _ask(self, what: str, send: Callable[[], Any], *, ahead: int = 0) -> dict[str, Any]:
        if (wait_s := self._pace.wait_s(self._timeout_s, ahead=ahead)) > 0:
            time.sleep(wait_s)
        key = " ".join(what.split()[:2]).partition("/")[0]
        self.sent[key] = self.sent.get(key, 0) + 1
        with self._calls.counting("kubernetes", key):
            return self._sent(what, send)

    def _sent(self, what: str, send: Callable[[], Any]) -> dict[str, Any]:
        try:
            return dict(send())
        except httpx2.HTTPStatusError as error:
            raise self._error(what, error.response) from error
        except (httpx2.TransportError, httpx2.StreamError) as error:
            why = str(error) or type(error).__name__
            raise BackendUnknown(f"{what}: no answer within {self._timeout_s:g} s: {why}") from error
        except (
            httpx2.DecodingError,
            msgspec.MsgspecError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            raise BackendUnknown(f"{what}: the answer is not from a Kubernetes API server: {error!r}") from error

    def _error(self, what: str, response: httpx2.Response) -> BackendError:
        code, chunks = response.status_code, f"{what}: {response.status_code} {sentence_of(response)}"
        reasons = reasons_of(response)
        match code:
            case 429 if "DisruptionBudget" in reasons:
                return Disrupting(chunks)
            case 403 if "NamespaceTerminating" in reasons:
                return Ending(chunks)
            case 404 if not is_status(response):
                return NotServed(f"{chunks}: the API server serves no such resource")
            case 404:
                return Missing(chunks)
            case 409:
                return Conflict(chunks)
            case 429:
                pause_s = retry_after_s(response)
                self._pace.hold_off(pause_s)
                return BackendBusy(f"{chunks}; healthd sends no request for {pause_s:g} s")
            case 401 | 403:
                return BackendDenied(f"{chunks}; see the ServiceAccount's roles and healthd's admission policies")
            case _ if 400 <= code < 500:
                return BackendRefused(chunks)
            case _:
                return BackendUnknown(f"{chunks}; the server may have applied it")


def compare_and_swap(what: str, once: Callable[[bool], T], pause: Callable[[float], object] = lambda _: None) -> T:
    """Call ``once``, which reads and writes, until no other client was faster. Its argument says whether it must read
    again: a recent reading serves for the first try. The argument of ``pause`` is the longest pause in seconds. Raises
    BackendBusy where other clients were faster every time."""
    for attempt in range(_SWAPS):
        try:
            return once(attempt > 0)
        except Conflict:
            pause(min(1.0, 0.02 * 2**attempt))
    raise BackendBusy(f"{what}: {_SWAPS} writes in a row lost to other clients; healthd tries again later")


def connect(
    *,
    kubeconfig: str,
    timeout_s: float,
    pace: Pace,
    environ: Mapping[str, str],
    account: str = SERVICE_ACCOUNT,
    manager: str = FIELD_MANAGER,
    calls: RequestStats | None = None,
    dry_run: bool = False,
) -> KubeApi:
    """A connection as this pod's ServiceAccount, or as ``kubeconfig`` says. No request is sent. ``manager``: the name
    that its writes bear. ``calls``: see KubeApi. ``dry_run``: the server judges every write and keeps none.

    Raises ConfigError where there is neither.
    """
    try:
        config = KubeConfig.from_file(kubeconfig).get() if kubeconfig else _in_cluster(environ, account)
    except (LightkubeError, yaml.YAMLError, OSError, LookupError, AttributeError, TypeError, ValueError) as error:
        where = kubeconfig or f"{account} and KUBERNETES_SERVICE_HOST"
        problem = f"no usable Kubernetes credentials in {where}: {error!r}; set [orchestrator.kubernetes] kubeconfig"
        raise ConfigError((problem,)) from error
    if config is None:
        raise ConfigError((f"{kubeconfig}: no current-context; name one there",))
    client = _client(config, timeout_s, manager, dry_run=dry_run)
    cluster = config.context.cluster if kubeconfig else ""
    return KubeApi(client, timeout_s=timeout_s, pace=pace, calls=calls, cluster=cluster)


def _in_cluster(environ: Mapping[str, str], account: str) -> SingleConfig:
    """As lightkube does, from ``environ`` and with a token that is read again."""
    folder, host = Path(account), environ["KUBERNETES_SERVICE_HOST"]
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


def _client(config: SingleConfig, timeout_s: float, manager: str, *, dry_run: bool) -> Client:
    user = config.user or User()
    token_file = str(config.abs_file(user.token_file)) if user.token_file else ""
    trust = verify_cluster(config.cluster, user, config.abs_file, trust_env=False)
    transport = Transport(trust, timeout_s=timeout_s, token_file=token_file)
    if token_file:
        user = User()  # the transport signs
    return Client(
        config._replace(user=user),
        timeout=httpx2.Timeout(timeout_s),
        field_manager=manager,
        dry_run=dry_run,
        trust_env=False,
        transport=transport,
    )


_CLASSES: dict[ResourceKind, Any] = {}


def _class_of(kind: ResourceKind) -> Any:
    """A class of plain dictionaries for this kind: lightkube's model of it would drop the fields that it does not know,
    and lightkube's registry hands that out wherever anything in this process has loaded it."""
    if kind not in _CLASSES:
        group, version, name, plural, is_namespaced = kind.value
        whole, status = (
            (GenericNamespacedResource, GenericNamespacedStatus)
            if is_namespaced
            else (GenericGlobalResource, GenericGlobalStatus)
        )
        info = create_api_info(group, version, name, plural)
        status_info = ApiInfo(info.resource, plural, ["get", "patch", "put"], parent=info.resource, action="status")
        status_class = type(f"{name}Status", (status,), {"_api_info": status_info})
        _CLASSES[kind] = type(name, (whole,), {"_api_info": info, "Status": status_class})
    return _CLASSES[kind]


def _where(namespace: str | None) -> dict[str, Any]:
    return {} if namespace is None else {"namespace": namespace}


def _named(kind: ResourceKind, name: str, namespace: str | None) -> str:
    return f"{kind.name.lower()} {namespace + '/' if namespace else ''}{name}"
