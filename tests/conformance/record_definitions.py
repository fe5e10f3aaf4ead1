"""Records a real API server's responses to all definitions: ``python -m tests.conformance.record_definitions KUBECONFIG``.

Each definition is applied as a server-side dry run, so the server checks its schema, that its rules compile, and the
cost of those rules, and nothing is left there. Any Kubernetes will do (kind, minikube). The script also sends
definitions with one mistake each, and fails if the server takes one. It writes ``data/definitions.json``.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from serving.home.schemas.crds import crd_folder

DATA = Path(__file__).with_name("data") / "definitions.json"
DEFINITIONS = sorted(
    [*crd_folder().glob("*.yaml"), *crd_folder().parent.glob("components/*/crd/*.yaml")], key=lambda path: path.name
)
"""The files of all definitions: of ``config/crd`` and of the components."""
ACCEPTED = "accepted"
_TEXT = {"type": "string", "maxLength": 5}
_UNBOUND = {"type": "array", "items": {"type": "string"}}


def _rules(*texts: str) -> dict[str, Any]:
    return {"x-kubernetes-validations": [{"rule": text} for text in texts]}


# Schemas of ``spec`` that a server refuses: mistakes that no check of this project finds.
MISTAKES: dict[str, Any] = {
    "a rule that costs too much": {
        "properties": {"a": _UNBOUND},
        **_rules("self.a.all(x, self.a.exists_one(y, x == y))"),
    },
    "a rule about an unknown field": {"properties": {"a": _TEXT}, **_rules("self.b == ''")},
    "the same rule twice": {"properties": {"a": _TEXT}, **_rules("self.a != ''", "self.a != ''")},
    "a property without a type": {"properties": {"a": {}}},
}


def digest(definition: str) -> str:
    """The hash of a definition without its comments and descriptions, which no server validates."""
    bare = _without_descriptions(yaml.safe_load(definition))
    return hashlib.sha256(json.dumps(bare, sort_keys=True).encode()).hexdigest()


def _without_descriptions(value: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, list):
        return [_without_descriptions(element) for element in value]
    if not isinstance(value, dict):
        return value
    # A field may be named "description", too; its value is a schema.
    return {
        key: _without_descriptions(each_value)
        for key, each_value in value.items()
        if not (key == "description" and isinstance(each_value, str))
    }


def _with_mistake(spec: dict[str, Any]) -> str:
    schema = {"type": "object", "properties": {"spec": {"type": "object", **spec}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "Teapot", "plural": "teapots", "singular": "teapot"}
    return json.dumps(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "teapots.example.com"},
            "spec": {"group": "example.com", "names": names, "scope": "Namespaced", "versions": [version]},
        }
    )


def _kubectl(kubeconfig: str, *words: str, stdin: str = "") -> tuple[bool, str]:
    done = subprocess.run(
        ["kubectl", f"--kubeconfig={kubeconfig}", *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode == 0, (done.stdout if done.returncode == 0 else done.stderr).strip()


def _verdict(kubeconfig: str, definition: str) -> str:
    words = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")
    is_taken, text = _kubectl(kubeconfig, *words, stdin=definition)
    return ACCEPTED if is_taken else text


def record(kubeconfig: str) -> None:
    """Send every definition and every mistake, and write the responses. Raises ``SystemExit`` at an unexpected one."""
    is_there, version = _kubectl(kubeconfig, "version", "-o", "json")
    if not is_there:
        raise SystemExit(version)
    definitions = {
        path.name: {"sha256": digest(path.read_text()), "answer": _verdict(kubeconfig, path.read_text())}
        for path in DEFINITIONS
    }
    mistakes = {name: _verdict(kubeconfig, _with_mistake(spec)) for name, spec in MISTAKES.items()}
    if ACCEPTED in mistakes.values():
        raise SystemExit(f"the server takes mistakes: {mistakes}")
    server = json.loads(version)["serverVersion"]["gitVersion"]
    result = {"server": server, "definitions": definitions, "mistakes": mistakes}
    DATA.write_text(json.dumps(result, indent=2) + "\n")
    sys.stdout.write(f"{len(definitions)} definitions in {DATA}\n")
    if refused := [name for name, definition in definitions.items() if definition["answer"] != ACCEPTED]:
        raise SystemExit(f"refused: {', '.join(refused)}")


if __name__ == "__main__":
    record(sys.argv[1])
