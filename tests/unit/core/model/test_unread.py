from serving.core.model.unread import unread


def test_unread_fields_are_listed_by_path() -> None:
    value = {
        "a": 1,
        "b": {"c": 2, "d": 3},
        "e": [{"f": 1, "g": 2}],
        "x-own": 1,
        "h": None,
        "i": {"any": 1},
        "j": "text",
    }
    table = {"b": {"c": None}, "e": {"f": None}, "i": None, "j": {"k": None}}
    assert list(unread(value, table)) == ["a", "b.d", "e.g"]
