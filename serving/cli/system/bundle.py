"""``serving bundle``: collects what a bug report needs in one archive, without secrets."""

import base64
import binascii
import io
import json
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from serving.cli.client.api import ApiClient, fail, state_option
from serving.cli.client.resources import path_of
from serving.cluster.kinds import KINDS, SECRET
from serving.home.state import StateFolder, default_state_path
from serving.model.knative import LAST_APPLIED_ANNOTATION

# The end of each log: days of a calm system, minutes of a bad one.
_LOG_BYTES = 2 * 2**20
_REMOVED = "<removed>"
# Shorter ones are in other words by chance.
_SECRET_CHARACTERS_MIN = 6
# Parts of an object that repeat others, values included.
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
# An option of a command line, whose value is the next word.
_OPTION = re.compile(r"""(?i)(--[\w-]*(?:password|passwd|secret|token|api[_-]?key)["']?[\s,]+["']?)(?!-)[^\s"',;&}]+""")
_URL_PASSWORD = re.compile(r"""(://[^\s/:@"']*:)[^\s/@"']+(?=@)""")
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@state_option
def bundle(*, file: Path, state_path: Path | None) -> None:
    """Write FILE (.tar.gz) for a bug report: checks, versions, settings with their origin, objects, decisions, logs.

    Secrets, values of environment variables and ConfigMaps, and logs of pods are not in it. Look into it before you publish it: a command line
    or a log may have what only you know to be secret.
    """
    state = StateFolder((state_path or default_state_path()).absolute())
    if not state.path.exists():
        fail(f"there is no {state.path}; `serving up` makes one, --state names another")
    api = ApiClient(state.path) if state.holder() is not None else None
    secrets = _secrets(state, api)
    count = 0
    with file.open("xb") as out, tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in _parts(state, api):
            content = redacted(text, secrets).encode()
            entry = tarfile.TarInfo(f"serving-bundle/{name}")
            entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(content))
            count += 1
    file.chmod(0o600)
    click.echo(
        f"{file}: {count} files, {file.stat().st_size / 1024:.0f} KiB, without secrets; look into it before you publish it"
    )


def redacted(text: str, secrets: list[str]) -> str:
    """A text without the given secrets, private keys, passwords of URLs, and values that are named as secrets."""
    for secret in secrets:
        text = text.replace(secret, _REMOVED)
    text = _PEM.sub(_REMOVED, text)
    for pattern in (_NAMED, _OPTION, _URL_PASSWORD):
        text = pattern.sub(rf"\1{_REMOVED}", text)
    return text


def without_values(found: Any) -> Any:  # noqa: ANN401 - JSON
    """An object without the values of its environment variables and, of a ConfigMap, its data. Settings have a file of their own."""
    if isinstance(found, list):
        return [without_values(one) for one in found]
    if not isinstance(found, dict):
        return found
    kept = {key: without_values(value) for key, value in found.items() if key not in _COPIES}
    if isinstance(kept.get("data"), dict):
        kept["data"] = dict.fromkeys(kept["data"], _REMOVED)
    if isinstance(kept.get("env"), list):
        kept["env"] = [{**one, "value": _REMOVED} if "value" in one else one for one in kept["env"]]
    return kept


def _parts(state: StateFolder, api: ApiClient | None) -> Iterator[tuple[str, str]]:
    """Name and content of each file."""
    for name, words in _COMMANDS.items():
        command = [sys.executable, "-m", "serving", *words]
        if name != "version.json":
            command.append(f"--state={state.path}")
        done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - our own CLI
        yield name, done.stdout or done.stderr
    if api is not None:
        for kind in KINDS:
            if kind != SECRET:
                status, found = api.call("GET", path_of(kind, None))
                if status == 200 and found.get("items"):
                    yield f"objects/{kind.resource}.json", json.dumps(without_values(found["items"]), indent=1)
    for path in sorted({*state.path.glob("decisions.jsonl*"), *state.logs.glob("*.log*")}):
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _LOG_BYTES))
            yield (
                f"{'logs' if path.parent == state.logs else 'decisions'}/{path.name}",
                log.read().decode("utf-8", "replace"),
            )


def _secrets(state: StateFolder, api: ApiClient | None) -> list[str]:
    """All secrets of the folder and the store in each form in which they may be written, longest first."""
    found = {path.read_bytes().strip() for path in state.secrets if path.exists()}
    objects = _stored_secrets(state) if api is None else api.done("GET", path_of(SECRET, None))["items"]
    for one in objects:
        for text in (one.get("data") or {}).values():
            try:
                found.add(base64.b64decode(text))
            except (binascii.Error, ValueError):
                found.add(str(text).encode())
    forms = {
        form for one in found for form in (one.decode("utf-8", "replace"), base64.b64encode(one).decode(), one.hex())
    }
    forms |= {json.dumps(form)[1:-1] for form in forms}
    return sorted((one for one in forms if len(one) >= _SECRET_CHARACTERS_MIN), key=len, reverse=True)


def _stored_secrets(state: StateFolder) -> list[dict[str, Any]]:
    """The Secrets of a system that does not run."""
    from serving.home.store.repair import read_damaged  # noqa: PLC0415 - the store, for a stopped system alone

    if not state.journal.exists():
        return []
    return [json.loads(one.data or b"{}") for one in read_damaged(state.journal).kept if one.kind == SECRET.resource]
