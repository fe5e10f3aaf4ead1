"""Base64url without padding."""

import pytest

from serving.core.model.base64url import decode_base64url, encode_base64url


@pytest.mark.parametrize(("content", "text"), [(b"", ""), (b"\xff", "_w"), (b"\xfb\xef", "--8"), (b"abc", "YWJj")])
def test_the_padding_is_left_out(content: bytes, text: str) -> None:
    assert (encode_base64url(content), decode_base64url(text)) == (text, content)


def test_an_impossible_length_raises() -> None:
    with pytest.raises(ValueError, match="cannot be 1 more than a multiple of 4"):
        decode_base64url("a")
