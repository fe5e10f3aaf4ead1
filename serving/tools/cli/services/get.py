"""``serving get``: prints objects as a table, JSON, YAML, names or by JSONPath. ``--watch`` follows changes."""

import json
import queue
import re
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from serving.core.model.errors import InvalidValue, Unavailable
from serving.core.model.knative import SERVICE_LABEL
from serving.core.model.objects import Object, name_of, nested
from serving.home.apiserver.jsonpath import compiled_all
from serving.net.cluster.kinds import NAMESPACE, REVISION, SCALED_WORKLOAD, SERVING_SERVICE, Kind
from serving.tools.cli.client.api import MAY_BE_EMPTY, ApiCall, ApiClient, api_options, fail, fail_usage
from serving.tools.cli.client.completion import complete_kind, complete_object
from serving.tools.cli.client.objects import absence_of, items_of, object_of, selector_of, workloads_of
from serving.tools.cli.client.output import aligned, printable
from serving.tools.cli.client.resources import JSONPATH, OutputParam, kind_named, path_of
from serving.tools.cli.client.rows import Row, header_of, rows_of, server_table, table_rows

_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
_PAUSE_S = 1.0
_NOT_FOUND = 404
# A column of a table that grows line by line: later rows may be wider than the first.
_ROOM = 2

_PART = re.compile(r"\{(?P<expression>(?:'[^']*'|\"(?:\\.|[^\"\\])*\"|[^{}'\"])*)\}|(?P<text>[^{}]+)")
_RANGE, _END = "range ", "end"
_ESCAPES = {r"\n": "\n", r"\t": "\t"}


@click.command()
@click.argument("kind", default="services", shell_complete=complete_kind)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_object)
@click.option(
    "-o",
    "--output",
    type=OutputParam(["table", "wide", "json", "yaml", "name"]),
    default="table",
    metavar="FORMAT",
    help="Output format: table, wide, json, yaml, name, or jsonpath=TEMPLATE.",
)
@click.option(
    "-l",
    "--selector",
    type=MAY_BE_EMPTY,
    default="",
    metavar="LABELS",
    help="Label selector to filter on: app=web,tier!=db; '' for all.",
)
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="List resources of all namespaces.")
@click.option("-w", "--watch", is_flag=True, help="After listing, watch for changes until interrupted.")
@api_options
def get(*, api: ApiClient, kind: str, names: tuple[str, ...], output: str, watch: bool, **options: Any) -> None:  # noqa: ANN401 - the options of the command
    """Display services, or objects of another KIND, such as revisions, routes, pods or events.

    KIND/NAME is short for KIND NAME.
    """
    if "/" in kind:
        kind, _, first = kind.partition("/")
        if not first:
            fail_usage(f"{kind}/ has no name: expected {kind}/NAME, or {kind} for all")
        names = (first, *names)
    try:
        wanted = kind_named(kind)
    except InvalidValue as error:
        if kind == "all":
            fail_usage(
                "'all' is not a kind: `serving get` lists the services, `serving describe NAME` shows all of one"
            )
        fail_usage(f"{error}. A service is shown by `serving get services {kind}`")
    if watch:
        if len(names) > 1 or output not in {"table", "json", "name"}:
            fail_usage("--watch shows one kind or one object, as table, json or name")
        _watch(api, wanted, name=names[0] if names else "", output=output, **options)
        return
    if output in {"table", "wide"}:
        _print_table(api, wanted, names, is_wide=output == "wide", **options)
        return
    resources = [object_of(api, wanted, name) for name in names] or items_of(
        api, wanted, options["selector"], everywhere=options["everywhere"]
    )
    _print(resources, output, is_one=len(names) == 1)


def _print_table(
    api: ApiClient, kind: Kind, names: Sequence[str], *, selector: str, everywhere: bool, is_wide: bool
) -> None:
    # "wide" shows all columns of the server.
    header = None if is_wide else header_of(kind, everywhere=everywhere)
    if header is not None:
        resources = [object_of(api, kind, name) for name in names] or items_of(
            api, kind, selector, everywhere=everywhere
        )
        rows = rows_of(api, kind, resources, now_s=time.time(), everywhere=everywhere)
        if kind == SERVING_SERVICE and not names:
            workloads = workloads_of(api, selector, everywhere=everywhere)
            rows += rows_of(api, SCALED_WORKLOAD, workloads, now_s=time.time(), everywhere=everywhere)
    else:
        for name in names:
            object_of(api, kind, name)
        tables = [
            server_table(api, kind, name=name, selector=selector, everywhere=everywhere, is_wide=is_wide)
            for name in names or ("",)
        ]
        header, rows = tables[0][0], [row for _, rows in tables for row in rows]
    if rows:
        click.echo("\n".join(aligned([header, *rows])))
    else:
        where = "" if everywhere or not kind.namespaced else f" in namespace {api.namespace}"
        if where and api.call("GET", path_of(NAMESPACE, None, api.namespace))[0] == _NOT_FOUND:
            fail(absence_of(api, NAMESPACE, api.namespace))
        hint = "; `serving deploy` or `serving apply -f` creates one" if kind == SERVING_SERVICE else ""
        click.echo(f"no {kind.plural}{where}{hint}", err=True)


def _print(resources: list[Object], output: str, *, is_one: bool) -> None:
    whole = resources[0] if is_one else {"apiVersion": "v1", "kind": "List", "items": resources}
    if output.startswith(JSONPATH):
        try:
            # No line end, as in kubectl: the template contains line ends.
            click.echo(rendered(output.removeprefix(JSONPATH), whole), nl=False)
        except InvalidValue as error:
            fail_usage(f"-o {output}: {error}")
    elif output == "name":
        for resource in resources:
            click.echo(f"{str(resource['kind']).lower()}/{name_of(resource)}")
    elif output == "json":
        click.echo(json.dumps(whole, indent=2))
    else:
        # The import takes 30 milliseconds, and other output formats do not need it.
        import yaml  # noqa: PLC0415 - as said

        click.echo(yaml.safe_dump_all(resources, sort_keys=False, default_flow_style=False), nl=False)


def watched(
    api: ApiClient, kind: Kind, *, name: str = "", selector: str = "", everywhere: bool = False
) -> Iterator[Object]:
    """Yield watch events, first for existing objects. After an outage, continue from the last version.

    Raises ``ServingError`` when the server rejects the watch.
    """
    path = path_of(kind, None if everywhere else api.namespace)
    own = f"metadata.name={name}" if name else ""
    while True:
        query = {"watch": "true", "labelSelector": selector, "fieldSelector": own}
        begun_s = time.monotonic()
        try:
            with api.stream(ApiCall(path=path, query=query)) as response:
                rest = b""
                for piece in response.pieces():
                    *lines, rest = (rest + piece).split(b"\n")
                    events = [json.loads(line) for line in lines if line]
                    yield from (event for event in events if event["type"] != "ERROR")
        except Unavailable as error:
            fail(api.absence(error))
        # Limits the rate of requests to a server that ends each watch immediately.
        time.sleep(max(0.0, _PAUSE_S - (time.monotonic() - begun_s)))


def _watch(api: ApiClient, kind: Kind, *, name: str, output: str, selector: str, everywhere: bool) -> None:
    events = watched(api, kind, name=name, selector=selector, everywhere=everywhere)
    if output != "table":
        for event in events:
            resource = event["object"]
            click.echo(json.dumps(event) if output == "json" else f"{kind.name.lower()}/{name_of(resource)}")
        return
    if kind == SERVING_SERVICE:
        # The revisions of a service have its number of pods.
        events = _with_revisions(api, events, name=name, everywhere=everywhere)
    table = _Growing()
    for event in events:
        if event["type"] != "BOOKMARK":
            table.show(_titled_row(api, kind, event, everywhere=everywhere), event["object"])


def _titled_row(api: ApiClient, kind: Kind, event: Object, *, everywhere: bool) -> tuple[Row, Row]:
    """Titles and cells for an event's object. The last cell marks a deleted object."""
    resource = event["object"]
    titles = header_of(kind, everywhere=everywhere)
    if titles is not None:
        row = rows_of(api, kind, [resource], now_s=time.time(), everywhere=everywhere)[0]
    else:
        titles, row = _server_row(api, kind, resource, everywhere=everywhere)
    return titles, [*row[:-1], "deleted"] if event["type"] == "DELETED" else row


def _with_revisions(api: ApiClient, events: Iterator[Object], *, name: str, everywhere: bool) -> Iterator[Object]:
    """Yield the watch events of services; also repeat a service's last event after each change of its revisions."""
    queued: queue.SimpleQueue[tuple[bool, Object] | BaseException] = queue.SimpleQueue()

    def put(source: Iterator[Object], *, is_service: bool) -> None:
        try:
            for event in source:
                queued.put((is_service, event))
        except BaseException as error:  # noqa: BLE001 - raised again where it is read
            queued.put(error)

    selector = selector_of(name) if name else ""
    revisions = watched(api, REVISION, selector=selector, everywhere=everywhere)
    for source, is_service in ((events, True), (revisions, False)):
        threading.Thread(target=put, args=(source,), kwargs={"is_service": is_service}, daemon=True).start()
    services: dict[tuple[str, str], Object] = {}
    while True:
        item = queued.get()
        if isinstance(item, BaseException):
            raise item
        is_service, event = item
        metadata = event["object"].get("metadata", {})
        namespace = str(metadata.get("namespace", ""))
        if is_service:
            services[namespace, name_of(event["object"])] = event
            yield event
            continue
        service = services.get((namespace, str(nested(metadata, "labels", SERVICE_LABEL))))
        if service is not None and service["type"] != "DELETED":
            yield service


class _Growing:
    """A table that grows: prints each row when it arrives. Changes without a visible effect are skipped."""

    def __init__(self) -> None:
        self._widths: list[int] = []
        self._shown: dict[tuple[str, str], Row] = {}

    def show(self, titled: tuple[Row, Row], resource: Object) -> None:
        """Print a row; before the first row, print the titles."""
        titles, row = titled
        key = (str(resource["metadata"].get("namespace", "")), name_of(resource))
        # The age changes in every row.
        what = [cell for title, cell in zip(titles, row, strict=True) if title != "AGE"]
        if self._shown.get(key) == what:
            return
        self._shown[key] = what
        if not self._widths:
            self._widths = [max(len(title), len(cell)) + _ROOM for title, cell in zip(titles, row, strict=True)]
            click.echo(_padded(titles, self._widths))
        click.echo(_padded(row, self._widths))


def _server_row(api: ApiClient, kind: Kind, resource: Object, *, everywhere: bool) -> tuple[Row, Row]:
    """The titles and the cells of one object in the server's columns. For a deleted object only the name is known."""
    path = path_of(kind, resource["metadata"].get("namespace", ""), name_of(resource))
    status, table = api.send(ApiCall(path=path, accept=_TABLE))
    if status >= 400:
        return ["NAME", ""], [name_of(resource), ""]
    header, rows = table_rows(table, everywhere=everywhere)
    return header, rows[0]


def _padded(row: Row, widths: Sequence[int]) -> str:
    return " ".join(printable(cell).ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()


def rendered(template: str, value: object) -> str:
    """Render the template with an object's values. Raises ``InvalidValue`` for an invalid template."""
    # A path without template syntax needs no braces.
    parts = _parts(template if "{" in template else f"{{{template}}}")
    text, rest = _block(parts, value, is_inner=False)
    assert not rest, rest
    return text


def _parts(template: str) -> list[tuple[bool, str]]:
    parts: list[tuple[bool, str]] = []
    at = 0
    while at < len(template):
        match = _PART.match(template, at)
        if match is None:
            raise InvalidValue(text=template[at:], expected="text, or an expression in braces as {.metadata.name}")
        is_expression = match["expression"] is not None
        parts.append((is_expression, match["expression"].strip() if is_expression else match["text"]))
        at = match.end()
    return parts


def _block(
    parts: Sequence[tuple[bool, str]], value: object, *, is_inner: bool
) -> tuple[str, Sequence[tuple[bool, str]]]:
    texts: list[str] = []
    while parts:
        (is_expression, text), *parts = parts
        if not is_expression:
            texts.append(_unescaped(text))
        elif text == _END:
            if not is_inner:
                raise InvalidValue(text="{end}", expected="a {range ...} before it")
            return "".join(texts), parts
        elif text.startswith(_RANGE):
            body = parts
            # Without an element, the block is still skipped.
            _, parts = _block(body, None, is_inner=True)
            texts += [_block(body, element, is_inner=True)[0] for element in _values(text.removeprefix(_RANGE), value)]
        elif text[:1] in {'"', "'"}:
            texts.append(_unescaped(text[1:-1]))
        else:
            texts.append(" ".join(map(_shown, _values(text, value))))
    if is_inner:
        raise InvalidValue(text="{range ...}", expected="an {end} after it")
    return "".join(texts), ()


def _values(path: str, value: object) -> list[Any]:
    try:
        matches = compiled_all(path.strip().removeprefix("@"))(value)
    except ValueError as error:
        raise InvalidValue(
            text=path, expected="a path as .spec.traffic[0].percent or .items[*].metadata.name"
        ) from error
    return [match for match in matches if match is not None]


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _unescaped(text: str) -> str:
    for escape, character in _ESCAPES.items():
        text = text.replace(escape, character)
    return text
