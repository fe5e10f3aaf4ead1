import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.model.errors import InvalidValue, SettingsError
from serving.tools.cli.services.interpolation import Interpolation

# The names, values and most texts are those of the reference implementation's own tests.
VARIABLES = {"FOO": "first", "BAR": "", "JSON": '{"json":2}', "LOOP": "$LOOP"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$${foo}", "${foo}"),
        ("$$$FOO", "$first"),
        ("a $ string ^REGEX$ $} $1", "a $ string ^REGEX$ $} $1"),
        ("$FOO-bar $FOO.x", "first-bar first.x"),
        ("[$missing] [${BAR}] [${FOO}]", "[] [] [first]"),
        ("${missing:-def} ${missing-def}", "def def"),
        ("${BAR:-def} ${BAR-def}", "def "),
        ("${missing:+there} ${missing+there}", " "),
        ("${FOO:+there} ${FOO+there}", "there there"),
        ("${BAR:+there} ${BAR+there}", " there"),
        ("${BAR:-/non:-alphanumeric}", "/non:-alphanumeric"),
        ("${missing:-${BAR-default}}", ""),
        ("${missing-${FOO} ${FOO}}", "first first"),
        ("${BAR+$FOO ${FOO:+second}}", "first second"),
        ('${missing:-{"a": {}}}', '{"a": {}}'),
        ("${JSON:-x} ${missing:-$JSON}", '{"json":2} {"json":2}'),
        ("${FOO:?err} ${FOO?err} ${BAR?err}", "first first "),
        ("$LOOP ${LOOP:-x}", "$LOOP $LOOP"),
        ("${missing:-two\nlines}", "two\nlines"),
    ],
)
def test_compose_variables_are_interpolated(text: str, expected: str) -> None:
    assert Interpolation(VARIABLES).text(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "closed by a brace") for text in ("${", "a ${FOO", "${FOO:-${BAR}")),
        *((text, "${NAME:-default}") for text in ("${}", "${ }", "${ foo}", "${foo }", "${foo!}", "${1}", "${foo:}")),
        ("${missing:?say ${FOO}}", "'$missing' is not a variable with a value, in the environment or in .env beside"),
        ("${missing?say ${FOO}}", "beside the file: say first"),
        ("${BAR:?}", "beside the file"),
        ("${missing:-" * 40 + "}" * 40, "at most 32 variables within each other"),
    ],
)
def test_invalid_interpolation_is_rejected_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(InvalidValue, match=re.escape(message)):
        Interpolation(VARIABLES).text(text)


def test_used_names_without_a_value_are_collected() -> None:
    interpolation = Interpolation(VARIABLES)
    interpolation.text("$A ${B} ${C:-c} ${FOO:-$D} ${E:-$F} ${G:+$H} ${FOO:?$I} $BAR")
    assert interpolation.unset == {"A", "B", "F"}


def test_nested_interpolation_size_is_bounded() -> None:
    interpolation = Interpolation({"V0": "x" * 2**10})
    for at in range(10):
        interpolation.define(f"V{at + 1}", f"$V{at}$V{at}", is_literal=False)
    with pytest.raises(InvalidValue, match="characters in all"):
        interpolation.text("$V10" * 3)


def test_shared_and_recursive_yaml_objects_are_preserved() -> None:
    shared: dict[Any, Any] = {"a": ["$FOO"], 5: None}
    shared["self"] = shared
    services = Interpolation(VARIABLES).services([shared, shared, 1], "here")
    assert services[0] is services[1] is services[0]["self"]
    assert (services[0]["a"], services[0][5], services[2], shared["a"]) == (["first"], None, 1, ["$FOO"])


def test_all_invalid_texts_are_reported_with_their_paths() -> None:
    with pytest.raises(SettingsError, match="expected") as caught:
        Interpolation({}).services(
            {"web": {"ports": ["80", "${A:?}"], "image": "${"}, "db": {"image": "$A"}}, "f: services"
        )
    assert [problem.where for problem in caught.value.problems] == ["f: services.web.ports[1]", "f: services.web.image"]


@given(st.text())
def test_text_with_doubled_dollar_signs_is_unchanged(text: str) -> None:
    assert Interpolation(VARIABLES).text(text.replace("$", "$$")) == text


ARBITRARY_TEXT = st.text(alphabet="${}:-+?AFO ab")
# Texts and their values if A is empty, FOO is "o" and GONE is unset.
INTERPOLATED = st.recursive(
    st.sampled_from([("$$", "$"), ("${FOO}", "o"), ("${A}", ""), ("${GONE}", "")])
    | st.text(alphabet=":-+?AFO ab").map(lambda text: (text, text)),
    lambda part: (
        st.lists(part).map(lambda parts: ("".join(text for text, _ in parts), "".join(value for _, value in parts)))
        | st.tuples(st.sampled_from(["${A:-", "${GONE:-", "${GONE-", "${FOO:+", "${FOO+", "${A+"]), part).map(
            lambda form: (f"{form[0]}{form[1][0]}}}", form[1][1])
        )
        | st.tuples(st.sampled_from(["${A-", "${A:+", "${GONE+"]), part).map(
            lambda form: (f"{form[0]}{form[1][0]}}}", "")
        )
    ),
)


@given(INTERPOLATED)
def test_nested_variables_are_interpolated_at_any_depth(case: tuple[str, str]) -> None:
    text, value = case
    assert Interpolation({"A": "", "FOO": "o"}).text(text) == value


@given(ARBITRARY_TEXT, ARBITRARY_TEXT)
def test_arbitrary_text_is_rejected_or_interpolated_regardless_of_other_text(first: str, second: str) -> None:
    interpolation = Interpolation({"A": "", "FOO": "o"})
    try:
        parts = [interpolation.text(first), interpolation.text(second)]
    except InvalidValue:
        return
    assert interpolation.text(f"{first} {second}") == " ".join(parts)
