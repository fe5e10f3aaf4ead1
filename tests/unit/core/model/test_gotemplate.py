"""Templates as Go renders them."""

from typing import Any

import pytest

from serving.core.model.gotemplate import TemplateError, ValueMap, parse_template

VALUES: dict[str, Any] = {
    "Name": "a b",
    "Count": 3,
    "Half": 0.5,
    "Two": 2.0,
    "Small": 1.5e-05,
    "Yes": True,
    "Nothing": None,
    "List": ["x", "y"],
    "Map": {"b": 1, "a": [2]},
    "Struct": {"Inner": {"Name": "deep"}},
    "Method": lambda: "called",
    "Printed": ValueMap({"A": 1}, methods={"String": lambda: "itself", "Add": lambda one, two: one + two}),
    "Open": ValueMap({}, methods={}, default=lambda name: [name]),
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("", ""),
        ("plain } text", "plain } text"),
        ("<{{.Name}}>", "<a b>"),
        ("{{.Count}} {{.Half}} {{.Two}} {{.Small}} {{.Yes}}", "3 0.5 2 1.5e-05 true"),
        ("{{.List}} {{.Map}} {{.Nothing}}", "[x y] map[a:[2] b:1] <no value>"),
        ("{{.Struct.Inner.Name}}{{ .Method }}", "deepcalled"),
        ("{{.Printed}} {{.Printed.A}} {{.Printed.Add 1 2}}", "itself 1 3"),
        ('{{index .Map "b"}} {{index .Map "a" 0}} {{index .Open "X-Any"}}', "1 2 [X-Any]"),
        ('{{js "it\'s <\\"&=\\n\\\\>"}}', "it\\'s \\u003C\\\"\\u0026\\u003D\\u000A\\\\\\u003E"),
        ("{{.Name | js | printf `%q`}} {{printf `%5.2f|%-3d|%%|%v` .Half 7 .List}}", '"a b"  0.50|7  |%|[x y]'),
        ('{{printf "%q" "a\\"b\\\\\\n\\t\\r"}}', '"a\\"b\\\\\\n\\t\\r"'),
        ('{{html "<a>"}} {{urlquery "a b&"}} {{len .List}} {{print 1 "x" 2.5}}', "&lt;a&gt; a+b%26 2 1x2.5"),
        ("{{println .Name 1}}", "a b 1\n"),
        ("{{if .Yes}}yes{{else}}no{{end}}{{if .Nothing}}x{{end}}", "yes"),
        ('{{if eq .Count 1}}1{{else if ge .Count 3}}3{{else}}?{{end}}{{if not (eq .Name "x" "y")}}!{{end}}', "3!"),
        ("{{if and .Yes (lt .Count 4) (le .Count 3) (gt .Count 2) (ne .Count 4)}}all{{end}}", "all"),
        ("{{and 1 0}}{{or 0 2}}{{or 0 false}}{{and 1 2}}", "02false2"),
        ("{{if .Nothing}}a{{else}}b{{end}}", "b"),
        ("{{if .Yes}}a{{else if .Yes}}b{{end}}", "a"),
        ("a  {{- .Count -}}  b {{- /* note */ -}} c {{/* other */}}d", "a3bc d"),
        ("{{(index .Map `a`) | len}} {{(print .Struct.Inner.Name)}} {{(.Struct).Inner.Name}}", "1 deep deep"),
        ("{{true}} {{-1}} {{1.5}}", "true -1 1.5"),
    ],
)
def test_a_template_is_rendered_as_go_renders_it(template: str, text: str) -> None:
    assert parse_template(template)(VALUES) == text


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("a {{.Name", "the action is not closed"),
        ("{{.Name!}}", "unexpected character"),
        ("{{range .List}}{{end}}", "range is no function here"),
        ("{{.Name js}}", "js is no function here"),
        ("{{}}", "a value is missing"),
        ("{{(.Name}}", "unexpected end"),
        ("{{.Name)}}", r"unexpected \)"),
        ("\n{{end}}", "line 2, at .*: end without an if"),
        ("{{if .Yes}}{{else}}{{else}}{{end}}", "else without an if"),
        ("{{if .Yes}}", "end or else is missing"),
        ("{{if .Yes}}{{end 1}}", "unexpected 1"),
        ("{{else}}", "else without an if"),
    ],
)
def test_a_mistake_is_reported_with_its_place(template: str, why: str) -> None:
    with pytest.raises(TemplateError, match=why):
        parse_template(template)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{.Nane}}", "there is no field Nane"),
        ("{{.Name.More}}", "there is no field Name.More"),
        ("{{.Name 1}}", "a field takes no arguments"),
        ("{{index .List 5}}", "index: list index out of range"),
        ("{{index .Printed `B`}}", "index: 'B'"),
        ("{{printf `%d` .Name}}", "printf: "),
        ("{{printf `%d`}}", "printf: no value for %d"),
        ("{{printf `%y` 1}}", "printf: %y is no verb here"),
        ("{{len 5}}", "len: "),
    ],
)
def test_values_that_do_not_fit_are_an_error(template: str, why: str) -> None:
    with pytest.raises(TemplateError, match=why):
        parse_template(template)(VALUES)
