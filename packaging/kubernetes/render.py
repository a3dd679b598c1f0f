"""Makes what follows from something else: the chart's copies of policies and alert rules, its schema, and static.yaml.

    python packaging/kubernetes/render.py            write them
    python packaging/kubernetes/render.py --check    write nothing; exit 1 and name what is out of date

The schema of the value `config` is made from the classes of healthd's own configuration, so that `helm install` refuses
a misspelt key before a pod does. static.yaml is the chart with its default values, for clusters without Helm. Needs
helm: the one in the variable HELM, in PATH, or built with Go as for the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import msgspec  # noqa: E402 - runs from a checkout in which nothing is installed

from healthd.check import discover  # noqa: E402
from healthd.config.leaves import allowed_table  # noqa: E402
from healthd.config.match import NOT_IN_A_MATCH  # noqa: E402
from healthd.config.schema import MatchSection  # noqa: E402

KUBERNETES = ROOT / "packaging" / "kubernetes"
CHART = ROOT / "packaging" / "helm" / "healthd"
RULES = ROOT / "packaging" / "prometheus" / "rules.yaml"
STATIC, SCHEMA = KUBERNETES / "static.yaml", CHART / "values.schema.json"
NAMESPACE = "healthd"
KUBE_VERSION = "1.34.0"
"""What static.yaml is for: the admission policies need 1.30."""

NOTE = """\
# Made by packaging/kubernetes/render.py from packaging/helm/healthd with its default values. Change that, and run it
# again. To change a value without Helm: kubectl kustomize, or `helm template` once with values of your own.
"""

Schema = dict[str, Any]
_NAMED = re.compile(r"(^|\.)(policy\.rule|budget\.scope|controller\.drain|kernel\.rules\.rules|plugin\.run\.plugins)$")


def main() -> int:
    """Write what is out of date, or only say so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = []
    for path, text in (*copies().items(), (SCHEMA, values_schema())):
        stale += _settled(path, text, check=check)
    stale += _settled(STATIC, static(helm()), check=check)
    for path in stale:
        print(f"{'out of date' if check else 'written'}: {path.relative_to(ROOT)}", file=sys.stderr)  # noqa: T201 - a script
    return 1 if check and stale else 0


def _settled(path: Path, text: str, *, check: bool) -> list[Path]:
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return []
    if not check:
        path.write_text(text, encoding="utf-8")
    return [path]


def helm() -> str:
    """The helm to use. Raises Unavailable where there is none, and none can be built."""
    found = os.environ.get("HELM") or shutil.which("helm")
    if found:
        return found
    from tests.integration.kubernetes.find_binaries import program

    return str(program("helm", lambda text: print(text, file=sys.stderr)))  # noqa: T201 - a script


def copies() -> dict[Path, str]:
    """The policies and the alert rules as the chart carries them: Helm reads no file outside of a chart."""
    sources = sorted((KUBERNETES / "policies").glob("*.yaml"))
    found = {CHART / "policies" / path.name: path for path in sources}
    found[CHART / "files" / RULES.name] = RULES
    return {copy: path.read_text(encoding="utf-8") for copy, path in found.items()}


def static(program: str) -> str:
    """The chart with its default values, as one file."""
    argv = [program, "template", "healthd", str(CHART), "--namespace", NAMESPACE, "--kube-version", KUBE_VERSION]
    done = subprocess.run(
        [*argv, "--set", "namespace.create=true"], check=False, capture_output=True, text=True, timeout=120
    )
    if done.returncode != 0:
        raise SystemExit(f"helm template: {done.stderr}")
    return NOTE + _without_helm(done.stdout)


def _without_helm(text: str) -> str:
    """No label or annotation says that Helm manages what kubectl applies."""
    ours = re.compile(r"^ *(app\.kubernetes\.io/managed-by: Helm|helm\.sh/\S+: .*|app\.kubernetes\.io/instance: .*)$")
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines() if not ours.match(line))


# ---------------------------------------------------------------------------------------------------------------------
# the schema of the values


def values_schema() -> str:
    """values.schema.json: the part of the chart's own values as it stands there, and `config` from the code."""
    schema = json.loads((CHART / "values.schema.base.json").read_text(encoding="utf-8"))
    definitions = {**schema.pop("definitions"), **config_definitions()}
    rows = [f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in sorted(definitions.items())]
    comment = "Made by packaging/kubernetes/render.py from values.schema.base.json and healthd's configuration."
    head = json.dumps({"$comment": comment, **schema}, indent=1).removesuffix("\n}")
    return f'{head},\n "definitions": {{\n' + ",\n".join(rows) + "\n }\n}\n"


def config_definitions() -> Schema:
    """The definition `config`, and those that it refers to: sections, checks, rows that several tables share."""
    found: Schema = {}
    table = allowed_table({name: check.settings for name, check in discover().items()})
    for name, part in table["checks"].items():
        found[f"check.{name}"] = _table(part, ("checks", name), found)
    checks = {name: _ref(f"check.{name}") for name in table["checks"]}
    for name, part in table.items():
        found[f"section.{name}"] = _nullable(_object(checks)) if name == "checks" else _table(part, (name,), found)
    sections = {name: _ref(f"section.{name}") for name in table}
    conditions = {name: _leaf(hint, found) for name, hint in _hints(MatchSection).items()}
    there = {name: part for name, part in sections.items() if name not in NOT_IN_A_MATCH}
    found["match"] = _nullable(_object({**there, **conditions}))
    matches = {"type": ["object", "null"], "additionalProperties": _ref("match")}
    found["config"] = _object({**sections, "match": matches})
    return found


def _ref(name: str) -> Schema:
    return {"$ref": f"#/definitions/{name}"}


def _table(part: Any, path: tuple[str, ...], definitions: Schema) -> Schema:
    if isinstance(part, Mapping):
        return _nullable(_object({name: _table(each, (*path, name), definitions) for name, each in part.items()}))
    if _NAMED.search(".".join(path)):
        row = get_args(part)[0]
        return _nullable({"type": "object", "additionalProperties": _nullable(_row(row, definitions))})
    return _leaf(part, definitions)


def _row(cls: type, definitions: Schema) -> Schema:
    """A row of a list of tables; its name is the key in the values."""
    given = {name: _leaf(hint, definitions) for name, hint in _hints(cls).items() if name != "name"}
    return _object(given)


def _hints(cls: type) -> dict[str, Any]:
    assert is_dataclass(cls)  # noqa: S101 - narrows the type
    hints = get_type_hints(cls, include_extras=True)
    return {item.name: hints[item.name] for item in fields(cls)}


def _leaf(hint: Any, definitions: Schema) -> Schema:
    (schema,), parts = msgspec.json.schema_components((hint,), ref_template="#/definitions/{name}")
    definitions.update({name: _portable(part) for name, part in parts.items()})
    return _nullable(_portable(schema))


def _portable(schema: Any) -> Any:
    r"""Without Python's ``\Z`` and without defaults, which are healthd's to say."""
    match schema:
        case dict():
            kept = {key: _portable(value) for key, value in schema.items() if key not in ("default", "title")}
            return {**kept, "pattern": kept["pattern"].replace(r"\Z", "$")} if "pattern" in kept else kept
        case list():
            return [_portable(each) for each in schema]
        case _:
            return schema


def _object(properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _nullable(schema: Schema) -> Schema:
    """A null takes away what the chart sets."""
    if isinstance(schema.get("type"), str) and "enum" not in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


if __name__ == "__main__":
    sys.exit(main())
