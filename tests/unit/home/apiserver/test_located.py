from serving.home.apiserver.located import located


def test_a_path_names_every_item_of_a_list() -> None:
    assert located({"a": [{"b": 1}, {"c": 2}, {"b": 3}]}, "a[*].b") == [("a[0].b", 1), ("a[2].b", 3)]


def test_a_path_through_something_else_names_nothing() -> None:
    assert located({"a": 1}, "a.b[*]") == []
