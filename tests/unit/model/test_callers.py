"""The rule of allow-from."""

import pytest

from serving.model.callers import AllowedCaller, CallerRule, caller_rule
from serving.model.identities import CallerIdentity

FRONT = CallerIdentity(namespace="shop", account="cart", service="front")


def admits(text: str, caller: CallerIdentity = FRONT) -> bool:
    return caller_rule(text)[0].admits(caller)


@pytest.mark.parametrize(
    "text",
    [
        "namespace/shop",
        "serviceaccount/shop/cart",
        "service/shop/front",
        "*",
        "namespace/other, service/shop/front",
        "namespace/other\nservice/shop/front",
    ],
)
def test_a_caller_that_is_named_may_call(text: str) -> None:
    assert admits(text)
    assert caller_rule(text)[1] == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "namespace/other",
        "serviceaccount/other/cart",
        "serviceaccount/shop/front",
        "service/shop/cart",
        "service/other/front",
    ],
)
def test_any_other_may_not(text: str) -> None:
    assert not admits(text)
    assert caller_rule(text)[1] == []


def test_a_pod_of_no_service_is_not_a_service() -> None:
    assert not admits("service/shop/front", CallerIdentity(namespace="shop", account="cart"))


@pytest.mark.parametrize(
    "wrong",
    [
        "shop",
        "namespace/",
        "namespace/Shop",
        "service/shop",
        "service//front",
        "namespace/shop/x",
        "pod/shop/p",
        "nam espace/x",
    ],
)
def test_an_entry_that_cannot_be_read_admits_no_caller(wrong: str) -> None:
    rule, problems = caller_rule(wrong)
    assert problems
    assert not rule.admits(FRONT)


def test_everyone_is_meant_alone_only() -> None:
    rule, problems = caller_rule("*, namespace/other")
    assert problems == ["*"]
    assert rule == CallerRule(callers=(AllowedCaller(namespace="other"),))


def test_entries_are_bounded() -> None:
    rule, problems = caller_rule(", ".join(f"namespace/n{number}" for number in range(70)))
    assert (len(rule.callers), len(problems)) == (64, 6)
