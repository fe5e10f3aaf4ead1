import pytest

from serving.model.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    IllegalTransition,
    Invalid,
    InvalidValue,
    NotFound,
    Problem,
    SettingsError,
    Unavailable,
    Unsupported,
)


def test_a_problem_says_where_what_and_what_would_be_right() -> None:
    problem = Problem(where="a.yaml:3", what="window: '5s' is not right", expected="at least 6s")
    assert str(problem) == "a.yaml:3: window: '5s' is not right; expected at least 6s"


def test_a_settings_error_carries_every_problem_a_line_each() -> None:
    problems = [Problem(where=str(line), what="bad", expected="good") for line in range(3)]
    error = SettingsError(problems)
    assert error.problems == tuple(problems)
    assert len(str(error).splitlines()) == 3


def test_a_value_that_does_not_parse_says_what_would() -> None:
    assert str(InvalidValue(text="x", expected="a number")) == "'x' is not a number"


@pytest.mark.parametrize(
    ("story", "text"), [((), "node: drain in phase gone"), (("a", "b"), "node: drain in phase gone after a -> b")]
)
def test_an_illegal_transition_tells_its_story(story: tuple[str, ...], text: str) -> None:
    assert str(IllegalTransition(subject="node", phase="gone", event="drain", story=story)) == text


def test_errors_of_the_cluster_carry_the_apis_code_and_word() -> None:
    assert (NotFound.status, NotFound.reason) == (404, "NotFound")
    assert (Conflict.status, AlreadyExists.status, Gone.status, Unsupported.status) == (409, 409, 410, 501)
    assert issubclass(Unavailable, ClusterError)
    assert issubclass(Forbidden, ClusterError)


def test_an_invalid_object_carries_every_breach() -> None:
    problem = Problem(where="spec.traffic", what="percents add up to 90", expected="100")
    assert Invalid("Route a is invalid", [problem]).problems == (problem,)
