from pathlib import Path

import pytest

from serving.net.metrics.queries import QUERY_TOKEN_FILE_VARIABLE, QueryGate, is_same

TOKEN = "t" * 43


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "query-token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.mark.parametrize("header", [f"Bearer {TOKEN}", f"bearer  {TOKEN}"])
def test_bearer_token_of_the_file_is_accepted(file: Path, header: str) -> None:
    assert QueryGate(file).objection([header]) == ""


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [""],
        ["Bearer"],
        ["Bearer "],
        [TOKEN],
        [f"Basic {TOKEN}"],
        [f"Bearer {TOKEN}x"],
        [f"Bearer {TOKEN}"] * 2,
        ["Bearer \udcff"],
    ],
)
def test_missing_or_wrong_authorization_is_rejected(file: Path, headers: list[str]) -> None:
    assert "the query token is needed" in QueryGate(file).objection(headers)


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 64])
def test_invalid_token_file_rejects_all_queries(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    gate = QueryGate(file)
    assert gate.objection([f"Bearer {content.decode('latin-1')}"]).startswith("queries are refused")
    assert (gate.view(), gate.headers()) == ("", {})


def test_missing_token_file_rejects_all_queries(tmp_path: Path) -> None:
    for gate in (QueryGate(""), QueryGate(tmp_path / "missing"), QueryGate.of_environment({})):
        assert gate.objection(["Bearer "]).startswith("queries are refused")


def test_changed_token_file_applies_immediately(file: Path) -> None:
    gate = QueryGate.of_environment({QUERY_TOKEN_FILE_VARIABLE: str(file)})
    before = gate.view()
    file.write_text("n" * 43)
    assert gate.objection([f"Bearer {TOKEN}"])
    assert gate.headers() == {"Authorization": "Bearer " + "n" * 43}
    assert gate.view() not in {before, ""}


def test_empty_secrets_are_never_equal() -> None:
    assert not is_same("", "")
    assert is_same("a", "a")
