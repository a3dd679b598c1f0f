"""Makes what follows from something else: the chart's copies of policies, alert rules and CustomResourceDefinition, its
schema, static.yaml and uninstall.yaml.

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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from healthd.config.json_schema import FLAGS, config_schema  # noqa: E402
from healthd.config.match import NAME as MATCH  # noqa: E402
from healthd.core.check import discover  # noqa: E402 - runs from a checkout in which nothing is installed

KUBERNETES = ROOT / "packaging" / "kubernetes"
CHART = ROOT / "packaging" / "helm" / "healthd"
CRD = KUBERNETES / "nodehealths.yaml"
RULES = ROOT / "packaging" / "prometheus" / "rules.yaml"
STATIC, UNINSTALL = KUBERNETES / "static.yaml", KUBERNETES / "uninstall.yaml"
SCHEMA = CHART / "values.schema.json"
NAMESPACE = "healthd"
KUBE_VERSION = "1.34.0"
"""What static.yaml is for: the admission policies need 1.30."""

NOTE = """\
# Made by packaging/kubernetes/render.py from packaging/helm/healthd with its default values. Change that, and run it
# again. To change a value without Helm: kubectl kustomize, or `helm template` once with values of your own.
"""

Schema = dict[str, Any]


def main() -> int:
    """Write what is out of date, or only say so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = []
    for path, text in (*copies().items(), (SCHEMA, values_schema())):
        stale += _settled(path, text, check=check)
    program = helm()
    stale += _settled(STATIC, static(program), check=check)
    stale += _settled(UNINSTALL, uninstall(program), check=check)
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
    from tests.live.kubernetes.find_binaries import program

    return str(program("helm", lambda text: print(text, file=sys.stderr)))  # noqa: T201 - a script


def copies() -> dict[Path, str]:
    """The policies, the alert rules and the CustomResourceDefinition as the chart carries them: Helm reads no file
    outside of a chart."""
    sources = sorted((KUBERNETES / "policies").glob("*.yaml"))
    found = {CHART / "policies" / path.name: path for path in sources}
    found[CHART / "files" / RULES.name] = RULES
    found[CHART / "crd" / CRD.name] = CRD
    return {copy: path.read_text(encoding="utf-8") for copy, path in found.items()}


def static(program: str) -> str:
    """The chart with its default values, as one file. The image in it is to be replaced."""
    return NOTE + _rendered(program, "--no-hooks")


def uninstall(program: str) -> str:
    """The chart's hook before its deletion, as one file: it returns every node to service."""
    return NOTE + _rendered(program, "--show-only", "templates/uninstall.yaml")


def _rendered(program: str, *words: str) -> str:
    argv = [program, "template", "healthd", str(CHART), "--namespace", NAMESPACE, "--kube-version", KUBE_VERSION]
    done = subprocess.run(
        [*argv, "--set", "namespace.create=true,image.repository=healthd", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode != 0:
        raise SystemExit(f"helm template: {done.stderr}")
    return _without_helm(done.stdout)


def _without_helm(text: str) -> str:
    """No label or annotation says that Helm manages what kubectl applies."""
    ours = re.compile(r"^ *(app\.kubernetes\.io/managed-by: Helm|helm\.sh/\S+: .*|app\.kubernetes\.io/instance: .*)$")
    left = "".join(f"{line.rstrip()}\n" for line in text.splitlines() if not ours.match(line))
    return re.sub(r"^( *)annotations:\n(?!\1 )", "", left, flags=re.MULTILINE)


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
    """The definition `config`, and those that it refers to: the schema of healthd's own files, turned into values."""
    schema = config_schema({name: check.settings for name, check in discover().items()})
    matches = {"type": ["object", "null"], "additionalProperties": _value(schema["properties"].pop(MATCH)["items"])}
    config = {"type": "object", "additionalProperties": False, "properties": {**schema["properties"], MATCH: matches}}
    return {**{name: _value(part) for name, part in schema["definitions"].items()}, "config": config}


def _value(part: Schema) -> Schema:
    """A null removes a setting of the chart. A list of tables with names in a file is a table of them here."""
    match part:
        case {"$ref": _}:
            return part
        case {"properties": properties}:
            within = {name: _value(each) for name, each in properties.items()}
            return {"type": ["object", "null"], "additionalProperties": False, "properties": within}
        case {"items": {"properties": {"name": _, **others}}}:
            return {"type": ["object", "null"], "additionalProperties": _value({"properties": others})}
        case {"type": kind} if "enum" not in part:
            return {**_draft_7(part), "type": [kind, "null"]}
        case _:
            return {"anyOf": [_draft_7(part), {"type": "null"}]}


def _draft_7(part: Any) -> Any:
    """As the chart's schema has limits, and without defaults and their docstrings, which are healthd's to say."""
    match part:
        case dict():
            kept = {word: _draft_7(each) for word, each in part.items() if word not in ("default", "description")}
            limits = {word: kept.pop(FLAGS[word]) for word in FLAGS if word in kept}
            return kept | limits
        case list():
            return [_draft_7(each) for each in part]
        case _:
            return part


if __name__ == "__main__":
    sys.exit(main())
