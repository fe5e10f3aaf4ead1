from serving.model.split import split_digest


def test_the_same_split_has_the_same_digest_however_it_is_written() -> None:
    whole = split_digest([("a", 90), ("b", 10)])
    assert len(whole) == 16
    assert split_digest([("b", 10), ("a", 50), ("c", 0), ("a", 40)]) == whole


def test_another_split_has_another_digest() -> None:
    assert len({split_digest(one) for one in ([("a", 100)], [("b", 100)], [("a", 90), ("b", 10)], [])}) == 4
