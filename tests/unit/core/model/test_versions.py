"""Format versions: a newer version is rejected with an action; unknown fields are accepted."""

import msgspec
import pytest

from serving.core.model.errors import InvalidValue, NewerFormat
from serving.core.model.versions import refuse_newer, refuse_newer_text


@pytest.mark.parametrize("version", [1, 2])
def test_known_version_is_accepted(version: int) -> None:
    refuse_newer("a frame", version, known=2, action="upgrade")


def test_newer_version_is_rejected_in_one_line() -> None:
    with pytest.raises(NewerFormat) as caught:
        refuse_newer("a frame", 3, known=2, action="upgrade the autoscaler")
    assert str(caught.value) == "a frame: format 3, and this program knows up to 2; upgrade the autoscaler"
    assert isinstance(caught.value, InvalidValue)


@pytest.mark.parametrize("encode", [msgspec.json.encode, msgspec.msgpack.encode])
def test_version_is_read_from_unknown_format(encode: type) -> None:
    with pytest.raises(NewerFormat):
        refuse_newer_text("a frame", encode({"version": 2, "stats": "of another type"}), known=1, action="upgrade")
    refuse_newer_text("a frame", encode({"stats": 1}), known=1, action="upgrade")


@pytest.mark.parametrize("content", [b"", b"{", b"\xc1", b"[]", b'{"version": "two"}', b'{"version": 0}'])
def test_content_without_version_is_accepted(content: bytes) -> None:
    refuse_newer_text("a frame", content, known=1, action="upgrade")
