import io
import json
from pathlib import Path

import pytest

from serving.core.model.errors import SettingsError
from serving.tools.cli.services.manifests import read_manifests

SERVICE = "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata:\n  name: hello\n"
CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: words\ndata:\n  day: 2026-11-21\n"


def written(folder: Path, **texts: str) -> str:
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    return str(folder)


def problems_of(*paths: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read_manifests(paths)
    return [str(problem) for problem in caught.value.problems]


def test_manifests_are_read_with_file_and_line_and_dependencies_first(tmp_path: Path) -> None:
    path = written(tmp_path, a=f"# a comment\n---\n{SERVICE}---\n---\n{CONFIG_MAP}", b=SERVICE)
    (tmp_path / "notes.txt").write_text("no manifest")
    assert [(manifest.kind.name, manifest.name, manifest.where) for manifest in read_manifests([path]).manifests] == [
        ("ConfigMap", "words", f"{tmp_path}/a.yaml:9"),
        ("Service", "hello", f"{tmp_path}/a.yaml:3"),
        ("Service", "hello", f"{tmp_path}/b.yaml:1"),
    ]


def test_yaml_date_is_read_as_text(tmp_path: Path) -> None:
    (manifest,) = read_manifests([written(tmp_path, a=CONFIG_MAP)]).manifests
    assert manifest.body["data"] == {"day": "2026-11-21"}


def test_each_item_of_a_list_is_a_manifest(tmp_path: Path) -> None:
    items = [
        {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}} for kind, name in (("Secret", "s"), ("Pod", "p"))
    ]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    manifests = read_manifests([written(tmp_path, a=text)]).manifests
    assert [manifest.body for manifest in manifests] == items
    assert [manifest.where for manifest in manifests] == [f"{tmp_path}/a.yaml:1 items[{at}]" for at in (0, 1)]


def test_invalid_item_of_a_list_is_reported_with_its_index(tmp_path: Path) -> None:
    text = '{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}, 3]}'
    assert problems_of(written(tmp_path, a=text)) == [
        f"{tmp_path}/a.yaml:1 items[1]: 3 is not an object; expected a manifest: apiVersion, kind and metadata.name"
    ]


def test_manifest_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(SERVICE))
    assert [manifest.where for manifest in read_manifests(["-"]).manifests] == ["standard input:1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: c: d", ":2: not YAML: mapping values are not allowed"),
        ("a: !!python/name:os.system x", ":1: not YAML: could not determine a constructor"),
        ("kind: Service", ":1: apiVersion is missing or not a text"),
        ("apiVersion: v1\nkind: [x]", ":1: kind is missing or not a text"),
        ("apiVersion: v1\nkind: Secret\nmetadata: {name: 3}", ":1: metadata.name is missing or not a text"),
        ("a: " + "[" * 100_000, ":1: not YAML: nested too deep"),
        ("kind: Service\nkind: Route", ":2: not YAML: duplicate key 'kind'"),
        ("a: !!binary aGk=", ":1: not YAML: 'aGk=' is not a JSON value"),
        ("a: !!set {b, c}", ":1: not YAML: "),
        ("a: 1\nb: -.inf", ":2: not YAML: '-.inf' is not a JSON value"),
        (
            "a: {{ .Values.a }}",
            ":1: not YAML: found unhashable key; expected YAML or JSON, rendered as `helm template`",
        ),
        (
            "services: {web: {image: a}}",
            ":1: apiVersion is missing or not a text; expected a manifest: apiVersion, kind and metadata.name; `serving convert FILE`",
        ),
        ("", ": it is empty; expected a manifest"),
        ("---\n# nothing\n---\n", ": it is empty; expected a manifest"),
    ],
)
def test_an_invalid_manifest_is_reported_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    (problem,) = problems_of(written(tmp_path, a=text))
    assert problem.startswith(f"{tmp_path}/a.yaml{message}")


def test_all_unreadable_paths_are_reported(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    problems = problems_of(
        str(tmp_path / "no"), "https://example.com/a.yaml", str(tmp_path / "empty"), str(tmp_path / "b.yaml")
    )
    assert [problem.partition(";")[0] for problem in problems] == [
        f"{tmp_path}/no: not readable: No such file or directory",
        "https://example.com/a.yaml: nothing is fetched from elsewhere",
        f"{tmp_path}/empty: no manifest in it",
        f"{tmp_path}/b.yaml: not readable: not a text file",
    ]


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("serving.knative.dev/v1alpha1 Service", "apiVersion serving.knative.dev/v1, kind Service"),
        ("serving.knative.dev/v1 Servce", "apiVersion serving.knative.dev/v1, kind Service"),
        ("apps/v2 Deployment", "apiVersion apps/v1, kind Deployment"),
        ("app/v1 Deployment", "apiVersion apps/v1, kind Deployment"),
        ("run.googleapis.com/v1 Job", "a Service: jobs of Cloud Run do not run here"),
        ("example.com/v1 Frob", "a kind of `kubectl api-resources`"),
        ("extensions/v1beta1 Ingress", "apiVersion networking.k8s.io/v1, kind Ingress"),
    ],
)
def test_unsupported_kind_is_reported_and_other_manifests_are_read(tmp_path: Path, head: str, expected: str) -> None:
    version, name = head.split()
    text = f"apiVersion: {version}\nkind: {name}\nmetadata: {{name: other}}\n---\n{CONFIG_MAP}"
    files = read_manifests([written(tmp_path, a=text)])
    assert [manifest.name for manifest in files.manifests] == ["words"]
    (problem,) = files.foreign
    assert problem.what == f"{name}/other: {head} is not served here"
    assert problem.where == f"{tmp_path}/a.yaml:1"
    assert problem.expected.startswith(expected)
