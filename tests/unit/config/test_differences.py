from tests.unit.config.differences import PAGE, page_with_tables, tables

REMEDY = "run `make config`"


def test_the_page_says_of_each_field_what_the_code_does() -> None:
    page = PAGE.read_text()
    assert page_with_tables(page) == page, REMEDY


def test_the_tables_know_all_three_fates() -> None:
    rows = {tuple(row.split(" | ")[:2]): row for row in tables().splitlines()}
    assert "`hostNetwork`" in rows["| rejected", "rejected"]
    assert "`dnsConfig`" in rows["| ignored: names are resolved as on this machine", "honoured"]
    assert "`containers[].envFrom`" in rows["| honoured", "honoured"]
    assert "`containers[].lifecycle`" in rows["| rejected as unknown", "rejected as unknown"]


def test_an_annotation_that_overrides_a_setting_is_on_the_page_of_settings() -> None:
    assert "/min-scale`" not in tables()
    assert "/activation-scale`" in tables()
