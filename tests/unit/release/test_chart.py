"""The objects of the Helm chart.

They equal those of ``serving install``. Without helm, ``evaluated`` renders the templates.
"""

import functools
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from release.chart import chart_files, chart_version
from serving.tools.cli.client.tree import OPTIONAL_KINDS, InstallOptions, component_names, objects_of, tree_folder
from tests.unit.config.test_tree import LOADER, by_name, named

CONFIG = tree_folder()
REGISTRY = "registry.example/team"
OPTIONAL_API_VERSIONS = [f"admissionregistration.k8s.io/v1/{kind}" for kind in sorted(OPTIONAL_KINDS)]
_ACTION = re.compile(r"\{\{-? (.*?) \}\}")


@functools.cache
def chart() -> dict[str, str]:
    """The files of the chart."""
    return chart_files(CONFIG, "0.2.0", image_tag="0.2.0")


def camel(name: str) -> str:
    first, *rest = name.split("-")
    return first + "".join(map(str.capitalize, rest))


def evaluated(text: str, values: dict[str, Any]) -> str:
    """Render a template; only the actions that the chart uses are supported."""
    out: list[str] = []
    # For each open block: whether any branch has matched, and whether the present branch has.
    blocks: list[tuple[bool, bool]] = []
    for line in text.splitlines():
        action = re.fullmatch(r"\{\{-? (if|else if|else|end|with|fail)(?: (.*?))? \}\}", line.strip())
        word, condition = (action[1], action[2]) if action else ("", "")
        if word in {"if", "with"}:
            holds = word == "if" and _holds(condition or "", values)
            blocks.append((holds, holds))
        elif word in {"else", "else if"}:
            has_matched, _ = blocks.pop()
            holds = not has_matched and (word == "else" or _held(condition or "", values))
            blocks.append((has_matched or holds, holds))
        elif word == "end":
            blocks.pop()
        elif all(holds for _, holds in blocks):
            out.append(_ACTION.sub(lambda match_: _written(match_[1], values), line))
    assert not blocks
    return "".join(f"{line}\n" for line in out)


def _holds(condition: str, values: dict[str, Any]) -> bool:
    if condition.startswith(".Capabilities.APIVersions.Has"):
        return condition.split('"')[1] not in values.get("absent", ())
    return all(_held(name, values) for name in condition.split() if name != "and")


def _held(name: str, values: dict[str, Any]) -> bool:
    result: Any = {"Values": values}
    for part in name.removeprefix(".").split("."):
        result = result[part]
    return bool(result)


def _written(expression: str, values: dict[str, Any]) -> str:
    if expression.startswith('include "serving.image"'):
        name = expression.rpartition("(list . ")[2].strip('"()')
        return f"{REGISTRY}/{name}:0.2.0"
    plain = {'"{{"': "{{", ".Release.Namespace": "mine"}
    return plain.get(expression) or str(values[expression.removeprefix(".Values.")])


def by_evaluation(values: dict[str, Any], folder: Path) -> Iterator[dict[str, Any]]:
    del folder
    chosen = yaml.safe_load(chart()["values.yaml"])
    chosen |= {**values, "components": {**chosen["components"], **values["components"]}}
    for name, text in chart().items():
        if name.startswith("templates/") and name.endswith(".yaml") and name != "templates/validate.yaml":
            yield from filter(None, yaml.load_all(evaluated(text, chosen), Loader=LOADER))


def by_helm(values: dict[str, Any], folder: Path) -> Iterator[dict[str, Any]]:
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("helm is not installed")
    for name, text in chart().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "mine.json").write_text(json.dumps(values))
    versions = [f"--api-versions={version}" for version in OPTIONAL_API_VERSIONS]
    command = [helm, "template", "x", str(folder), "-n", "mine", "-f", str(folder / "mine.json"), *versions]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    yield from filter(None, yaml.load_all(done.stdout, Loader=LOADER))


def normal(resource: dict[str, Any]) -> dict[str, Any]:
    if resource["kind"] == "CustomResourceDefinition":
        assert resource["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}, "users' objects stay"
    return by_name(resource)


@pytest.mark.parametrize("render", [by_evaluation, by_helm])
@pytest.mark.parametrize(
    ("components", "others"),
    [
        ((), {}),
        (("tls", "gateway"), {"domain": "apps.example.org"}),
        (("placement", "placement-binder"), {"priorityClassName": "high"}),
        (tuple(component_names(CONFIG)), {"domain": "apps.example.org", "priorityClassName": "high"}),
    ],
)
def test_chart_renders_objects_of_serving_install(
    tmp_path: Path,
    components: tuple[str, ...],
    others: dict[str, str],
    render: Callable[[dict[str, Any], Path], Iterator[dict[str, Any]]],
) -> None:
    values = {"registry": REGISTRY, "components": {camel(name): True for name in components}, **others}
    wanted = InstallOptions(
        registry=REGISTRY,
        namespace="mine",
        components=components,
        domain=others.get("domain", ""),
        priority_class=others.get("priorityClassName", ""),
    )
    expected = {
        named(resource): by_name(resource) for resource in objects_of(CONFIG, wanted) if resource["kind"] != "Namespace"
    }
    result = {named(resource): normal(resource) for resource in render(values, tmp_path)}
    assert result.keys() == expected.keys()
    for key, value in expected.items():
        assert result[key] == value, key


def test_server_without_policy_kinds_gets_all_other_objects(tmp_path: Path) -> None:
    values = {"registry": REGISTRY, "components": {}, "absent": OPTIONAL_API_VERSIONS}
    result = [named(resource) for resource in by_evaluation(values, tmp_path)]
    expected = [
        named(resource)
        for resource in objects_of(CONFIG, InstallOptions(registry=REGISTRY, namespace="mine"))
        if resource["kind"] not in {"Namespace", *OPTIONAL_KINDS}
    ]
    assert sorted(result) == sorted(expected)


def test_validation_template_requires_placement_for_placement_binder() -> None:
    assert (
        "if and .Values.components.placementBinder (not .Values.components.placement)"
        in chart()["templates/validate.yaml"]
    )


def test_development_version_becomes_semantic_version() -> None:
    assert chart_version("0.2.0.dev531+gecfa0493") == "0.2.0-dev.531+gecfa0493"
    assert chart_version("0.2.0") == "0.2.0"
