from serving.core.model.selectors import SelectedName, name_for

NAMES = (
    SelectedName(name="example.com"),
    SelectedName(name="b.example", labels=(("app", "shop"),)),
    SelectedName(name="a.example", labels=(("app", "shop"),)),
    SelectedName(name="c.example", labels=(("app", "shop"), ("tier", "gold"))),
)


def test_most_specific_then_alphabetically_first_selector_matches() -> None:
    assert name_for({}, NAMES) == "example.com"
    assert name_for({"app": "shop", "tier": "iron"}, NAMES) == "a.example"
    assert name_for({"app": "shop", "tier": "gold"}, NAMES) == "c.example"


def test_no_matching_selector_yields_no_name() -> None:
    assert name_for({"app": "other"}, NAMES[1:]) is None
