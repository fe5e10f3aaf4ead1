import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.quantity import ExactAmount, amounts_of, total, written_amount


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("500m", "500m"),
        ("1.5", "1500m"),
        ("2000m", "2"),
        ("1000", "1k"),
        ("1Gi", "1Gi"),
        ("2048Mi", "2Gi"),
        ("1536Mi", "1536Mi"),
        ("512Ki", "512Ki"),
        ("0.5Ki", "512"),
        ("100n", "100n"),
        ("0.1n", "1n"),
        ("0", "0"),
        ("-2", "-2"),
        ("-1Ki", "-1Ki"),
        ("1e3", "1k"),
    ],
)
def test_amount_has_canonical_kubernetes_form(written: str, expected: str) -> None:
    assert str(amounts_of({"x": written})["x"]) == expected


def test_amount_that_is_not_a_quantity_is_rejected() -> None:
    with pytest.raises(InvalidValue, match="'abc' is not a quantity"):
        amounts_of({"cpu": "abc"})


def test_amounts_are_added_per_resource() -> None:
    exact_amounts = total([amounts_of({"cpu": "500m"}), amounts_of({"cpu": 1, "pods": 1}), {}])
    assert {name: written_amount(exact_amount) for name, exact_amount in exact_amounts.items()} == {
        "cpu": "1500m",
        "pods": "1",
    }


def test_sum_has_format_of_first_nonzero_amount() -> None:
    assert str(ExactAmount(0) + amounts_of({"m": "512Mi"})["m"] + amounts_of({"m": "536870912"})["m"]) == "1Gi"


def test_no_amounts_are_an_empty_map() -> None:
    assert amounts_of(None) == {}
