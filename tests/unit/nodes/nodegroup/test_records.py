"""Arithmetic and comparison of amounts."""

import pytest

from serving.nodes.nodegroup.records import Amount


def test_amounts_add_and_subtract_each_resource() -> None:
    assert Amount(cpu_m=3, memory_bytes=5) + Amount(cpu_m=1, memory_bytes=2) == Amount(cpu_m=4, memory_bytes=7)
    assert Amount(cpu_m=3, memory_bytes=5) - Amount(cpu_m=1, memory_bytes=7) == Amount(cpu_m=2, memory_bytes=-2)


@pytest.mark.parametrize(("cpu_m", "memory_bytes", "fits"), [(2, 2, True), (3, 2, False), (2, 3, False), (0, 0, True)])
def test_amount_fits_only_if_both_resources_fit(cpu_m: int, memory_bytes: int, *, fits: bool) -> None:
    whole = Amount(cpu_m=2, memory_bytes=2)
    assert Amount(cpu_m=cpu_m, memory_bytes=memory_bytes).fits_in(whole) is fits
