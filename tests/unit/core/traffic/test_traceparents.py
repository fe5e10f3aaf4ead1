import pytest

from serving.core.traffic.traceparents import read_traceparent

SAMPLED = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        (SAMPLED, True),
        (SAMPLED.replace(b"00-0a", b"cc-0a", 1) + b"-more", True),
        (SAMPLED + b"-more", False),
        (SAMPLED.replace(b"00-0a", b"ff-0a", 1), False),
        (SAMPLED.upper(), False),
        (b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01", False),
        (b"00-0af7651916cd43dd8448eb211c80319c-" + b"0" * 16 + b"-01", False),
        (b"00-0af7", False),
        (b"", False),
    ],
)
def test_traceparent_is_validated_by_w3c_rules(text: bytes, is_valid: bool) -> None:
    assert (read_traceparent(text) is not None) is is_valid
