"""Budgets as text."""

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.budgets import BUDGETS, Budget, read_budgets


def test_budgets_apply_cluster_wide_and_per_namespace() -> None:
    budgets = read_budgets("shop=8Gi, 20 pods,batch = 1 pod")
    assert budgets.of("elsewhere") == (("", Budget(amount=20)),)
    assert budgets.of("shop") == (("", Budget(amount=20)), ("shop", Budget(amount=8 * 2**30, is_memory=True)))
    assert [budget.text for _, budget in budgets.of("batch")] == ["20 pods", "1 pod"]
    assert read_budgets("").of("shop") == ()


def test_budget_text_is_canonicalized() -> None:
    assert BUDGETS.read("shop=8192Mi,  1 pods") == "1 pod, shop=8Gi"
    assert BUDGETS.read("") == ""


def test_pod_costs_1_or_its_memory() -> None:
    assert Budget(amount=3).price_of(7) == 1
    assert Budget(amount=3, is_memory=True).price_of(7) == 7


@pytest.mark.parametrize(
    "text",
    [
        *(
            "20",
            "0 pods",
            "-1 pods",
            "99999999 pods",
            "2.5 pods",
            "pods",
            "20pods",
            "1Ki",
            "-8Gi",
            "8Gi Gi",
            "NaN",
            "²0 pods",
        ),
        *("=20 pods", "Shop=20 pods", "shop=", "shop=x", "a b=1 pod", "shop=1 pod, shop=2 pods", "1 pod, 8Gi", "shop"),
        *("20 pods; 8Gi", "shop=1 pod=2 pods", "x" * 64 + "=1 pod"),
    ],
)
def test_invalid_budget_is_rejected_with_example(text: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        read_budgets(text)
    assert "20 pods, shop=8Gi" in caught.value.expected


def test_autoscaler_settings_include_budget() -> None:
    assert read_budgets(AutoscalerSettings().budget).of("shop") == ()
    assert read_budgets(AutoscalerSettings(budget="20 pods").budget).of("shop") == (("", Budget(amount=20)),)
