import operator

import pytest

from serving.core.model import quantity
from serving.core.model.errors import InvalidValue
from serving.core.model.quantity import Resources, pod_peak, resources_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60s", 60.0),
        ("1m30s", 90.0),
        ("1.5h", 5400.0),
        ("500ms", 0.5),
        ("0", 0.0),
        ("-2s", -2.0),
        ("+1s", 1.0),
        (".5s", 0.5),
    ],
)
def test_duration_is_parsed_as_in_go(text: str, seconds: float) -> None:
    assert quantity.parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "60", "s", "1x", "1 s", "1s ", "--1s", "1m-3s", "\u0661s"])
def test_duration_invalid_in_go_is_rejected(text: str) -> None:
    with pytest.raises(InvalidValue, match="a duration such as"):
        quantity.parse_duration_s(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(60.0, "60s"), (3600.0, "1h"), (0.5, "500ms"), (0.0, "0s"), (90.0, "90s")]
)
def test_duration_is_formatted_in_one_unit(seconds: float, text: str) -> None:
    assert quantity.format_duration_s(seconds) == text


@pytest.mark.parametrize(("text", "number"), [("1.5", 1.5), ("2e3", 2000.0), ("-1", -1.0), (".5", 0.5)])
def test_number_is_parsed(text: str, number: float) -> None:
    assert quantity.parse_number(text) == number


@pytest.mark.parametrize("text", ["", "nan", "inf", "1e999", "1,5", "0x10", "1_000"])
def test_number_that_is_not_finite_is_rejected(text: str) -> None:
    with pytest.raises(InvalidValue, match="a number such as"):
        quantity.parse_number(text)


@pytest.mark.parametrize(("number", "text"), [(10.0, "10"), (0.5, "0.5"), (-1, "-1")])
def test_number_is_formatted_without_trailing_zeros(number: float, text: str) -> None:
    assert quantity.format_number(number) == text


def test_count_must_be_a_whole_number() -> None:
    assert quantity.parse_count("-12") == -12
    with pytest.raises(InvalidValue, match="a whole number"):
        quantity.parse_count("1.0")


@pytest.mark.parametrize(("text", "flag"), [("true", True), ("False", False)])
def test_flag_is_true_or_false_in_any_case(text: str, flag: bool) -> None:
    assert quantity.parse_flag(text) is flag


def test_flag_yes_is_rejected() -> None:
    with pytest.raises(InvalidValue, match='"true" or "false"'):
        quantity.parse_flag("yes")


@pytest.mark.parametrize(("text", "ratio"), [("200", 2.0), ("70", 0.7), ("0.7", 0.007), ("29", 0.29)])
def test_percentage_is_parsed_as_ratio(text: str, ratio: float) -> None:
    assert quantity.parse_percent(text) == ratio


@pytest.mark.parametrize(("text", "ratio"), [("70", 0.7), ("0.7", 0.7), ("1", 1.0), ("1.01", 0.0101), ("100", 1.0)])
def test_number_up_to_1_is_a_fraction_and_above_1_a_percentage(text: str, ratio: float) -> None:
    assert quantity.parse_percent_or_fraction(text) == ratio


@pytest.mark.parametrize("text", ["", "70%", "nan", "seventy", "1e999"])
def test_invalid_percentage_is_rejected(text: str) -> None:
    with pytest.raises(InvalidValue, match="a percentage such as"):
        quantity.parse_percent_or_fraction(text)


@pytest.mark.parametrize(("ratio", "text"), [(0.7, "70"), (2.0, "200"), (0.007, "0.7"), (0.29, "29")])
def test_ratio_is_formatted_as_percentage(ratio: float, text: str) -> None:
    assert quantity.format_percent(ratio) == text


@pytest.mark.parametrize(
    ("text", "millicores"), [("500m", 500), ("0.5", 500), ("2", 2000), ("1u", 1), ("1e2", 100_000), ("1k", 1_000_000)]
)
def test_cpu_is_parsed_as_millicores_rounded_up(text: str, millicores: int) -> None:
    assert quantity.parse_millicores(text) == millicores


@pytest.mark.parametrize(
    ("text", "byte_count"),
    [("1Gi", 2**30), ("1G", 10**9), ("128Mi", 2**27), ("1.5Ki", 1536), ("100m", 1), ("1E", 10**18)],
)
def test_memory_is_parsed_as_bytes_rounded_up(text: str, byte_count: int) -> None:
    assert quantity.parse_bytes(text) == byte_count


@pytest.mark.parametrize("text", ["", "Gi", "1gi", "1GiB", "1e2Gi", "1 Gi", "1e9999"])
def test_quantity_invalid_in_kubernetes_is_rejected(text: str) -> None:
    with pytest.raises(InvalidValue, match="a memory quantity"):
        quantity.parse_bytes(text)


@pytest.mark.parametrize(
    ("byte_count", "text"), [(2**30, "1Gi"), (1536, "1536"), (2048, "2Ki"), (0, "0"), (2**60, "1Ei")]
)
def test_memory_is_formatted_in_largest_exact_unit(byte_count: int, text: str) -> None:
    assert quantity.format_bytes(byte_count) == text


def test_resources_are_parsed_from_kubernetes_quantities() -> None:
    assert resources_of({"cpu": "250m", "memory": "64Mi"}) == Resources(cpu_m=250, memory_bytes=64 * 2**20)
    assert resources_of({"cpu": 2}) == Resources(cpu_m=2000)


def test_absent_or_invalid_resources_are_unset() -> None:
    assert resources_of(None) == Resources()
    assert resources_of({"cpu": "much", "memory": ""}) == Resources()


@pytest.mark.parametrize(
    ("containers", "before", "peak"),
    [
        ([], [], 0),
        ([1, 2], [(4, False), (3, False)], 4),
        ([1, 2], [(1, True), (4, False)], 5),
        ([1], [(4, False), (2, True)], 4),
        ([3], [(2, True), (2, True)], 7),
    ],
)
def test_pod_peak_is_largest_sum_of_simultaneous_containers(
    containers: list[int], before: list[tuple[int, bool]], peak: int
) -> None:
    assert pod_peak(containers, before, none=0, add=operator.add, larger=max) == peak


@pytest.mark.parametrize("text", ["9" * 101, "0." + "1" * 5000])
def test_quantity_above_100_characters_is_rejected_with_short_message(text: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        quantity.parse_quantity(text)
    assert len(str(caught.value)) < 300
