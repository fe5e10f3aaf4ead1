import pytest

from serving.core.model.errors import (
    AlreadyExists,
    ApplyConflict,
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    IllegalTransition,
    Invalid,
    InvalidCertificate,
    InvalidValue,
    JournalDamaged,
    NotFound,
    OwnedField,
    Problem,
    SettingsError,
    Unavailable,
    Unsupported,
)


def test_problem_prints_place_defect_and_expected_value() -> None:
    problem = Problem(where="a.yaml:3", what="window: '5s' is not right", expected="at least 6s")
    assert str(problem) == "a.yaml:3: window: '5s' is not right; expected at least 6s"


def test_settings_error_prints_each_problem_on_one_line() -> None:
    problems = [Problem(where=str(line), what="bad", expected="good") for line in range(3)]
    error = SettingsError(problems)
    assert error.problems == tuple(problems)
    assert len(str(error).splitlines()) == 3


def test_invalid_value_prints_expected_value() -> None:
    assert str(InvalidValue(text="x", expected="a number")) == "'x' is not a number"


@pytest.mark.parametrize(
    ("story", "text"), [((), "node: drain in phase gone"), (("a", "b"), "node: drain in phase gone after a -> b")]
)
def test_illegal_transition_prints_earlier_phases(story: tuple[str, ...], text: str) -> None:
    assert str(IllegalTransition(subject="node", phase="gone", event="drain", story=story)) == text


def test_cluster_errors_have_status_and_reason_of_kubernetes() -> None:
    assert (NotFound.status, NotFound.reason) == (404, "NotFound")
    assert (Conflict.status, AlreadyExists.status, Gone.status, Unsupported.status) == (409, 409, 410, 501)
    assert issubclass(Unavailable, ClusterError)
    assert issubclass(Forbidden, ClusterError)


def test_invalid_error_has_all_problems() -> None:
    problem = Problem(where="spec.traffic", what="percents add up to 90", expected="100")
    assert Invalid("Route a is invalid", [problem]).problems == (problem,)


def test_apply_conflicts_are_grouped_by_manager() -> None:
    error = ApplyConflict(
        [
            OwnedField(path=".spec.a", manager="helm"),
            OwnedField(path=".spec.b", manager="kubectl"),
            OwnedField(path=".spec.c", manager="helm"),
        ]
    )
    assert str(error) == (
        "Apply failed with 3 conflicts: conflicts with helm:\n- .spec.a\n- .spec.c\nconflicts with kubectl:\n- .spec.b"
    )


def test_single_apply_conflict_is_one_line() -> None:
    error = ApplyConflict([OwnedField(path=".spec.a", manager='"helm"')])
    assert str(error) == 'Apply failed with 1 conflict: conflict with "helm": .spec.a'


def test_certificate_error_has_file_and_reason() -> None:
    error = InvalidCertificate(where="tls.key", reason="no private key")
    assert (error.where, error.reason, str(error)) == ("tls.key", "no private key", "tls.key: no private key")


def test_journal_error_has_path_and_detail() -> None:
    error = JournalDamaged(path="state/journal", detail="no header")
    assert (error.path, error.detail) == ("state/journal", "no header")
    assert str(error).startswith("the journal state/journal cannot be used: no header. The file is kept")
