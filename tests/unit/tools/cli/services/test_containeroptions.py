import json
from pathlib import Path
from typing import Any

import pytest

from serving.core.model.errors import InvalidValue, SettingsError
from serving.core.model.objects import Object
from serving.tools.cli.client.api import ApiClient
from serving.tools.cli.services.containeroptions import (
    limits_of,
    pairs_of,
    policy_name,
    ports_of,
    read_env_file,
    secrets_of,
    variables_from,
    variables_of,
    volumes_of,
    with_limits,
    with_volumes,
)


def cli_options(
    *, pairs: tuple[str, ...] = (), files: tuple[Path, ...] = (), secrets: tuple[str, ...] = ()
) -> dict[str, Any]:
    return {"pairs": pairs, "env_files": files, "secrets": secrets, "rest": 1}


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    return tmp_path / ".env"


@pytest.mark.parametrize("text", ["A", "=b"])
def test_env_option_needs_name_and_value(text: str) -> None:
    with pytest.raises(InvalidValue, match="NAME=VALUE after --env"):
        pairs_of([text], "--env", "NAME")
    assert pairs_of(["A=b=c", "D="], "--env", "NAME") == {"A": "b=c", "D": ""}


def test_repeated_env_option_is_rejected() -> None:
    with pytest.raises(InvalidValue, match="the only --env for A"):
        pairs_of(["A=1", "A=2"], "--env", "NAME")


def test_env_file_accepts_bom_comments_export_and_quotes(env_file: Path) -> None:
    env_file.write_bytes(
        b'\xef\xbb\xbf# all of it\r\nA=1\r\nexport B="x y" # why\nC=\'lit $A\'\n\nD=\nE="two\nlines"\n'
    )
    assert read_env_file(env_file) == {"A": "1", "B": "x y", "C": "lit $A", "D": "", "E": "two\nlines"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"A=1\nB\n", ".env:2: 'B'; expected NAME=VALUE"),
        (b"A=1\n=oops\n", ".env:2: '=oops'; expected NAME=VALUE"),
        (b"A=1\n\nA=2\n", ".env:3: A again; expected each name once; line 1 has it"),
        (b"A=x\x00y\n", ".env:1: "),
        (b"A=1\nB=\xff\xfe\n", ".env: byte 6 is not UTF-8; expected a text file"),
        (b"\x7fELF\x02\x01\x01\x00", ".env:1: "),
        (b"A=" + b"x" * 1_000_000, ".env: too large; expected at most 262,144 bytes"),
    ],
)
def test_invalid_env_file_is_reported_with_its_line(env_file: Path, content: bytes, message: str) -> None:
    env_file.write_bytes(content)
    with pytest.raises(SettingsError) as raised:
        read_env_file(env_file)
    assert message in str(raised.value)


def test_all_invalid_env_file_lines_are_reported(env_file: Path) -> None:
    env_file.write_text("A\nB=1\nC\n")
    with pytest.raises(SettingsError) as raised:
        read_env_file(env_file)
    assert [problem.where for problem in raised.value.problems] == [f"{env_file}:1", f"{env_file}:3"]


def test_env_option_overrides_the_env_file(env_file: Path) -> None:
    env_file.write_text("A=1\nB=2\n")
    options = cli_options(pairs=("A=3",), files=(env_file,), secrets=("P=db:password",))
    assert variables_from(options) == ({"A": "3", "B": "2"}, {"P": {"name": "db", "key": "password"}})
    assert options == {"rest": 1}


def test_variable_from_env_and_secret_is_rejected() -> None:
    with pytest.raises(InvalidValue, match=r"'P' is not a variable of --secret only"):
        variables_from(cli_options(pairs=("P=1",), secrets=("P=db:password",)))


def test_oversized_variable_is_rejected() -> None:
    assert variables_from(cli_options(pairs=("A=" + "x" * 131_069,)))[0]["A"]
    with pytest.raises(SettingsError, match=r"variable A: 131,072 bytes; expected at most 131,071"):
        variables_from(cli_options(pairs=("A=" + "x" * 131_070,)))


@pytest.mark.parametrize("text", ["P", "P=db", "P=:key", "P=db:", "P=DB:key", "P=../x:key", "=db:key", "P=db:k:v"])
def test_invalid_secret_option_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"=VALUE after --secret|DB_PASSWORD=db:password"):
        secrets_of([text])


def test_secret_option_becomes_a_secret_key_ref() -> None:
    assert variables_of({"A": "1"}, secrets_of(["P=db.main:tls.key"])) == [
        {"name": "A", "value": "1"},
        {"name": "P", "valueFrom": {"secretKeyRef": {"name": "db.main", "key": "tls.key"}}},
    ]


@pytest.mark.parametrize(("cpu", "memory"), [("0", None), ("-1", None), ("x", None), (None, "0"), (None, "1 GB")])
def test_invalid_resource_limit_is_rejected(cpu: str | None, memory: str | None) -> None:
    with pytest.raises(InvalidValue):
        limits_of(cpu, memory)


def test_limit_option_changes_only_that_limit() -> None:
    before = {"requests": {"cpu": "10m"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    assert with_limits(before, limits_of(None, "2Gi")) == {**before, "limits": {"cpu": "1", "memory": "2Gi"}}
    assert with_limits(None, limits_of("500m", None)) == {"limits": {"cpu": "500m"}}


def test_port_options_preserve_the_other_port_fields() -> None:
    h2c = [{"name": "h2c", "containerPort": 9000}]
    assert ports_of(h2c, port=None, h2c=None) == h2c
    assert ports_of(h2c, port=80, h2c=None) == [{"name": "h2c", "containerPort": 80}]
    assert ports_of(h2c, port=None, h2c=False) == [{"containerPort": 9000}]
    assert ports_of([{"containerPort": 80}], port=None, h2c=True) == [{"name": "h2c", "containerPort": 80}]
    assert ports_of((), port=None, h2c=True) == [{"name": "h2c", "containerPort": 8080}]
    assert ports_of((), port=None, h2c=None) == []


def test_tcp_ports_follow_the_first_port_and_are_retained() -> None:
    both: list[Object] = [{"containerPort": 8080}, {"name": "tcp-5432", "containerPort": 5432}]
    assert ports_of((), port=None, h2c=None, tcp=(5432,)) == both
    assert ports_of(both, port=80, h2c=None) == [{"containerPort": 80}, both[1]]
    assert ports_of(both, port=None, h2c=None, tcp=(1883,)) == [
        both[0],
        {"name": "tcp-1883", "containerPort": 1883},
    ]


@pytest.mark.parametrize("text", ["db", "db:", "db:data", ":/data", "DB:/data", "db:/../etc", "db:/a/..", "../x:/data"])
def test_invalid_volume_option_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"db:/var/lib/db"):
        volumes_of([text])


def test_duplicate_volume_or_mount_path_is_rejected() -> None:
    assert volumes_of(["db:/data", "files:/files"]) == {"db": "/data", "files": "/files"}
    for texts in (["db:/data", "db:/other"], ["db:/data", "files:/data"]):
        with pytest.raises(InvalidValue, match="the only --volume"):
            volumes_of(texts)


def test_volumes_are_merged_with_existing_ones() -> None:
    before = with_volumes({"containers": [{"image": "a"}, {"image": "b"}]}, {"db": "/data"})
    after = with_volumes(before, {"db": "/moved", "files": "/files"})
    assert [volume["name"] for volume in after["volumes"]] == ["db", "files"]
    mounts = [{"name": "db", "mountPath": "/moved"}, {"name": "files", "mountPath": "/files"}]
    assert after["containers"] == [{"image": "a", "volumeMounts": mounts}, {"image": "b"}]
    assert with_volumes(after, {}) is after


@pytest.fixture
def api(tmp_path: Path) -> ApiClient:
    state = tmp_path / "state"
    state.mkdir()
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
    user = {"name": "u", "user": {"token": "t"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    config = {"clusters": [cluster], "users": [user], "contexts": [context], "current-context": "x"}
    (state / "kubeconfig").write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **config}))
    return ApiClient(state)


def test_policy_option_accepts_a_name_or_a_local_file(
    api: ApiClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fixed.py"
    file.write_text("class Fixed:\n    def observe(self, second): ...\n    def propose(self, view): ...\n")
    assert [policy_name(api, text) for text in (None, "adaptive", "my-own")] == [None, "adaptive", "my-own"]
    name = policy_name(api, f"{file}:Fixed")
    assert name is not None
    assert [path.name for path in (tmp_path / "state" / "policies").iterdir()] == [f"{name}.Fixed.py"]
    for text, problem in (
        ("No Name", "'No Name' is not knative, adaptive"),
        (f"{file}:Gone", "is not a class with observe"),
    ):
        with pytest.raises(SystemExit):
            policy_name(api, text)
        assert problem in capsys.readouterr().err


@pytest.mark.usefixtures("api")
def test_policy_file_is_rejected_on_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kubeconfig = tmp_path / "config"
    (tmp_path / "state" / "kubeconfig").rename(kubeconfig)
    with pytest.raises(SystemExit):
        policy_name(ApiClient(kubeconfig=kubeconfig), "fixed.py:Fixed")
    assert "a file is for this machine" in capsys.readouterr().err
