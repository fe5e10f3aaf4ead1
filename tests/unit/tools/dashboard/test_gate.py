import pytest

from serving.tools.dashboard.gate import Gate, GateRefusal

TOKEN = "t" * 43
JSON = {"content-type": "application/json", "host": "localhost:6090"}
HEADERS = {**JSON, "authorization": f"Bearer {TOKEN}"}


def status(gate: Gate, headers: dict[str, str] | None = None, *, at_s: float = 0.0) -> int:
    value = HEADERS | (headers or {})
    refused = gate.judge(value, now_s=at_s)
    return 200 if refused is None else refused.status


def test_request_with_the_token_is_allowed() -> None:
    gate = Gate(TOKEN)
    assert gate.is_open
    assert gate.judge(HEADERS, now_s=0.0) is None
    own = {"origin": "http://localhost:6090", "sec-fetch-site": "same-origin", "authorization": f"bearer {TOKEN}"}
    assert status(gate, {**own, "content-type": "application/json; charset=utf-8"}) == 200


def test_action_without_a_configured_token_is_rejected() -> None:
    gate = Gate("")
    assert not gate.is_open
    why = "this dashboard is read-only: it was started without token-file"
    assert gate.judge({**JSON, "authorization": "Bearer "}, now_s=0.0) == GateRefusal(status=403, why=why)


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer \udcff", f"Bearer {TOKEN[1:]}"],
)
def test_other_tokens_are_rejected_with_401(header: str) -> None:
    assert status(Gate(TOKEN), {"authorization": header}) == 401


@pytest.mark.parametrize(
    ("header", "value", "expected"),
    [
        ("origin", "http://evil.example", 403),
        ("origin", "null", 403),
        ("origin", "http://[::1", 403),
        ("origin", "http://localhost:6091", 403),
        ("sec-fetch-site", "cross-site", 403),
        ("sec-fetch-site", "same-site", 403),
        ("content-type", "text/plain", 415),
        ("content-type", "application/x-www-form-urlencoded", 415),
        ("content-type", "", 415),
    ],
)
def test_cross_site_request_with_the_token_is_rejected(header: str, value: str, expected: int) -> None:
    assert status(Gate(TOKEN), {header: value}) == expected


def test_rate_limits_of_actions_and_wrong_tokens_are_separate() -> None:
    gate = Gate(TOKEN)
    assert [status(gate, {"authorization": "Bearer x"}, at_s=float(index)) for index in range(12)] == [401] * 10 + [
        429
    ] * 2
    assert [status(gate, at_s=20.0) for _ in range(32)] == [200] * 30 + [429] * 2
    # One minute after the first wrong token.
    assert status(gate, {"authorization": "Bearer x"}, at_s=60.0) == 401
    assert [status(gate, at_s=79.9), status(gate, at_s=80.0)] == [429, 200]


def test_action_rate_limit_is_per_user() -> None:
    gate = Gate(TOKEN)
    refused = [gate.judge(JSON, now_s=0.0, user="mallory") for _ in range(31)]
    assert [gate_refusal is None for gate_refusal in refused] == [True] * 30 + [False]
    assert gate.judge(JSON, now_s=0.0, user="ann") is None
    assert gate.judge(HEADERS, now_s=0.0) is None
