from tests.unit.config.differences import PAGE, page_with_tables, tables

REMEDY = "run `make config`"


def test_reference_page_has_the_generated_tables() -> None:
    page = PAGE.read_text()
    assert page_with_tables(page) == page, REMEDY


def test_tables_have_rejected_ignored_and_honoured_fields() -> None:
    rows = {tuple(row.split(" | ")[:2]): row for row in tables().splitlines()}
    assert "`hostNetwork`" in rows["| rejected", "rejected"]
    assert "`dnsConfig`" in rows["| ignored: names are resolved as on this machine", "honoured"]
    assert "`containers[].envFrom`" in rows["| honoured", "honoured"]
    assert "`containers[].lifecycle`" in rows["| rejected as unknown", "rejected as unknown"]


def test_tables_omit_annotations_that_override_settings() -> None:
    assert "/min-scale`" not in tables()
    assert "/activation-scale`" in tables()
