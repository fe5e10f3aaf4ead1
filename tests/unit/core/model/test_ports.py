"""Port numbers in texts."""

import pytest

from serving.core.model.ports import port_of


@pytest.mark.parametrize(
    ("text", "port"),
    [("1", 1), ("8080", 8080), ("65535", 65535), ("0", 0), ("65536", 0), ("", 0), ("-1", 0), ("8080 ", 0), ("٨٠", 0)],
)
def test_a_port_is_a_decimal_number_in_the_range_of_tcp(text: str, port: int) -> None:
    assert port_of(text) == port


def test_thousands_of_digits_are_no_port() -> None:
    assert port_of("1" * 5000) == 0
