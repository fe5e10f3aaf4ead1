"""``serving bundle``: collects data for a bug report in one archive, without secrets."""

import base64
import binascii
import contextlib
import io
import json
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import click
import msgspec

from serving.core.model.errors import UNREADABLE, ServingError
from serving.core.model.knative import LAST_APPLIED_ANNOTATION
from serving.core.model.objects import name_of
from serving.home.state import StateFolder, naming
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import KINDS, POD, SECRET
from serving.tools.cli.client.api import ApiCall, ApiClient, Place, fail, place_options
from serving.tools.cli.client.output import print_aside
from serving.tools.cli.client.resources import path_of
from serving.tools.cli.client.stats import Stats
from serving.tools.cli.client.tree import OUR_LABEL

# The end of each log: days of a calm system, minutes of a failing one.
_LOG_BYTES = 2 * 2**20
_LOG_LINES = "20000"
_REMOVED = "<removed>"
# Shorter secrets occur in other words by chance.
_SECRET_CHARACTERS_MIN = 6
# Parts of an object that repeat other parts, including values.
_COPIES = frozenset({"managedFields", LAST_APPLIED_ANNOTATION})
_COMMANDS = {
    "version.json": ("version", "--client", "-o", "json"),
    "status.json": ("status", "-o", "json"),
    "doctor.json": ("doctor", "-o", "json"),
    "settings.json": ("config", "show", "-o", "json"),
}
_NAMED = re.compile(
    r"""(?i)((?:password|passwd|secret|token|api[_-]?key|authorization)["']?\s*[=:]\s*["']?(?:bearer\s+|basic\s+)?)[^\s"',;&}]+"""
)
# An option of a command line whose value is the next word.
_OPTION = re.compile(r"""(?i)(--[\w-]*(?:password|passwd|secret|token|api[_-]?key)["']?[\s,]+["']?)(?!-)[^\s"',;&}]+""")
_URL_PASSWORD = re.compile(r"""(://[^\s/:@"']*:)[^\s/@"']+(?=@)""")
# Words of a command in a pod, as in a request's URI in the audit log.
_WORDS = re.compile(r"""([?&]command=)[^&\s"']+""")
# Tokens by their form, also of deleted Secrets: JSON Web Tokens, tokens of clouds and forges, and long random words.
# Names and digests have no capitals.
_SHAPES = (
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?"),
    re.compile(
        r"\b(?:A[KS]IA[0-9A-Z]{16}|gh[a-z]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[a-z]-[\w-]{10,}|AIza[\w-]{30,})"
    ),
    re.compile(r"\bsk-[\w-]{16,}"),
    re.compile(r"(?i)(?<=\b(?:bearer|digest) )[\w.~+/=-]{8,}|(?<=\bbasic )[\w+/=-]{6,}"),
    re.compile(r"(?<![\w+/-])(?=[\w-]*[A-Z])(?=[\w-]*[a-z])(?=[\w-]*\d)[\w-]{40,}={0,2}"),
)
_ASSIGNED = re.compile(rb"""^[\s"'-]*[\w.-]+["']?\s*[=:]\s*["']?([^"'\s][^"']*?)["']?[\s,;]*$""")
_ESCAPE = re.compile("%[0-9A-F]{2}")
_URL_SAFE = str.maketrans("-_", "+/")
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@place_options
def bundle(*, place: Place, file: Path) -> None:
    """Write FILE (.tar.gz) for a bug report: checks, versions, settings with their origin, objects, decisions, logs.

    Secrets, values of environment variables and ConfigMaps, and logs of pods are left out. Check FILE before you
    publish it: a command line or a log may contain a secret that the command cannot recognise.
    """
    if place.state_path is None:
        api = place.api()
        secrets, parts = _cluster_secrets(api), _cluster_parts(place, api)
    else:
        state = StateFolder(place.state_path.absolute())
        if not state.path.exists():
            fail(f"there is no {state.path}; `serving up` creates one, --state selects another")
        running = ApiClient(state.path) if state.holder() is not None else None
        secrets, parts = _secrets(state, running), _parts(state, running)
    count = 0
    with naming(file), file.open("xb") as out:
        try:
            with tarfile.open(fileobj=out, mode="w:gz") as archive:
                for name, text in parts:
                    content = redacted(text, secrets).encode()
                    entry = tarfile.TarInfo(f"serving-bundle/{name}")
                    entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
                    archive.addfile(entry, io.BytesIO(content))
                    count += 1
            out.flush()
        except OSError:
            # Half a file would look like a bundle.
            file.unlink()
            raise
    file.chmod(0o600)
    click.echo(
        f"{file}: {count} files, {file.stat().st_size / 1024:.0f} KiB, without secrets; look into it before you publish it"
    )


def redacted(text: str, secrets: list[str]) -> str:
    """A text without the given secrets, private keys, passwords in URLs, and values of names such as "token"."""
    for secret in secrets:
        text = text.replace(secret, _REMOVED)
    text = _PEM.sub(_REMOVED, text)
    for pattern in (_NAMED, _OPTION, _URL_PASSWORD, _WORDS):
        text = pattern.sub(rf"\1{_REMOVED}", text)
    for shape in _SHAPES:
        text = shape.sub(_REMOVED, text)
    return text


def without_values(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Remove values of environment variables, data of ConfigMaps, and command words of ``exec`` probes.

    Settings are in a separate file.
    """
    if isinstance(value, list):
        return [without_values(element) for element in value]
    if not isinstance(value, dict):
        return value
    fields = {name: without_values(field) for name, field in value.items() if name not in _COPIES}
    for name in ("data", "binaryData", "stringData"):
        if isinstance(fields.get(name), dict):
            fields[name] = dict.fromkeys(fields[name], _REMOVED)
    if isinstance(fields.get("env"), list):
        fields["env"] = [
            {**variable, "value": _REMOVED} if isinstance(variable, dict) and "value" in variable else variable
            for variable in fields["env"]
        ]
    if isinstance(fields.get("exec"), dict) and isinstance(fields["exec"].get("command"), list):
        fields["exec"]["command"] = [*fields["exec"]["command"][:1], _REMOVED]
    return fields


def _command_parts(*options: str) -> Iterator[tuple[str, str]]:
    """Yield the name and content of a file for each command: its output. ``options`` select the system."""
    for name, words in _COMMANDS.items():
        command = [sys.executable, "-m", "serving", *words, *(options if name != "version.json" else ())]
        done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - our own CLI
        yield name, done.stdout or done.stderr


def _object_parts(api: ApiClient) -> Iterator[tuple[str, str]]:
    """Yield the name and content of a file for each kind: its objects. Secrets and unreadable kinds are left out."""
    for kind in KINDS:
        # The API warns about Endpoints, which repeat EndpointSlices.
        if kind != SECRET and kind.resource != "endpoints":
            items = api.peek(path_of(kind, None)).get("items")
            if items:
                yield f"objects/{kind.resource}.json", json.dumps(without_values(items), indent=1)


def _cluster_parts(place: Place, api: ApiClient) -> Iterator[tuple[str, str]]:
    """Name and content of each file on a cluster. Of all logs, only the daemons' are included."""
    yield from _command_parts(
        f"--kubeconfig={place.kubeconfig}", *(() if place.context is None else (f"--context={place.context}",))
    )
    yield from _object_parts(api)
    try:
        stats = Stats(None, api)
    except ServingError as error:
        yield "decisions/missing.txt", str(error)
    else:
        yield "decisions/decisions.jsonl", "\n".join(body.decode() for body in stats.decisions())
    listing = api.peek(path_of(POD, system_namespace()), labelSelector="=".join(OUR_LABEL))
    for pod in listing.get("items", ()):
        name = name_of(pod)
        for run, query in (("", {}), (".before", {"previous": "true"})):
            path = path_of(POD, system_namespace(), name, subresource="log")
            log = ApiCall(
                path=path, query={"limitBytes": str(_LOG_BYTES), "tailLines": _LOG_LINES, **query}, accept="*/*"
            )
            with contextlib.suppress(ServingError), api.stream(log) as response:
                yield f"logs/{name}{run}.log", b"".join(response.pieces()).decode("utf-8", "replace")


def _cluster_secrets(api: ApiClient) -> list[str]:
    """The values of all Secrets that the user may list. The daemons log no other Secrets."""
    for namespace in (None, system_namespace()):
        listing = api.peek(path_of(SECRET, namespace))
        if listing:
            return secret_forms(
                {_decoded(str(text)) for each in listing["items"] for text in (each.get("data") or {}).values()}
            )
    print_aside("you may not list Secrets: only what looks like one is removed")
    return []


def _parts(state: StateFolder, api: ApiClient | None) -> Iterator[tuple[str, str]]:
    """Name and content of each file."""
    yield from _command_parts(f"--state={state.path}")
    if api is not None:
        yield from _object_parts(api)
    for path in sorted({*state.path.glob("decisions.jsonl*"), *state.logs.glob("*.log*")}):
        with path.open("rb") as log:
            cut = path.stat().st_size - _LOG_BYTES
            if cut > 0:
                log.seek(cut)
                # The rest of a line may be the rest of a secret, and could not be recognised.
                log.readline()
            yield (
                f"{'logs' if path.parent == state.logs else 'decisions'}/{path.name}",
                log.read(_LOG_BYTES).decode("utf-8", "replace"),
            )


def _secrets(state: StateFolder, api: ApiClient | None) -> list[str]:
    """All secrets of the state folder and the store, in each form that may be written, longest first."""
    values = {path.read_bytes() for path in state.secrets if path.exists()}
    objects = _stored_secrets(state) if api is None else api.done("GET", path_of(SECRET, None))["items"]
    for secret in objects:
        for text in (secret.get("data") or {}).values():
            values.add(_decoded(str(text)) or str(text).encode())
        values.update(str(text).encode() for text in (secret.get("stringData") or {}).values())
    return secret_forms(values)


def secret_forms(values: Iterable[bytes]) -> list[str]:
    """The forms in which secrets may be written, longest first: whole, in parts, trimmed, encoded and decoded."""
    plain = {part for value in values for part in _parts_of(value)}
    plain |= {decoded for part in plain if (decoded := _decoded(part.decode("latin-1")))}
    texts = set[str]()
    for part in plain | {part.strip() for part in plain}:
        text = part.decode("utf-8", "replace")
        encoded = base64.b64encode(part).decode(), base64.urlsafe_b64encode(part).decode()
        quoted = quote(part, safe=""), quote(part), quote_plus(part)
        texts.update((text, *encoded, *(form.rstrip("=") for form in encoded), part.hex(), part.hex().upper(), *quoted))
        texts.update(_ESCAPE.sub(lambda match: match[0].lower(), form) for form in quoted)
    # In a log line, and in a JSON document quoted by the line.
    for _ in range(2):
        texts |= {json.dumps(text)[1:-1] for text in texts} | {
            json.dumps(text, ensure_ascii=False)[1:-1] for text in texts
        }
    return sorted((text for text in texts if len(text) >= _SECRET_CHARACTERS_MIN), key=len, reverse=True)


def _parts_of(value: bytes) -> Iterator[bytes]:
    """The parts of a value that may be secret: the value, its lines, values after a name, and texts in JSON."""
    yield value
    # A certificate is public; a key is found by its form.
    lines = [] if b"-----BEGIN" in value else value.splitlines()
    for line in lines if len(lines) > 1 else ():
        yield line
    for line in lines:
        yield from filter(None, _ASSIGNED.findall(line))
    if value.lstrip()[:1] in (b"{", b"["):
        with contextlib.suppress(*UNREADABLE):
            yield from _texts_in(msgspec.json.decode(value))


def _texts_in(document: Any) -> Iterator[bytes]:  # noqa: ANN401 - JSON
    pending = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value.encode("utf-8", "replace")
        elif isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value


def _decoded(text: str) -> bytes:
    """A text decoded from either base64 alphabet; empty for invalid text."""
    try:
        word = "".join(text.split()).rstrip("=").translate(_URL_SAFE)
        return base64.b64decode(word + "=" * (-len(word) % 4), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _stored_secrets(state: StateFolder) -> list[dict[str, Any]]:
    """The Secrets in the store of a stopped system."""
    from serving.home.store.repair import read_damaged  # noqa: PLC0415 - the store, for a stopped system alone

    if not state.journal.exists():
        return []
    return [
        json.loads(entry.data or b"{}")
        for entry in read_damaged(state.journal).entries
        if entry.kind == SECRET.resource
    ]
