from pathlib import Path
from typing import Any

import pytest

from serving.home.processes.isolation import Isolation, isolation_of, missing_layers, plan_of

STATE = "/var/state"


def isolation(mode: str = "default", *, is_root: bool = True) -> Isolation:
    return Isolation(mode=mode, hidden=STATE, is_root=is_root)


def test_none_is_no_isolation(tmp_path: Path) -> None:
    assert isolation_of("none", tmp_path) is None


@pytest.mark.parametrize(
    ("mode", "is_root", "user"),
    [("default", True, 0), ("strict", False, 0), ("strict", True, 0x70000000 + (3 << 8) + 7)],
)
def test_only_strict_as_root_gives_a_user_of_its_own(mode: str, is_root: bool, user: int) -> None:
    assert isolation(mode, is_root=is_root).user_of("127.64.3.7") == user


def test_a_pod_sees_of_the_hidden_folder_what_it_is_given() -> None:
    found = isolation().confinement(
        address="127.64.0.1", shown=(f"{STATE}/pods/a", "/app", f"{STATE}/pods/a"), ports=()
    )
    assert (found.hidden, found.shown) == (STATE, (f"{STATE}/pods/a",))


def test_strict_limits_ports_to_those_given_and_any_free_one() -> None:
    assert isolation("strict").confinement(address="127.64.0.1", shown=(), ports=(8080, 8080)).ports == (0, 8080)
    assert isolation().confinement(address="127.64.0.1", shown=(), ports=(8080,)).ports is None


def test_strict_hides_the_first_folder_that_others_may_not_enter(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    closed = tmp_path / "closed"
    state = closed / "open" / "state"
    state.mkdir(parents=True)
    closed.chmod(0o700)
    hidden = {
        mode: found.hidden
        for mode in ("default", "strict")
        if (found := isolation_of(mode, state, is_root=True)) is not None
    }
    assert hidden["default"] == str(state)
    # A folder above that of the test may be closed as well.
    assert str(closed).startswith(hidden["strict"])


def test_the_layers_that_are_missing_are_tried_without_failing() -> None:
    plans: list[dict[str, Any]] = []

    def tried(plan: dict[str, Any]) -> list[str]:
        plans.append(plan)
        return ["landlock: no such call"]

    assert missing_layers(isolation("strict"), tried=tried) == ["landlock: no such call"]
    assert plans[0]["is_strict"] is False


def test_a_plan_has_every_field_in_types_of_json() -> None:
    plan = plan_of(isolation("strict").confinement(address="127.64.0.1", shown=(), ports=(1,)))
    assert plan.keys() == {"hidden", "shown", "user", "ports", "is_strict", "filter"}
    assert plan["ports"] == [0, 1]
