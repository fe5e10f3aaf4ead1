"""Handles writes over HTTP: create, replace, patch, delete, evict.

This module checks the request, the store checks the object. Warnings for the writer become ``Warning`` headers.
"""

from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec
from multidict import MultiMapping

from serving.core.model.errors import Conflict, NotFound
from serving.core.model.objects import Object, name_of
from serving.home.admission.admission import annotation_warnings
from serving.home.admission.kuberules.decoding import undecodable
from serving.home.admission.podsecurity import PodSecurity
from serving.home.apiserver.content import check_fields, decode_body, duplicate_fields, touched
from serving.home.apiserver.effects import effectless, record_remarks, settings_warnings, unrunnable
from serving.home.apiserver.guard import record_name
from serving.home.apiserver.requests import Fault, RequestTarget, is_set, success
from serving.home.apiserver.unreadevents import UnreadEvents
from serving.home.schemas.patch import APPLIED_VALUES_MAX, check_operations
from serving.home.schemas.records import encode
from serving.home.schemas.schema import is_within
from serving.home.store.budgets import check_budgets
from serving.home.store.history import StoreLimits
from serving.home.store.memory import Apply, MemoryCluster
from serving.net.aio.cooperative import computed
from serving.net.cluster.kinds import POD, REVISION
from serving.net.cluster.port import Cluster, PatchType, Propagation, Subresource

_APPLY = ("application/apply-patch+yaml", "application/apply-patch+json")
_PATCH_TYPES = {patch_type.value: patch_type for patch_type in PatchType if patch_type is not PatchType.APPLY}

_VERSIONS = {"policy/v1", "policy/v1beta1"}


class Sent(msgspec.Struct, frozen=True):
    """A write request.

    ``runs_images``: a container runtime exists. ``pod_security`` is used for warnings about pods; None for no warnings.
    """

    query: MultiMapping[str]
    content_type: str
    data: bytes
    runs_images: bool = False
    pod_security: PodSecurity | None = None


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a write: the response's object, its HTTP status and warnings."""

    object: Object
    status: int = 200
    warnings: tuple[str, ...] = ()


async def create(cluster: MemoryCluster, target: RequestTarget, sent: Sent) -> Written:
    """POST to a collection."""
    if target.name:
        raise Fault(405, "POST needs the path of a collection; PUT and PATCH need the path of an object")
    if target.kind.namespaced and target.namespace is None:
        raise Fault(405, "POST of a namespaced kind needs a namespace in the path")
    body, warnings = await computed(_object_of, target, sent, cluster.limits)
    created = await cluster.create(target.kind, body, dry_run=_dry_run(sent.query))
    return Written(
        object=created, status=201, warnings=await _report(cluster, target, warnings, whole=created, sent=sent)
    )


async def record_event(
    cluster: MemoryCluster, target: RequestTarget, sent: Sent, *, events: UnreadEvents
) -> Written | None:
    """POST or PUT of an Event by a daemon, which is delayed until a client reads Events; None if it must be written."""
    if target.namespace is None or _dry_run(sent.query):
        return None
    body, _ = await computed(_object_of, target, sent, cluster.limits)
    recorded = events.record(body, is_new=not target.name)
    return None if recorded is None else Written(object=recorded, status=200 if target.name else 201)


async def replace(cluster: MemoryCluster, target: RequestTarget, sent: Sent) -> Written:
    """PUT of an object or a subresource."""
    _must_name(target)
    body, warnings = await computed(_object_of, target, sent, cluster.limits)
    replaced = await cluster.replace(target.kind, body, subresource=_part(target), dry_run=_dry_run(sent.query))
    return Written(object=replaced, warnings=await _report(cluster, target, warnings, whole=replaced, sent=sent))


async def patch(cluster: MemoryCluster, target: RequestTarget, sent: Sent) -> Written:
    """PATCH an object or a subresource. The content type selects the patch type."""
    _must_name(target)
    media = sent.content_type.partition(";")[0].strip().lower()
    if media in _APPLY:
        return await _apply(cluster, target, sent)
    if sent.query.get("force", ""):
        raise Fault(422, "force: Forbidden: may not be specified for non-apply patch")
    patch_type = _PATCH_TYPES.get(media)
    if patch_type is None:
        raise Fault(
            415, f"a patch is one of {', '.join((*_PATCH_TYPES, *_APPLY))}, not {media or 'of no content type'}"
        )
    body, warnings = await computed(_patch_of, target, sent, patch_type)
    patched = await cluster.patch(
        target.kind,
        target.one_namespace,
        target.name,
        patch=body,
        patch_type=patch_type,
        subresource=_part(target),
        dry_run=_dry_run(sent.query),
    )
    return Written(object=patched, warnings=await _report(cluster, target, warnings, whole=patched, sent=sent))


def _patch_of(target: RequestTarget, sent: Sent, patch_type: PatchType) -> tuple[Any, "_Warnings"]:
    """A patch, with warnings about what it writes. Raises ``Fault``, ``Invalid``."""
    body = decode_body(sent.data, sent.content_type)
    if not isinstance(body, list if patch_type is PatchType.JSON else dict):
        name = "a list" if patch_type is PatchType.JSON else "an object"
        raise Fault(400, f"a patch of type {sent.content_type} must be {name}")
    if patch_type is PatchType.JSON and isinstance(body, list):
        # Before each operation is examined.
        check_operations(body)
    return body, _warnings(target, touched(body, patch_type), sent)


async def _apply(cluster: MemoryCluster, target: RequestTarget, sent: Sent) -> Written:
    if not sent.query.get("fieldManager", ""):
        raise Fault(422, "fieldManager: Required value: is required for apply patch")
    body, warnings = await computed(_object_of, target, sent, cluster.limits)
    if body["metadata"].get("managedFields"):
        raise Fault(400, "metadata.managedFields must be nil")
    if not is_within(body, APPLIED_VALUES_MAX):
        raise Fault(413, f"an applied configuration has at most {APPLIED_VALUES_MAX} values; replace the object")
    config = body
    if target.subresource == "scale":
        # A scale's entry uses the field name in the object itself.
        spec = body.get("spec") or {}
        config = {"metadata": body["metadata"], "spec": {"replicas": spec["replicas"]} if "replicas" in spec else {}}
    applied, is_new = await cluster.apply(
        Apply(
            kind=target.kind,
            namespace=target.one_namespace,
            name=target.name,
            config=config,
            subresource=_part(target),
            force=is_set(sent.query, "force"),
            dry_run=_dry_run(sent.query),
        )
    )
    return Written(
        object=applied,
        status=201 if is_new else 200,
        warnings=await _report(cluster, target, warnings, whole=applied, sent=sent),
    )


async def delete(cluster: Cluster, target: RequestTarget, sent: Sent) -> Written:
    """DELETE an object. The response is the object if finalizers or a grace period delay its removal, else a Status."""
    if target.subresource:
        raise Fault(405, f"{target.subresource} cannot be deleted")
    body = decode_body(sent.data, sent.content_type) if sent.data.strip() else {}
    return await delete_with(cluster, target, delete_options_of(sent.query, body))


async def delete_with(cluster: Cluster, target: RequestTarget, options: "DeleteOptions") -> Written:
    """Delete an object with parsed options."""
    whole = await cluster.get(target.kind, target.one_namespace, target.name)
    if options.dry_run:
        _check_preconditions(target, whole, options)
        return Written(object=whole)
    await cluster.delete(
        target.kind,
        target.one_namespace,
        target.name,
        uid=options.wants("uid"),
        resource_version=options.wants("resourceVersion"),
        propagation=options.propagation,
        grace_s=options.grace_period_seconds,
    )
    uid = whole.get("metadata", {}).get("uid", "")
    try:
        remaining = await cluster.get(target.kind, target.one_namespace, target.name)
    except NotFound:
        remaining = None
    if remaining is not None and remaining.get("metadata", {}).get("uid", "") == uid:
        return Written(object=remaining)
    return Written(object=success(target, uid))


async def delete_collection(cluster: Cluster, target: RequestTarget, sent: Sent) -> Written:
    """DELETE of all objects that match the selectors, one after another."""
    if target.kind.namespaced and target.namespace is None:
        raise Fault(405, "the deletion of a collection needs a namespace in the path")
    body = decode_body(sent.data, sent.content_type) if sent.data.strip() else {}
    options = delete_options_of(sent.query, body)
    listing = await cluster.list_selection(target.selection(sent.query))
    for whole in () if options.dry_run else listing.items:
        metadata = whole["metadata"]
        try:
            await cluster.delete(
                target.kind,
                metadata.get("namespace", ""),
                metadata["name"],
                uid=metadata.get("uid"),
                propagation=options.propagation,
                grace_s=options.grace_period_seconds,
            )
        except (NotFound, Conflict):
            # The object was deleted, or replaced by one with the same name, since the list.
            continue
    return Written(object=success(target, ""))


def _check_types(target: RequestTarget, body: Object) -> None:
    """Raise ``Fault`` 400 for fields of a wrong type, as kube-apiserver does."""
    kind = target.kind
    if not isinstance(body["metadata"], dict):
        raise Fault(400, "metadata is not an object")
    if target.subresource != "scale" and (wrong := undecodable(kind, body)):
        reasons = ", ".join(f"{problem.where}: {problem.what}" for problem in wrong)
        raise Fault(400, f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: {reasons}')


def _object_of(target: RequestTarget, sent: Sent, limits: StoreLimits) -> tuple[Object, "_Warnings"]:
    """The object of a body, with warnings about it. Raises ``Fault``, ``Invalid``."""
    body = decode_body(sent.data, sent.content_type)
    if not isinstance(body, dict):
        raise Fault(400, "the body is not an object")
    record_name(body)
    kind = target.kind
    # The store checks it too, after other checks; a short body needs no encoding.
    if len(sent.data) > limits.object_bytes_max:
        limits.check_size(kind, encode(body))
    if target.subresource != "scale":
        for field, right in (("apiVersion", kind.api_version), ("kind", kind.name)):
            value = body.get(field)
            if value not in (None, "", right):
                raise Fault(400, f"{field} of the data ({value}) does not match the expected {field} ({right})")
            body[field] = right
    metadata = body.setdefault("metadata", {})
    _check_types(target, body)
    given_name, given_namespace = metadata.get("name"), metadata.get("namespace")
    if target.name and given_name not in (None, "", target.name):
        raise Fault(400, f"the name of the object ({given_name}) does not match the name on the URL ({target.name})")
    if target.namespace and given_namespace not in (None, "", target.namespace):
        raise Fault(400, "the namespace of the provided object does not match the namespace sent on the request")
    if target.name:
        metadata["name"] = target.name
    if target.namespace:
        metadata["namespace"] = target.namespace
    return body, _warnings(target, [body], sent)


class _Warnings(msgspec.Struct, frozen=True):
    """Warnings about dropped or duplicate fields, and the written parts of the object."""

    fields: list[str]
    parts: list[Object]


def _warnings(target: RequestTarget, parts: list[Object], sent: Sent) -> _Warnings:
    """Warnings about complete or partial objects. Raises ``Fault`` 400 if the client requests strict validation."""
    level = sent.query.get("fieldValidation", "")
    duplicates = duplicate_fields(sent.data, sent.content_type) if level != "Ignore" else []
    written = [] if target.subresource == "scale" else parts
    fields = check_fields(target.kind, written, duplicates=duplicates, level=level)
    return _Warnings(fields, parts)


def _effect_warnings(target: RequestTarget, parts: list[Object], sent: Sent) -> list[str]:
    """Warnings about fields without effect, in parts of an object that matches its schema."""
    # Controllers write Revisions.
    if target.subresource or target.kind == REVISION:
        return []
    texts = [
        text
        for part in parts
        for text in (
            *effectless(target.kind, part, runs_images=sent.runs_images),
            *annotation_warnings(target.kind, part),
        )
    ]
    return list(dict.fromkeys(texts))


async def _report(
    cluster: Cluster, target: RequestTarget, warnings: _Warnings, *, whole: Object, sent: Sent
) -> tuple[str, ...]:
    """Return the warnings about a write. Unless it was a dry run, record warnings about effects as Events."""
    texts = await computed(_effect_warnings, target, warnings.parts, sent)
    if not sent.runs_images and not target.subresource:
        texts += unrunnable(target.kind, whole)
    about_settings = settings_warnings(target.kind, whole)
    if sent.pod_security is not None and not target.subresource:
        about_settings += sent.pod_security.warnings(target.kind, whole)
    if texts and target.kind.namespaced and not _dry_run(sent.query):
        await record_remarks(cluster, target.kind, whole, texts=texts)
    return (*warnings.fields, *texts, *about_settings)


def _must_name(target: RequestTarget) -> None:
    if not target.name:
        raise Fault(405, "the server does not allow this method on the requested resource")


def _part(target: RequestTarget) -> Subresource | None:
    return cast("Subresource", target.subresource) if target.subresource else None


def _dry_run(query: Mapping[str, str]) -> bool:
    value = query.get("dryRun", "")
    if value not in {"", "All"}:
        raise Fault(400, f"dryRun is All or nothing, not {value}")
    return value == "All"


class DeleteOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The options of a deletion, from the body and the query. The query takes precedence."""

    kind: Literal["DeleteOptions"] = "DeleteOptions"
    propagation_policy: Literal[""] | Propagation | None = None
    orphan_dependents: bool | None = None
    grace_period_seconds: int | None = None
    preconditions: dict[Literal["uid", "resourceVersion"], str | None] | None = None
    dry_run: list[str] | None = None

    @property
    def propagation(self) -> Propagation:
        """The effective propagation policy."""
        return self.propagation_policy or ("Orphan" if self.orphan_dependents else "Background")

    def wants(self, field: Literal["uid", "resourceVersion"]) -> str | None:
        """The value of a precondition; None if it is not set."""
        return (self.preconditions or {}).get(field)


def delete_options_of(query: MultiMapping[str], body: Any) -> DeleteOptions:  # noqa: ANN401 - as it was sent
    """Read the options of a deletion. Raises ``Fault`` 400."""
    _dry_run(query)
    from_query: dict[str, Any] = {
        "propagationPolicy": query.get("propagationPolicy"),
        "orphanDependents": query.get("orphanDependents"),
        "gracePeriodSeconds": query.get("gracePeriodSeconds"),
        "dryRun": query.getall("dryRun", None),
    }
    if not isinstance(body, dict):
        raise Fault(400, "the body of a deletion is a DeleteOptions")
    try:
        whole = body | {name: value for name, value in from_query.items() if value is not None}
        options = msgspec.convert(whole, type=DeleteOptions, strict=False)
    except msgspec.ValidationError as error:
        raise Fault(400, f"the body of a deletion is a DeleteOptions: {error}") from error
    if options.dry_run not in (None, [], ["All"]):
        raise Fault(400, f"dryRun is All or nothing, not {options.dry_run}")
    if options.grace_period_seconds is not None and options.grace_period_seconds < 0:
        raise Fault(400, "gracePeriodSeconds is 0 or more")
    return options


def _check_preconditions(target: RequestTarget, whole: Object, options: DeleteOptions) -> None:
    metadata = whole.get("metadata", {})
    fields: tuple[Literal["uid", "resourceVersion"], ...] = ("uid", "resourceVersion")
    for field in fields:
        wanted = options.wants(field)
        if wanted not in (None, metadata.get(field)):
            reason = f"the {field} in the precondition ({wanted}) does not match {metadata.get(field)}"
            raise Conflict(f'{target.kind.resource} "{target.name}": {reason}')


async def evict(cluster: Cluster, target: RequestTarget, sent: Sent) -> Written:
    """Delete the pod with the options of the Eviction in the body."""
    body = decode_body(sent.data, sent.content_type)
    if not isinstance(body, Mapping) or body.get("kind") != "Eviction" or body.get("apiVersion") not in _VERSIONS:
        raise Fault(400, "the body is not an Eviction of policy/v1")
    named = name_of(dict(body))
    if named not in {"", target.name}:
        raise Fault(400, f"the name of the Eviction ({named}) does not match the name on the URL ({target.name})")
    options: Any = body.get("deleteOptions") or {}
    if not isinstance(options, Mapping):
        raise Fault(400, "deleteOptions is not an object")
    await check_budgets(cluster, await cluster.get(POD, target.one_namespace, target.name))
    await delete_with(cluster, target, delete_options_of(sent.query, dict(options)))
    done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
    return Written(object=done, status=201)
