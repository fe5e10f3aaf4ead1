import pytest

from serving.core.model.errors import Invalid
from serving.net.cluster.selectors import field_selector, label_selector

KNOWN = ("metadata.name", "status.phase")


@pytest.mark.parametrize(
    ("text", "labels", "through"),
    [
        ("", {}, True),
        ("a=b", {"a": "b"}, True),
        ("a=b", {"a": "c"}, False),
        ("a=b", {}, False),
        (" a = b , c ", {"a": "b", "c": ""}, True),
        ("a=", {"a": ""}, True),
        ("a=", {}, False),
        ("a!=b", {}, True),
        ("a!=b", {"a": "b"}, False),
        ("a in (b)", {"a": "b"}, True),
        ("a in (b,)", {"a": ""}, True),
        ("a notin (b, c)", {"a": "c"}, False),
        ("a notin (b, c)", {}, True),
        ("a", {"a": "x"}, True),
        ("!a", {"a": "x"}, False),
        ("! a", {}, True),
        ("in in (in)", {"in": "in"}, True),
        ("in", {"in": ""}, True),
        ("x.io/a-b_c=1.2", {"x.io/a-b_c": "1.2"}, True),
        ("a>3", {"a": "4"}, True),
        ("a>3", {"a": "3"}, False),
        ("a<3", {"a": "2"}, True),
        ("a<3", {"a": "text"}, False),
        ("a<3", {}, False),
    ],
)
def test_label_selector_matches_labels(text: str, labels: dict[str, str], through: bool) -> None:
    assert label_selector(text).matches(labels) is through


@pytest.mark.parametrize(
    "text",
    [
        *("=", "a=b=c", "a in", "a in b", "a in (b", ",", "a,", "a,,b", "!", "!a=b", "a b", "a(b)"),
        *("-a=b", "a=-b", "a>x", "x/y/z=a", "a=" + "b" * 64, "/a"),
    ],
)
def test_malformed_label_selector_is_rejected(text: str) -> None:
    with pytest.raises(Invalid, match="unable to parse"):
        label_selector(text)


@pytest.mark.parametrize(
    ("text", "through"),
    [
        ("", True),
        ("metadata.name=one", True),
        ("metadata.name==one,status.phase!=Failed", True),
        ("metadata.name!=one", False),
        ("status.phase=", True),
        (r"metadata.name=o\,n\=e\\", False),
    ],
)
def test_field_selector_matches_fields(text: str, through: bool) -> None:
    assert field_selector(text, KNOWN).matches({"metadata.name": "one"}) is through


def test_field_selector_value_is_unescaped() -> None:
    assert field_selector(r"metadata.name=a\,b\=c\\d", KNOWN).exact("metadata.name") == r"a,b=c\d"


def test_field_selector_with_inequality_has_no_exact_value() -> None:
    assert field_selector("metadata.name!=a", KNOWN).exact("metadata.name") is None


@pytest.mark.parametrize("text", ["spec.other=1", "metadata.name", "metadata.name=a=b", "=a", r"metadata.name=a\b"])
def test_malformed_field_selector_is_rejected(text: str) -> None:
    with pytest.raises(Invalid):
        field_selector(text, KNOWN)


def test_selector_with_more_than_50_clauses_is_rejected() -> None:
    assert label_selector(",".join(f"a{number}" for number in range(50))).matches({}) is False
    with pytest.raises(Invalid, match="at most 50 clauses, this has 51"):
        label_selector(",".join(f"a{number}" for number in range(51)))
    with pytest.raises(Invalid, match="at most 50 clauses, this has 51"):
        field_selector(",".join(["metadata.name!=a"] * 51), ["metadata.name"])


@pytest.mark.parametrize("text", ["", "a=b", "a in (b,c),d notin (e)", "a,!b", "a>3,b<4"])
def test_label_selector_preserves_its_text(text: str) -> None:
    assert label_selector(text).text == text
