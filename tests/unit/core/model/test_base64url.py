"""Base64url without padding."""

import pytest

from serving.core.model.base64url import decode_base64url, encode_base64url


@pytest.mark.parametrize(("content", "text"), [(b"", ""), (b"\xff", "_w"), (b"\xfb\xef", "--8"), (b"abc", "YWJj")])
def test_text_has_no_padding(content: bytes, text: str) -> None:
    assert (encode_base64url(content), decode_base64url(text)) == (text, content)


def test_impossible_text_length_raises_value_error() -> None:
    with pytest.raises(ValueError, match="cannot be 1 more than a multiple of 4"):
        decode_base64url("a")
