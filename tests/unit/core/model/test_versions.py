"""Versions of formats: a newer one is refused with what to do, an unknown field is not."""

import msgspec
import pytest

from serving.core.model.errors import InvalidValue, NewerFormat
from serving.core.model.versions import refuse_newer, refuse_newer_text


@pytest.mark.parametrize("version", [1, 2])
def test_a_known_version_passes(version: int) -> None:
    refuse_newer("a frame", version, known=2, action="upgrade")


def test_a_newer_version_is_refused_in_one_line() -> None:
    with pytest.raises(NewerFormat) as caught:
        refuse_newer("a frame", 3, known=2, action="upgrade the autoscaler")
    assert str(caught.value) == "a frame: format 3, and this program knows up to 2; upgrade the autoscaler"
    assert isinstance(caught.value, InvalidValue)


@pytest.mark.parametrize("encode", [msgspec.json.encode, msgspec.msgpack.encode])
def test_the_version_is_found_in_a_form_that_is_otherwise_unknown(encode: type) -> None:
    with pytest.raises(NewerFormat):
        refuse_newer_text("a frame", encode({"version": 2, "stats": "of another type"}), known=1, action="upgrade")
    refuse_newer_text("a frame", encode({"stats": 1}), known=1, action="upgrade")


@pytest.mark.parametrize("content", [b"", b"{", b"\xc1", b"[]", b'{"version": "two"}', b'{"version": 0}'])
def test_what_has_no_version_is_left_to_the_decoder(content: bytes) -> None:
    refuse_newer_text("a frame", content, known=1, action="upgrade")
