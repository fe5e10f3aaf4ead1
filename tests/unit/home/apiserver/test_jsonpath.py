import pytest

from serving.home.apiserver.jsonpath import compiled

OBJECT = {
    "spec": {"n": 5, "list": ["a", "b"]},
    "metadata": {"labels": {"serving.knative.dev/x": "y"}},
    "status": {"conditions": [{"type": "A", "status": "False"}, {"type": "Ready", "status": "True"}]},
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".spec.n", 5),
        ("{.spec.n}", 5),
        ("$.spec.n", 5),
        (".metadata.labels['serving\\.knative\\.dev/x']", "y"),
        (".metadata.labels.serving\\.knative\\.dev/x", "y"),
        (".status.conditions[?(@.type=='Ready')].status", "True"),
        ('.status.conditions[?(@.type == "A")].status', "False"),
        (".status.conditions[?(@.type=='B')].status", None),
        (".spec.list[1]", "b"),
        (".spec.list[-1]", "b"),
        (".spec.list[9]", None),
        (".spec.list[*]", "a"),
        (".spec.none.deeper", None),
        (".spec.n[0]", None),
        (".spec.n[*]", None),
        (".spec.n[?(@.a=='b')]", None),
        ("", OBJECT),
    ],
)
def test_json_path_selects_its_value(path: str, expected: object) -> None:
    assert compiled(path)(OBJECT) == expected


@pytest.mark.parametrize("path", [".a..b", ".a[", "a", ".a[?(@.b > 1)]"])
def test_unsupported_json_path_is_rejected(path: str) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        compiled(path)
