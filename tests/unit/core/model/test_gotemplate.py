"""Templates of hosts and log lines, rendered as by Go's text/template."""

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.gotemplate import Fields, fill_template

DATA = {
    "Name": "hello",
    "Namespace": "shop",
    "Domain": "example.com",
    "Labels": {"app": "web"},
    "Annotations": {"sub": "eu"},
}
LINE = {
    "Took": 0.5,
    "Whole": 3.0,
    "Tiny": 0.00001,
    "Values": ("a", "b"),
    "Odd": "<a href='x'>\n\"\\&=",
    "Header": Fields({"Get": lambda name: f"value of {name}"}),
    "URL": Fields({"Path": "/a"}, text="/a?b"),
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{.Name}}.{{ .Namespace }}.{{.Domain}}", "hello.shop.example.com"),
        ('{{.Name}}-{{.Namespace}}.{{ index .Annotations "sub"}}.{{.Domain}}', "hello-shop.eu.example.com"),
        ('{{.Name}}.{{index .Annotations "no"}}.{{.Domain}}', "hello..example.com"),
        ("{{.Labels.app}}.{{.Labels.no}}", "web.<no value>"),
        ("{{.Labels}}", "map[app:web]"),
        ("a {{- /* nothing */ -}} b", "ab"),
        ("{{/* nothing */}}x", "x"),
        ("{{if .Labels.app}}a{{else}}b{{end}}{{if .Labels.no}}a{{else}}b{{end}}", "ab"),
        ('{{if eq .Namespace "default" "shop"}}{{.Name}}{{else}}{{.Name}}.{{.Namespace}}{{end}}', "hello"),
        ('{{if eq .Name "a"}}1{{else if ne .Name "b"}}2{{else}}3{{end}}', "2"),
        ('{{with index .Annotations "sub"}}{{.}}.{{end}}x{{with .Labels.no}}{{.}}{{end}}', "eu.x"),
        ('{{with .Labels.no}}1{{else with index .Annotations "sub"}}{{.}}{{end}}', "eu"),
        ('{{printf "%s-%d%% %q" .Name 7 `a`}}', 'hello-7% "a"'),
        ('{{.Name | printf "%s.%s" `a`}}', "a.hello"),
        ('{{print (index .Labels "app") (len .Name) true}}', "web5true"),
        ("{{slice .Name 1 3}}{{slice .Name 3}}", "ello"),
        ("{{index .Name 0}}", "104"),
        ('{{if and .Name (not .Labels.no) (or .Labels.no "x")}}y{{end}}', "y"),
        ("{{and .Name .Labels.no}}", "<no value>"),
        ("{{or .Labels.no 0}}", "0"),
        ("{{print .Name true}}", "hellotrue"),
        ("{{if lt (len .Name) 6}}{{if ge 2 2}}x{{end}}{{end}}", "x"),
    ],
)
def test_host_template_renders_as_in_go(template: str, text: str) -> None:
    assert fill_template(template, DATA) == text


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{.Took}} {{.Whole}} {{.Tiny}}", "0.5 3 1e-05"),
        ('{{printf "%.3f %f %%" .Took .Whole}}', "0.500 3.000000 %"),
        ("{{.Values}} {{index .Values 1}} {{len .Values}}", "[a b] b 2"),
        ("{{js .Odd}}", r"\u003Ca href\u003D\'x\'\u003E\u000A\"\\\u0026\u003D"),
        ("{{html .Odd}}", "&lt;a href=&#39;x&#39;&gt;\n&#34;\\&amp;="),
        ('{{urlquery "a b&c"}}', "a+b%26c"),
        ('{{.Header.Get "Via"}} {{"Via" | .Header.Get | printf "%q"}}', 'value of Via "value of Via"'),
        ("{{.URL}} {{.URL.Path}}", "/a?b /a"),
    ],
)
def test_log_template_renders_as_in_go(template: str, text: str) -> None:
    assert fill_template(template, LINE) == text


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{.Header}}", "a field of it is missing"),
        ("{{.Header.Set}}", "there is no field Set"),
        ("{{.Header.Get 1 2}}", "a method: "),
        ('{{.Took "x"}}', "only a function takes arguments"),
        ('{{"x" "y"}}', "only a function takes arguments"),
        ('{{printf "%f" "x"}}', "printf: must be real number"),
        ("{{index .Values 2}}", "index: cannot index with 2"),
    ],
)
def test_log_template_error_has_reason(template: str, reason: str) -> None:
    with pytest.raises(InvalidValue) as raised:
        fill_template(template, LINE)
    assert reason in raised.value.expected


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{.Name", "an action is not closed"),
        ("{{.Host}}", "there is no field Host"),
        ("{{.Name.x}}", "there is no field x"),
        ("{{print len .Name}}", "len() takes exactly one argument"),
        ("{{end}}", "{{end}} ends nothing"),
        ("{{if .Name}}x", "{{if}} has no {{end}}"),
        ("{{if .Name}}x{{else}}y{{else}}z{{end}}", "{{if}} has no {{end}}"),
        ("{{if .Name}}x{{else unless}}y{{end}}", "{{else unless}} is not right"),
        ("{{range .Labels}}{{end}}", "there is no function range"),
        ("{{$x := 1}}", "'$x := 1' is not understood"),
        ("{{}}", "a value is missing"),
        ("{{.Name | }}", "a value is missing"),
        ("{{.Name .Namespace}}", "only a function takes arguments"),
        ("{{(.Name}}", "a bracket is not closed"),
        ("{{.Name)}}", "a bracket closes nothing"),
        (r'{{"\x"}}', "is no text"),
        ("{{slice .Name 3 99}}", "slice: index out of range"),
        ("{{index .Name 99}}", "index: cannot index with 99"),
        ("{{index .Labels}}{{len 3}}", "len: "),
        ('{{printf "%s"}}', "printf: too few values"),
        ('{{printf "%x" 1}}', "printf: values and verbs do not match"),
        ("{{if .Name}}" * 30, "nested too deeply"),
        ("{{" + "(" * 30 + "}}", "nested too deeply"),
        ("x" * 5000, "more than 4096 characters"),
    ],
)
def test_invalid_template_is_rejected_with_reason(template: str, reason: str) -> None:
    with pytest.raises(InvalidValue) as raised:
        fill_template(template, DATA)
    assert reason in raised.value.expected
