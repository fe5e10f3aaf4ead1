import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.selectors import SelectedName
from serving.core.settings.selectors import SELECTORS, selected_names


def test_names_have_selector_or_none() -> None:
    text = "kata: {selector: {use: kata, at: night}}\ngvisor: {}\nplain:\n"
    assert SELECTORS.read(text) == text
    assert selected_names(text) == (
        SelectedName(name="kata", labels=(("at", "night"), ("use", "kata"))),
        SelectedName(name="gvisor"),
        SelectedName(name="plain"),
    )
    assert selected_names("") == ()


@pytest.mark.parametrize("text", ["- a", "a: [", "a: {selector: {b: [1]}}", "Not_DNS: {}", "a: b"])
def test_invalid_selectors_are_rejected(text: str) -> None:
    with pytest.raises(InvalidValue):
        SELECTORS.read(text)
