"""Policies of packages, files and the state folder, and the bound of their calls."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.scaling.decision.guarded import PolicyOverrun
from serving.net.aio.policyclasses import (
    BoundedCalls,
    StoredPolicies,
    installed_policies,
    is_policy_file,
    is_policy_name,
    load_policy,
    policy_names,
)

POLICY = '''
class Fixed:
    """Two pods."""

    def observe(self, second): ...

    def propose(self, view): ...

NUMBER = 7
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my policies.py"
    path.write_text(POLICY)
    return path


def test_policy_is_loaded_from_file_and_class(file: Path) -> None:
    policy_class = load_policy(f"{file}:Fixed")
    assert hasattr(policy_class(), "propose")
    assert not (file.parent / "__pycache__").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{path}:Missing", "is not a class with observe(second) and propose(view)"),
        ("{path}:NUMBER", "is not a class with observe(second) and propose(view)"),
        ("{path}", "is not FILE.py:Class, a Python file"),
        ("{path}x.py:Fixed", "is not readable: No such file or directory"),
    ],
)
def test_invalid_policy_reference_is_rejected_with_reason(file: Path, text: str, problem: str) -> None:
    with pytest.raises(InvalidValue) as error:
        load_policy(text.format(path=file))
    assert problem in str(error.value)


@pytest.mark.parametrize("line", ["import no_such_module", "def (", "raise SystemExit(3)"])
def test_policy_file_that_fails_to_import_is_rejected(file: Path, line: str) -> None:
    file.write_text(f"{POLICY}\n{line}\n")
    with pytest.raises(InvalidValue, match=r"is not loadable: (ModuleNotFoundError|SyntaxError|SystemExit)"):
        load_policy(f"{file}:Fixed")


def test_policy_names_and_files_are_distinguished_by_form() -> None:
    assert [is_policy_file(text) for text in ("a.py:B", "../x y/a.py:B_2", "a.py", "a.py:2B", "knative")] == [
        *(True, True),
        *(False, False, False),
    ]
    assert [is_policy_name(text) for text in ("knative", "my-own_2", "a.py:B", "../x", "", "*", "a\n")] == [
        *(True, True),
        *(False, False, False, False, False),
    ]


def test_stored_policy_is_found_by_content_derived_name(file: Path, tmp_path: Path) -> None:
    stored = StoredPolicies(tmp_path / "state")
    name = stored.add(f"{file}:Fixed")
    assert name.startswith("fixed-")
    assert is_policy_name(name)
    assert stored.add(f"{file}:Fixed") == name
    file.write_text(f"{POLICY}\n# changed")
    assert stored.add(f"{file}:Fixed") != name
    file.unlink()
    policy_class = stored.find(name)
    assert policy_class is not None
    assert type(policy_class()).__name__ == "Fixed"
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["fixed", "*", "../policies/x", "fixed-00000000"])
def test_stored_policy_is_not_found_by_other_names(file: Path, tmp_path: Path, name: str) -> None:
    stored = StoredPolicies(tmp_path / "state")
    stored.add(f"{file}:Fixed")
    assert stored.find(name) is None


def test_installed_policies_are_read_from_entry_points(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.rename(tmp_path / "policies_of_a_test.py")
    metadata = tmp_path / "policies_of_a_test-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: policies-of-a-test\nVersion: 1.0\n")
    lines = ["fixed = policies_of_a_test:Fixed", "gone = policies_of_a_test:Gone", "knative = policies_of_a_test:Fixed"]
    (metadata / "entry_points.txt").write_text("\n".join(["[serving.policies]", *lines, "Not A Name = x:Y"]))
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        classes = installed_policies()
        copy = StoredPolicies(tmp_path / "state").add(f"{tmp_path / 'policies_of_a_test.py'}:Fixed")
        names = policy_names(tmp_path / "state")
    finally:
        sys.modules.pop("policies_of_a_test", None)
    assert {"fixed", "gone"} <= classes.keys()
    assert not {"knative", "Not A Name"} & classes.keys()
    assert names[:2] == ["knative", "adaptive"]
    assert {"fixed", "gone", copy} <= {*names[2:]}
    assert len(names) == len({*names} - {"Not A Name"})
    assert type(classes["fixed"]()).__name__ == "Fixed"
    with pytest.raises(InvalidValue, match="'policies_of_a_test:Gone' is not loadable: AttributeError"):
        classes["gone"]()


def endless() -> None:
    while True:
        pass


def stubborn() -> None:
    """Drop the first interruption."""
    with contextlib.suppress(BaseException):
        endless()
    endless()


@pytest.mark.parametrize("call", [endless, stubborn])
def test_endless_policy_call_is_interrupted(call: Callable[[], None]) -> None:
    run = BoundedCalls(bound_s=0.01)
    with pytest.raises(PolicyOverrun):
        run(call)
    # The alarm is disarmed.
    assert sum(range(100_000)) == 4_999_950_000


def test_policy_call_beyond_its_bound_raises_overrun() -> None:
    times = iter((1.0, 1.2, 5.0, 5.05))
    run = BoundedCalls(bound_s=60.0, clock=lambda: next(times) * 600)
    with pytest.raises(PolicyOverrun):
        run(lambda: 1)
    assert run(lambda: 2) == 2


def test_policy_call_bound_excludes_wait_for_cpu() -> None:
    # The alarm rings twice after 10 ms of wall time; by this clock the call has used 1 ms, then 20 ms.
    times = iter((0.0, 0.001, 0.02, 0.02))
    run = BoundedCalls(bound_s=0.01, clock=lambda: next(times))
    with pytest.raises(PolicyOverrun):
        run(endless)
    assert next(times, None) is not None
