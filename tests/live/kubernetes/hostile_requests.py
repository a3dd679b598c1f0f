"""Every request that an agent's token could try against what is not its own, made from what the server itself says:
its resources and their verbs, the rules that are bound to the account, and the objects as they stand.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from tests.live.kubernetes.api_client import ApiClient, PatchKind

RBAC = "/apis/rbac.authorization.k8s.io/v1"
EVERYBODY = frozenset({"system:authenticated", "system:serviceaccounts"})
Path = tuple[str, ...]

_SERVERS = frozenset({"uid", "resourceVersion", "creationTimestamp", "generation", "name", "namespace", "selfLink"})
"""Of the metadata: what the server sets, or refuses to have changed by anybody."""


class Resource(Struct, frozen=True, kw_only=True):
    """One resource of the server, or a subresource such as ``pods/eviction``. ``root``: the path of its version."""

    group: str
    root: str
    name: str
    verbs: tuple[str, ...]
    namespaced: bool

    def path(self, namespace: str, name: str = "") -> str:
        """Of the collection, or of the object of this name."""
        plural, _, sub = self.name.partition("/")
        within = f"/namespaces/{namespace}" if self.namespaced else ""
        whole = name or ("victim" if sub else "")
        return f"{self.root}{within}/{plural}{f'/{whole}' if whole else ''}{f'/{sub}' if sub else ''}"


class Right(Struct, frozen=True, kw_only=True):
    """One rule that is bound to the account. ``namespace``: "" for everywhere."""

    namespace: str
    groups: tuple[str, ...]
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...]

    def covers(self, resource: Resource, verb: str, namespace: str, name: str) -> bool:
        """Whether it allows this."""
        return (
            self.namespace in ("", namespace)
            and bool({resource.group, "*"} & set(self.groups))
            and bool({resource.name, "*"} & set(self.resources))
            and bool({verb, "*"} & set(self.verbs))
            and (not self.names or name in self.names)
        )


class Change(Struct, frozen=True, kw_only=True):
    """One patch of one object, and what it aims at."""

    at: Path
    kind: PatchKind
    body: Any


def resources(admin: ApiClient) -> list[Resource]:
    """Every resource that the server serves, with its subresources."""
    groups = admin.get("/apis").must()["groups"]
    roots = [("", "/api/v1")]
    roots += [(each["name"], f"/apis/{version['groupVersion']}") for each in groups for version in each["versions"]]
    found = []
    for group, root in roots:
        for each in admin.get(root).must()["resources"]:
            verbs = tuple(each["verbs"])
            found.append(
                Resource(group=group, root=root, name=each["name"], verbs=verbs, namespaced=each["namespaced"])
            )
    return found


def rights_of(admin: ApiClient, namespace: str, account: str) -> list[Right]:
    """The rules that are bound to a ServiceAccount by its name, as the server has them."""
    return list(_rights(admin, lambda each: (each["kind"], each["name"]) == ("ServiceAccount", account)))


def rights_of_everybody(admin: ApiClient) -> list[Right]:
    """The rules that are bound to every account that there is: what Kubernetes itself gives them."""
    return list(_rights(admin, lambda each: each["kind"] == "Group" and each["name"] in EVERYBODY))


def _rights(admin: ApiClient, is_meant: Any) -> Iterator[Right]:
    for kind in ("clusterrolebindings", "rolebindings"):
        for binding in admin.get(f"{RBAC}/{kind}").must()["items"]:
            if not any(is_meant(each) for each in binding.get("subjects") or []):
                continue
            within, ref = binding["metadata"].get("namespace", ""), binding["roleRef"]
            role = f"namespaces/{within}/roles" if ref["kind"] == "Role" else "clusterroles"
            for rule in admin.get(f"{RBAC}/{role}/{ref['name']}").must()["rules"] or []:
                yield Right(
                    namespace=within,
                    groups=tuple(rule.get("apiGroups", ())),
                    resources=tuple(rule.get("resources", ())),
                    verbs=tuple(rule["verbs"]),
                    names=tuple(rule.get("resourceNames", ())),
                )


def request_of(verb: str, resource: Resource, namespace: str, name: str) -> tuple[str, str, Any]:
    """Method, path and body by which a verb is tried."""
    plural, one = resource.path(namespace), resource.path(namespace, name)
    match verb:
        case "get":
            return "GET", one, None
        case "list":
            return "GET", plural, None
        case "watch":
            return "GET", f"{plural}?watch=1&timeoutSeconds=1", None
        case "create":
            return "POST", one if "/" in resource.name else plural, {}
        case "update":
            return "PUT", one, {}
        case "patch":
            return "PATCH", one, {"metadata": {"labels": {"healthd.io/hostile": "1"}}}
        case "delete":
            return "DELETE", one, None
        case "deletecollection":
            return "DELETE", plural, None
    raise AssertionError(f"the server has a verb that is not tried: {verb} of {resource.name}")


# ---------------------------------------------------------------------------------------------------------------------
# the changes of one object


def changes(there: Mapping[str, Any]) -> Iterator[Change]:
    """Each field of the object set otherwise, removed, and each map and list with one entry more or less; by each kind
    of patch."""
    for at, value in _places(there, ()):
        for other in _others(at, value):
            yield Change(at=at, kind="merge", body=_nested(at, other))
            yield Change(at=at, kind="strategic", body=_nested(at, other))
            yield Change(at=at, kind="json", body=[_operation(there, at, other)])
            if other is not None:
                head = {key: there[key] for key in ("apiVersion", "kind")}
                yield Change(at=at, kind="apply", body={**head, **_nested(at, other)})


def _places(value: Any, at: Path) -> Iterator[tuple[Path, Any]]:
    """Every field with what stands there. A list is one field: of its entries the first and last are changed in it."""
    if at:
        yield at, value
    if isinstance(value, Mapping):
        for key, each in value.items():
            if not (at == () and key in ("apiVersion", "kind")) and not (at == ("metadata",) and key in _SERVERS):
                yield from _places(each, (*at, key))


def _others(at: Path, value: Any) -> Sequence[Any]:
    match value:
        case bool():
            return (not value, None)
        case int() | float():
            return (value + 1, None)
        case str():
            return (f"{value}1", "healthd.io/hostile", None)
        case list():
            first = [_changed(value[0]), *value[1:]] if value else []
            return ([], value[1:], value[:-1], first, None) if value else (None,)
        case Mapping():
            return ({**value, "example.com/hostile": "1"}, {"healthd.io/hostile": "1"}, None) if at != () else ()
    return ()


def _changed(entry: Any) -> Any:
    if isinstance(entry, Mapping):
        changed = copy.deepcopy(dict(entry))
        key = next(key for key, value in reversed(list(changed.items())) if isinstance(value, str))
        return {**changed, key: f"{changed[key]}1"}
    return f"{entry}1"


def _nested(at: Path, value: Any) -> dict[str, Any]:
    for key in reversed(at):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def _operation(there: Mapping[str, Any], at: Path, value: Any) -> dict[str, Any]:
    path = "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in at)
    return {"op": "remove", "path": path} if value is None else {"op": "replace", "path": path, "value": value}
