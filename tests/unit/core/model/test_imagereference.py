import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.imagereference import parse_reference

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "full", "short"),
    [
        ("nginx", "docker.io/library/nginx:latest", "nginx:latest"),
        ("owner/app:1.2", "docker.io/owner/app:1.2", "owner/app:1.2"),
        ("ghcr.io/a/b/c", "ghcr.io/a/b/c:latest", "ghcr.io/a/b/c:latest"),
        ("localhost/x", "localhost/x:latest", "localhost/x:latest"),
        ("127.0.0.1:5000/x:y", "127.0.0.1:5000/x:y", "127.0.0.1:5000/x:y"),
        (f"r.example/x@{DIGEST}", f"r.example/x@{DIGEST}", f"r.example/x@{DIGEST}"),
        (f"r.example/x:1@{DIGEST}", f"r.example/x:1@{DIGEST}", f"r.example/x:1@{DIGEST}"),
    ],
)
def test_reference_expands_to_full_form(text: str, full: str, short: str) -> None:
    image_reference = parse_reference(text)
    assert (str(image_reference), image_reference.short) == (full, short)
    assert parse_reference(full) == image_reference


@pytest.mark.parametrize(
    "text", ["", "UPPER", "a b", "a//b", "a:", "a@sha256:12", "x/../y", "-a", "r.example:99999999/x", "a:b:c", "a\n"]
)
def test_invalid_reference_is_rejected(text: str) -> None:
    with pytest.raises(InvalidValue, match="is not an image's name"):
        parse_reference(text)


def test_pinned_reference_has_digest_and_no_tag() -> None:
    assert parse_reference("r.example/x:1").pinned(DIGEST) == f"r.example/x@{DIGEST}"
