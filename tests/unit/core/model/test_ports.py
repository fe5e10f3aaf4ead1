"""Port numbers in texts."""

import pytest

from serving.core.model.ports import port_of


@pytest.mark.parametrize(
    ("text", "port"),
    [("1", 1), ("8080", 8080), ("65535", 65535), ("0", 0), ("65536", 0), ("", 0), ("-1", 0), ("8080 ", 0), ("٨٠", 0)],
)
def test_port_is_ascii_decimal_from_1_to_65535(text: str, port: int) -> None:
    assert port_of(text) == port


def test_port_with_thousands_of_digits_is_invalid() -> None:
    assert port_of("1" * 5000) == 0
