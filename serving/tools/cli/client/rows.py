"""The columns of ``serving get`` for each kind, one row per object.

Services and revisions have special columns that fit into 80 characters: scale to zero, traffic, and the reason for not
being ready. Other kinds use the server's columns.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from serving.core.model.knative import CONDITION_DORMANT, REVISION_LABEL, SERVICE_LABEL
from serving.core.model.objects import Object, condition_of, labels_of, name_of, nested
from serving.net.cluster.kinds import POD, REVISION, SCALED_WORKLOAD, SERVING_SERVICE, Kind
from serving.tools.cli.client.api import ApiCall, ApiClient
from serving.tools.cli.client.objects import items_of, seconds_since, superseded_failures
from serving.tools.cli.client.output import age_text
from serving.tools.cli.client.resources import path_of

Row = list[str]
Key = tuple[str, str]

_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
_HEADERS: dict[Kind, Row] = {
    SERVING_SERVICE: ["NAME", "READY", "PODS", "TRAFFIC", "AGE", "URL"],
    REVISION: ["NAME", "READY", "STATE", "PODS", "AGE", "REASON"],
}


def header_of(kind: Kind, *, everywhere: bool = False) -> Row | None:
    """The titles of a table of this kind; None if the table has the server's columns."""
    header = _HEADERS.get(kind)
    return header and ["NAMESPACE", *header] if everywhere else header


def rows_of(api: ApiClient, kind: Kind, objects: Iterable[Object], *, now_s: float, everywhere: bool) -> list[Row]:
    """A row for each object of a kind whose columns the CLI formats itself."""
    objects = list(objects)
    if kind == SCALED_WORKLOAD:
        rows = [workload_row(workload, now_s=now_s) for workload in objects]
        return _with_namespaces(objects, rows) if everywhere else rows
    dormant = dormant_counts(items_of(api, POD, everywhere=everywhere)) if objects else Counter()
    if kind == REVISION:
        rows = [revision_row(revision, now_s=now_s, dormant_count=dormant[_key(revision)]) for revision in objects]
    else:
        pods = pods_of(items_of(api, REVISION, everywhere=everywhere), dormant) if objects else {}
        rows = [service_row(service, pods=pods.get(_key(service), ""), now_s=now_s) for service in objects]
    return _with_namespaces(objects, rows) if everywhere else rows


def _with_namespaces(objects: Iterable[Object], rows: Iterable[Row]) -> list[Row]:
    return [
        [str(nested(resource, "metadata", "namespace") or ""), *row]
        for resource, row in zip(objects, rows, strict=True)
    ]


def service_row(service: Object, *, pods: str, now_s: float) -> Row:
    """The row of a service: NAME, READY, PODS, TRAFFIC, AGE, URL. If it is not ready, URL shows the reason."""
    ready = condition_of(service, "Ready")
    status = ready.get("status", "Unknown")
    where = str(nested(service, "status", "url") or "")
    if status != "True" and ready.get("reason"):
        hint = f"; see `serving describe {name_of(service)}`" if status == "False" else ""
        where = f"{ready['reason']}{hint}"
    age = age_text(seconds_since(nested(service, "metadata", "creationTimestamp"), now_s))
    return [name_of(service), status, pods, traffic_text(service), age, where]


def workload_row(workload: Object, *, now_s: float) -> Row:
    """The row of a ScaledWorkload in the table of services. The column TRAFFIC shows the target."""
    ready = condition_of(workload, "Ready")
    ready_count, desired_count = (
        nested(workload, "status", field) or 0 for field in ("readyReplicas", "desiredReplicas")
    )
    target = nested(workload, "spec", "target") or {}
    shown = f"{str(target.get('kind', '')).lower()}/{target.get('name', '')}"
    where = str(nested(workload, "status", "url") or "")
    if ready.get("status") != "True" and ready.get("reason"):
        where = ready["reason"]
    age = age_text(seconds_since(nested(workload, "metadata", "creationTimestamp"), now_s))
    pods = _of(ready_count, desired_count, 0)
    return [name_of(workload), ready.get("status", "Unknown"), pods, shown, age, where]


def revision_row(revision: Object, *, now_s: float, dormant_count: int = 0) -> Row:
    """The row of a revision: NAME, READY, STATE, PODS, AGE, REASON."""
    ready = condition_of(revision, "Ready")
    age = age_text(seconds_since(nested(revision, "metadata", "creationTimestamp"), now_s))
    state = str(nested(revision, "spec", "servingState") or "")
    pods = _of(*_counts(revision), dormant_count)
    return [name_of(revision), ready.get("status", "Unknown"), state, pods, age, ready.get("reason", "")]


def traffic_text(service: Object) -> str:
    """The traffic split as a short text: "00002" or "00001 90% 00002 10%"."""
    prefix = f"{name_of(service)}-"
    shares: dict[str, int] = defaultdict(int)
    for target in nested(service, "status", "traffic") or ():
        shares[str(target.get("revisionName", "")).removeprefix(prefix)] += target.get("percent") or 0
    parts = [(name, percent) for name, percent in shares.items() if percent]
    return parts[0][0] if len(parts) == 1 else " ".join(f"{name} {percent}%" for name, percent in parts)


def dormant_counts(pods: Iterable[Object]) -> Counter[Key]:
    """The number of dormant pods by namespace and name of the revision."""
    return Counter(
        _key(pod, labels_of(pod).get(REVISION_LABEL, ""))
        for pod in pods
        if condition_of(pod, CONDITION_DORMANT).get("status") == "True"
    )


def pods_of(revisions: Iterable[Object], dormant_of: Mapping[Key, int]) -> dict[Key, str]:
    """Ready pods by namespace and name of the service: "2", or "1/2" while a pod is missing.

    Failed revisions with a newer revision do not count. ``dormant_of`` has the number of dormant pods per revision.
    """
    actual: Counter[Key] = Counter()
    wanted: Counter[Key] = Counter()
    dormant: Counter[Key] = Counter()
    revisions = list(revisions)
    superseded = superseded_failures(revisions)
    for revision in revisions:
        if name_of(revision) in superseded:
            continue
        key = _key(revision, str(nested(revision, "metadata", "labels", SERVICE_LABEL) or ""))
        present, desired = _counts(revision)
        actual[key] += present
        wanted[key] += desired
        dormant[key] += dormant_of.get(_key(revision), 0)
    return {key: _of(actual[key], wanted[key], dormant[key]) for key in wanted}


def server_table(
    api: ApiClient, kind: Kind, *, name: str, selector: str, everywhere: bool, is_wide: bool = False
) -> tuple[Row, list[Row]]:
    """Header and rows in the server's format; ``is_wide`` includes the columns of lower priority."""
    path = path_of(kind, None if everywhere else api.namespace, name or None)
    table = api.must(ApiCall(path=path, query={"labelSelector": selector}, accept=_TABLE))
    return table_rows(table, everywhere=everywhere, is_wide=is_wide)


def table_rows(table: Object, *, everywhere: bool, is_wide: bool = False) -> tuple[Row, list[Row]]:
    """Header and rows of a ``Table`` of the API."""
    columns: Sequence[Object] = table.get("columnDefinitions") or ()
    shown = [number for number, column in enumerate(columns) if is_wide or not column.get("priority")]
    header = [str(columns[number]["name"]).upper() for number in shown]
    rows = []
    for row in table.get("rows") or ():
        cells = [_cell(row["cells"][number]) for number in shown]
        rows.append([_cell(nested(row, "object", "metadata", "namespace")), *cells] if everywhere else cells)
    return ["NAMESPACE", *header] if everywhere else header, rows


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _counts(revision: Object) -> tuple[int, int]:
    return nested(revision, "status", "actualReplicas") or 0, nested(revision, "status", "desiredReplicas") or 0


def _of(actual: int, wanted: int, dormant: int) -> str:
    count = str(actual) if actual == wanted else f"{actual}/{wanted}"
    if not dormant:
        return count
    return f"{count} dormant" if dormant >= actual else f"{count}, {dormant} dormant"


def _key(resource: Object, name: str = "") -> Key:
    return str(nested(resource, "metadata", "namespace") or ""), name or name_of(resource)
