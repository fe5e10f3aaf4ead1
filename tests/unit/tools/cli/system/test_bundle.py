"""The archive of `serving bundle` contains no secret."""

import base64
import json
import tarfile
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from click.testing import CliRunner

from serving.home.state import SECRET_FILES
from serving.home.store.journal import Journal, JournalEntry
from serving.tools.cli.main import main
from serving.tools.cli.system.bundle import redacted, secret_forms, without_values

SECRET = "hunter2hunter2"  # noqa: S105 - of the test
VALUES = {
    "a line": b"hunter2hunter2\n",
    "spaces": b"  hunter2hunter2 \r\n",
    "base64": base64.b64encode(b"hunter2hunter2\n"),
    "base64 of URLs": base64.urlsafe_b64encode(b"hunter2hunter2").rstrip(b"="),
    "an environment": b"# of the database\nUSER=me\nexport_PASSWORD='hunter2hunter2'\n",
    "JSON": b'{"auths": {"r.example": {"auth": ["hunter2hunter2"]}}}\n',
    "YAML": b"user: me\npin: hunter2hunter2\n",
    "lines": b"first first\nhunter2hunter2\n",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"log: {SECRET} was here", "log: <removed> was here"),
        ('{"Authorization": "Bearer abc.def"}', '{"Authorization": "Bearer <removed>"}'),
        ("run --password=open --verbose", "run --password=<removed> --verbose"),
        ("GET /?api_key=abc&page=2", "GET /?api_key=<removed>&page=2"),
        ("-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\n", "<removed>\n"),
        ("run --db-password open --token-file --verbose", "run --db-password <removed> --token-file --verbose"),
        ('["--token", "abc", "--port", "80"]', '["--token", "<removed>", "--port", "80"]'),
        ("postgres://me:open@db/x http://a:80/b@c", "postgres://me:<removed>@db/x http://a:80/b@c"),
        ('{"event": "peer.met", "peer": 1}', '{"event": "peer.met", "peer": 1}'),
        (
            "/exec?command=sh&command=-c&command=echo+x&stdin=1",
            "/exec?command=<removed>&command=<removed>&command=<removed>&stdin=1",
        ),
        ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln for it", "got <removed> for it"),
        ("key AKIAABCDEFGHIJKLMNOP, ghp_abcdefghijklmnopqrstuvwxyz", "key <removed>, <removed>"),
        ("sent bearer abcdefgh.12 and Basic dXNlcjpwYXNz", "sent bearer <removed> and Basic <removed>"),
        ("Wd3kX0b4Yq7pT1vJz9LmN8cRfHsAe2uGgKoQiVxBnM5 opens", "<removed> opens"),
        (
            "sha256:" + "0123456789abcdef" * 4 + " of hello-00001-deployment-7c9d8f6b5-abcde",
            "sha256:" + "0123456789abcdef" * 4 + " of hello-00001-deployment-7c9d8f6b5-abcde",
        ),
    ],
)
def test_secrets_in_a_text_are_redacted(text: str, expected: str) -> None:
    assert redacted(text, [SECRET]) == expected


def test_env_values_are_redacted_and_secret_references_are_retained() -> None:
    env = [{"name": "A", "value": "x"}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "db", "key": "p"}}}]
    result = without_values({"spec": [{"env": env}], "metadata": {"managedFields": [], "name": "one"}})
    assert result == {"spec": [{"env": [{"name": "A", "value": "<removed>"}, env[1]]}], "metadata": {"name": "one"}}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_secret_is_redacted_in_each_encoding(value: bytes) -> None:
    forms = secret_forms([value])
    shown = [
        SECRET,
        base64.b64encode(SECRET.encode()).decode(),
        SECRET.encode().hex(),
        *(base64.b64encode(text).decode() for text in (value, value.strip())),
        quote(value),
        quote_plus(value),
        json.dumps(value.decode())[1:-1],
        json.dumps(json.dumps(value.decode()))[3:-3],
    ]
    assert [text for text in shown if redacted(f"[{text}]", forms) != "[<removed>]"] == []


@pytest.mark.parametrize("text", ["p@ss/w\u00f6rd+1 x", 'quo"te\\back', "%41%42%43%zz"])
def test_secret_with_special_characters_is_redacted_in_urls_and_json(text: str) -> None:
    forms = secret_forms([text.encode()])
    written = [
        quote(text, safe=""),
        quote(text),
        quote_plus(text),
        quote(text, safe="").lower(),
        json.dumps(text)[1:-1],
    ]
    assert [form for form in written if redacted(f"[{form}]", forms) != "[<removed>]"] == []


def test_exec_probe_arguments_and_binary_data_are_redacted() -> None:
    probe = {"exec": {"command": ["psql", "--pin", SECRET]}, "periodSeconds": 1}
    result = without_values({"livenessProbe": probe, "binaryData": {"key": SECRET}})
    assert result == {
        "livenessProbe": {"exec": {"command": ["psql", "<removed>"]}, "periodSeconds": 1},
        "binaryData": {"key": "<removed>"},
    }


def test_last_applied_annotation_is_removed_and_data_is_redacted() -> None:
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": SECRET, "a": "b"}
    result = without_values({"metadata": {"annotations": annotations}, "data": {"key": SECRET}})
    assert result == {"metadata": {"annotations": {"a": "b"}}, "data": {"key": "<removed>"}}


async def test_bundle_of_a_stopped_system_contains_no_secret(tmp_path: Path) -> None:
    """Takes two seconds, because the collected commands start processes."""
    state, file = tmp_path / "state", tmp_path / "bundle.tar.gz"
    (state / "logs").mkdir(parents=True)
    for name in SECRET_FILES:
        (state / name).write_text(f"{name}-of-the-api")
    words = ", ".join(f"{name}-of-the-api" for name in SECRET_FILES)
    (state / "logs" / "control.log").write_text(f"connected with {SECRET}, token-of-the-api\nalso {words}\n")
    journal = Journal(state / "journal.db")
    data = b'{"metadata":{"name":"db"},"data":{"password":"%s"}}' % base64.b64encode(f"{SECRET}\n".encode())
    journal.write_now([JournalEntry(kind="secrets", namespace="default", name="db", data=data)])
    await journal.close()
    done = CliRunner().invoke(main, ["bundle", str(file), f"--state={state}"])
    assert done.exit_code == 0, done.output
    assert file.stat().st_mode & 0o077 == 0
    with tarfile.open(file) as archive:
        names = archive.getnames()
        texts = [
            extractfile.read().decode() for name in names if (extractfile := archive.extractfile(name)) is not None
        ]
    assert {"serving-bundle/doctor.json", "serving-bundle/version.json", "serving-bundle/logs/control.log"} <= set(
        names
    )
    assert "connected with <removed>, <removed>\nalso <removed>, <removed>, <removed>, <removed>\n" in texts
    assert not [text for text in texts if SECRET in text or "-of-the-api" in text]
    assert "File exists" in CliRunner().invoke(main, ["bundle", str(file), f"--state={state}"]).output


def test_bundle_of_a_missing_state_folder_is_rejected(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["bundle", str(tmp_path / "b.tar.gz"), f"--state={tmp_path}/nowhere"])
    assert (done.exit_code, "nowhere; `serving up` creates one" in done.output) == (1, True)
