from tests.unit.config.differences import PAGE, page_with_tables, tables

REMEDY = "run `make config`"


def test_the_page_says_of_each_field_what_the_code_does() -> None:
    page = PAGE.read_text()
    assert page_with_tables(page) == page, REMEDY


def test_the_tables_know_all_three_fates() -> None:
    text = tables()
    assert "| `hostNetwork` | refused | refused |" in text
    assert "| `dnsConfig` | ignored aloud: names are resolved as on this machine | honoured |" in text
    assert "| `containers[].envFrom` | honoured | honoured |" in text
    assert "`containers[].lifecycle`" in text
