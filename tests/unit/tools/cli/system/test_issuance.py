from typing import Any

import pytest

from serving.tools.cli.system.issuance import host_of, problem_of


def certificate(**messages: tuple[str, str]) -> dict[str, Any]:
    conditions = [{"type": name, "status": status, "message": text} for name, (status, text) in messages.items()]
    return {"spec": {"dnsNames": ["a.example"]}, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ({}, "not issued yet"),
        ({"Ready": ("True", ""), "Issuing": ("False", "")}, ""),
        ({"Ready": ("True", ""), "Issuing": ("False", "refused")}, "refused"),
        ({"Ready": ("False", "no issuer")}, "no issuer"),
        ({"Ready": ("False", ""), "Issuing": ("True", "")}, "not issued yet"),
    ],
)
def test_certificate_problem_is_read_from_its_conditions(messages: dict[str, tuple[str, str]], problem: str) -> None:
    assert problem_of(certificate(**messages)) == problem
    assert host_of(certificate()) == "a.example"
    assert host_of({}) == "?"
