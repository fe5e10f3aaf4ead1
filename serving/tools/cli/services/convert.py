"""``serving convert``: Knative manifests from a compose file, and ScaledWorkloads from routes of KEDA's HTTP add-on."""

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from serving.controller.keda.conversion import (
    HTTP_SCALED_OBJECT,
    INTERCEPTOR_ROUTE,
    SCALED_OBJECT,
    convert_route,
    scaled_object_of,
)
from serving.core.model.errors import Invalid, InvalidValue, Problem, SettingsError
from serving.core.model.objects import Object, annotations_of, name_of, namespace_of
from serving.core.model.routepolicy import route_policy
from serving.core.settings.yamltext import STRING_TAG
from serving.home.admission.admission import admit
from serving.home.images.store import ImageStore, ImageUnavailable, build_image
from serving.home.processes.mounts import can_mount
from serving.home.schemas.crds import schema_of
from serving.home.schemas.schema import breaches
from serving.home.state import StateFolder, default_state_path
from serving.net.aio.inputfile import read_input_text
from serving.net.cluster.kinds import kind_of
from serving.tools.cli.client.api import fail, fail_usage, state_option
from serving.tools.cli.client.output import Progress, print_aside
from serving.tools.cli.client.shortnames import UNRESOLVED, privileged_problem, short_url
from serving.tools.cli.services.compose import Converted, from_compose, is_compose, pairs_with_values
from serving.tools.cli.services.containeroptions import read_compose_env_file
from serving.tools.cli.services.interpolation import Interpolation
from serving.tools.cli.services.manifests import ManifestLoader, check_depth

ROUTE_KINDS = frozenset({HTTP_SCALED_OBJECT, INTERCEPTOR_ROUTE})
_KEDA_KINDS = ROUTE_KINDS | {SCALED_OBJECT}
_BOOL_TAG, _BOOLS = "tag:yaml.org,2002:bool", frozenset({"true", "false"})
_STDIN, _CONFIG_MAP = "-", "ConfigMap"


class _ComposeLoader(ManifestLoader):
    """Reads ``yes``, ``no``, ``on`` and ``off`` as strings, as docker compose does."""

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: Any) -> str:  # noqa: ANN401 - the library's own
        """The tag of a node."""
        tag = super().resolve(kind, value, implicit)
        return STRING_TAG if tag == _BOOL_TAG and str(value).lower() not in _BOOLS else tag


def from_keda(documents: Sequence[Object]) -> Converted:
    """A ScaledWorkload for each route of KEDA's HTTP add-on. Raises ``SettingsError`` for unsupported routes."""
    converted = Converted()
    problems = [problem for document in documents for problem in _schema_problems(document)]
    if problems:
        raise SettingsError(problems)
    used: list[Object] = []
    for route in (document for document in documents if document.get("kind") in ROUTE_KINDS):
        near = [document for document in documents if namespace_of(document) == namespace_of(route)]
        beside = [document for document in near if document.get("kind") == SCALED_OBJECT]
        pages = [document for document in near if document.get("kind") == _CONFIG_MAP]
        conversion = convert_route(route, beside, pages=pages)
        if conversion.problems:
            problems += [
                msgspec.structs.replace(problem, where=f"{_title(route)}: {problem.where}")
                for problem in conversion.problems
            ]
            continue
        converted.manifests.append(conversion.workload())
        converted.notes += [f"{_title(route)}: {note}" for note in conversion.notes]
        used += [route, *filter(None, [scaled_object_of(route, beside)])]
    if problems:
        raise SettingsError(problems)
    converted.notes += [
        f"{_title(document)} is not converted"
        if document.get("kind") == SCALED_OBJECT
        else f"{_title(document)} stays as it is: apply it beside the output"
        for document in documents
        if document not in used
    ]
    return converted


def _schema_problems(document: Object) -> Iterator[Problem]:
    """The fields of a KEDA resource with wrong types or values, by the schema of its kind."""
    kind = kind_of(str(document.get("apiVersion")), str(document.get("kind")))
    if kind is not None and document.get("kind") in _KEDA_KINDS:
        for problem in breaches(schema_of(kind), document):
            yield msgspec.structs.replace(problem, where=f"{_title(document)}: {problem.where}")


def _title(document: Object) -> str:
    return f"{document.get('kind', '')} {name_of(document)}"


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--build/--no-build",
    "is_building",
    default=True,
    show_default=True,
    help="Build the images of compose services with `build`, using buildah, podman or docker, and store them on this machine.",
)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    envvar="COMPOSE_PROFILES",
    metavar="NAME",
    help="Also convert the services of this compose profile; '*' selects all profiles.",
)
@state_option
def convert(*, files: tuple[str, ...], is_building: bool, profiles: tuple[str, ...], state_path: Path | None) -> None:
    """Print Knative manifests for compose files, and ScaledWorkloads for HTTPScaledObjects or InterceptorRoutes.

    Notes about parts without an equivalent go to standard error. `serving convert compose.yaml | serving apply -f -`
    applies them.
    """
    chosen = {name for profile in profiles for name in profile.split(",")}
    converted = _converted([(file, document) for file in files for document in _documents(file)], chosen)
    for override in _overrides(files):
        print_aside(f"note: {override} is not read; `docker compose config` prints one file of both")
    for note in (*converted.notes, *_name_notes(converted.manifests)):
        print_aside(f"note: {note}")
    if not converted.manifests:
        fail_usage(
            f"{', '.join(files)}: nothing to convert; expected a compose file with services, an HTTPScaledObject or an InterceptorRoute"
        )
    if is_building:
        _build(converted, ImageStore(StateFolder((state_path or default_state_path()).absolute()).images))
    else:
        for build, _ in converted.builds:
            print_aside(
                f"note: {build.name}: build is not converted; `serving deploy {build.name} FOLDER` deploys a folder"
            )
    for problem in _rejections(converted.manifests):
        print_aside(f"note: {problem}")
    click.echo(yaml.safe_dump_all(converted.manifests, sort_keys=False, default_flow_style=False), nl=False)


def _overrides(files: Iterable[str]) -> list[Path]:
    """The override files beside compose files, which docker compose reads by itself."""
    paths = [Path(file) for file in files if Path(file).stem in {"compose", "docker-compose"}]
    beside = [path.with_stem(f"{path.stem}.override") for path in paths]
    return [path for path in beside if path.is_file() and str(path) not in files]


def _name_notes(manifests: Iterable[Object]) -> Iterator[str]:
    """Notes on why pods on this machine cannot resolve short names of services."""
    named = [manifest for manifest in manifests if short_url(manifest)]
    if named and not can_mount():
        yield f"{UNRESOLVED}; this concerns {', '.join(map(short_url, named))}"
        return
    for service in named:
        problem = privileged_problem(route_policy(annotations_of(service)).named_port)
        if problem:
            yield f"{short_url(service)}: {problem}"


def _rejections(manifests: Iterable[Object]) -> Iterator[str]:
    """Why the API would reject manifests, for example because of a reserved port."""
    for manifest in manifests:
        kind = kind_of(manifest["apiVersion"], manifest["kind"])
        assert kind is not None
        try:
            admit(kind, manifest, is_one_machine=True)
        except Invalid as error:
            yield f"{error}; `serving apply` fails until this is changed"


def _build(converted: Converted, store: ImageStore) -> None:
    """Build the images, and set their names in the manifests.

    The images stay until a user removes them, because the manifests may be used later.
    """
    for build, container in converted.builds:
        try:
            with Progress(f"building {build.name}"):
                container["image"] = build_image(build, store, is_kept=True)
        except InvalidValue as error:
            fail_usage(f"services.{build.name}.build: {error}")
        except ImageUnavailable as error:
            fail(f"{error}; with --no-build nothing is built")
        except OSError as error:
            fail(f"{error.filename or store.folder}: {error.strerror}")


def _converted(documents: Sequence[tuple[str, Any]], profiles: Collection[str]) -> Converted:
    converted, owners = Converted(), dict[object, str]()
    for file, document in documents:
        if is_compose(document):
            for name in document["services"]:
                if owners.setdefault(name, file) != file:
                    fail_usage(
                        f"{file}: services.{name} is in {owners[name]}, too; `docker compose config` merges files"
                    )
            _add(converted, _converted_compose(file, document, profiles))
    if any(document.get("kind") in ROUTE_KINDS for _, document in documents):
        _add(converted, from_keda([document for _, document in documents if not is_compose(document)]))
    return converted


def _converted_compose(file: str, document: Mapping[str, Any], profiles: Collection[str]) -> Converted:
    """Convert a compose file. Variables come from the environment and from .env in the file's folder."""
    folder = Path() if file == _STDIN else Path(file).parent
    interpolation = Interpolation(os.environ)
    # A folder with this name is a virtual environment.
    if (folder / ".env").is_file():
        read_compose_env_file(folder / ".env", interpolation)
    services = interpolation.services(document["services"], f"{file}: services")
    for name, service in services.items():
        if isinstance(service, dict) and service.get("env_file"):
            services[name] = _with_env_files(service, folder, interpolation, where=f"{file}: services.{name}")
    try:
        converted = from_compose(
            {**document, "services": services},
            folder=folder.absolute(),
            environment=interpolation.variables,
            profiles=profiles,
        )
    except InvalidValue as error:
        fail_usage(f"{file}: {error}")
    unset = sorted(interpolation.unset)
    if unset:
        hint = f"$${unset[0]} leaves ${unset[0]} to the container"
        converted.notes.append(f"{file}: without a value, so empty: {', '.join(unset)}; {hint}")
    return converted


def _with_env_files(service: Object, folder: Path, interpolation: Interpolation, *, where: str) -> Object:
    """The service with the variables of its env files. Its ``environment`` overrides them."""
    environment = pairs_with_values(service.get("environment") or {}, "variables", interpolation.variables)
    values: dict[str, str] = {}
    env_files = service["env_file"]
    for env_file in env_files if isinstance(env_files, list) else [env_files]:
        entry = env_file if isinstance(env_file, dict) else {"path": env_file}
        if entry.get("format"):
            raise InvalidValue(text=str(entry["format"]), expected=f"a format of {where}.env_file: leave it out")
        path = folder / str(entry.get("path"))
        if not path.exists() and not entry.get("required", True):
            continue
        # The file's variables differ from those of the compose file.
        own = Interpolation({**environment, **interpolation.variables})
        try:
            values |= read_compose_env_file(path, own)
        except OSError as error:
            fail_usage(f"{where}.env_file: {path}: {error.strerror}")
        interpolation.unset |= own.unset
    rest = {key: value for key, value in service.items() if key != "env_file"}
    return {**rest, "environment": {**values, **environment}}


def _add(converted: Converted, part: Converted) -> None:
    converted.manifests += part.manifests
    converted.notes += part.notes
    converted.builds += part.builds


def _documents(file: str) -> list[dict[str, Any]]:
    try:
        text = sys.stdin.read() if file == _STDIN else read_input_text(Path(file))
        check_depth(text)
        documents = list(yaml.load_all(text, Loader=_ComposeLoader))
    except (OSError, UnicodeDecodeError) as error:
        # Standard input is a text stream.
        fail_usage(f"{file}: {error.strerror if isinstance(error, OSError) else 'not a text file'}")
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        fail_usage(f"{file}{line}: not YAML: {error.problem or error.context}")
    except yaml.YAMLError as error:
        fail_usage(f"{file}: not YAML: {' '.join(str(error).split())}")
    return [item for document in documents if isinstance(document, dict) for item in _items(document)]


def _items(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of a List, as `kubectl get -o yaml` prints it; the document itself otherwise."""
    items = document.get("items")
    is_list = str(document.get("kind")).endswith("List") and isinstance(items, list)
    return [item for item in items if isinstance(item, dict)] if is_list and items else [document]
