import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from serving.core.model.errors import InvalidValue
from serving.core.model.knative import NAMED_PORT_ANNOTATION
from serving.home.admission.admission import admit
from serving.home.images.store import ImageStore
from serving.net.cluster.kinds import SERVING_SERVICE
from serving.tools.cli.main import main
from serving.tools.cli.services.compose import from_compose, known_server
from tests.integration.image_stage import oci_archive, tar_of

COMPOSE = """
services:
  web:
    image: example.com/web:1
    build: .
    command: python app.py --port 80
    environment: [MODE=fast, EMPTY=, FROM_HERE, GONE]
    ports: ["8080:80", {target: 81}]
    depends_on: [cache_db]
    healthcheck: {test: [CMD, "true"]}
    deploy: {resources: {limits: {cpus: "0.5", memory: 512M}}}
  cache_db:
    image: redis
    environment: {DEBUG: true, PORT: 6379}
  api:
    image: api
    expose: ["8080"]
"""
BUILDS = """
services:
  api:
    image: example.com/api:1
    build: {context: api, dockerfile: sub/File, args: {A: 1, B: true, FROM_HERE: , GONE: }, target: small, labels: [a=b]}
  old_web:
    build: ./web
"""
DATABASES = """
services:
  db:
    image: docker.io/library/postgres:16@sha256:0
    volumes: ["pg_data:/var/lib/postgresql/data", "./init:/docker-entrypoint-initdb.d", "seed:/seed:ro"]
  broker: {image: example.com/broker, ports: [{target: 1883, published: 11883}]}
volumes: {pg_data: {driver: local}, seed: }
"""
# A fake builder: `info` succeeds if it works, `image save` writes the image.
_WORKING = """#!/bin/sh
echo "$*" >> {log}
[ "$1" = image ] && exec {cp} {image} "$4"
exit 0
"""
_BROKEN = "#!/bin/sh\necho 'ERROR: Cannot connect to the daemon' >&2\nexit 1\n"


def converted(folder: Path, text: str, *options: str, code: int = 0, path: Path | None = None) -> tuple[Any, Result]:
    folder.mkdir(exist_ok=True)
    (folder / "compose.yaml").write_text(text)
    arguments = ["convert", str(folder / "compose.yaml"), "--state", str(folder / "state"), *options]
    environment = {"FROM_HERE": "yes", **({} if path is None else {"PATH": str(path)})}
    done = CliRunner().invoke(main, arguments, env=environment)
    assert done.exit_code == code, done.output
    return list(yaml.safe_load_all(done.stdout)), done


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = manifest["spec"]["template"]["spec"]["containers"][0]
    return result


def programs(folder: Path, **scripts: str) -> Path:
    """Create a folder with these programs, to be used as PATH."""
    folder.mkdir()
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def contexts(folder: Path) -> None:
    """Create the build contexts of ``BUILDS``."""
    for name in ("project/api/sub/File", "project/web/Dockerfile"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("FROM scratch\nCOPY File* Dockerfile* /\n")


def test_compose_services_become_knative_services(tmp_path: Path) -> None:
    (web, claim, cache, api), done = converted(tmp_path, COMPOSE, "--no-build")
    assert container(web) == {
        "image": "example.com/web:1",
        "args": ["python", "app.py", "--port", "80"],
        "env": [
            {"name": "MODE", "value": "fast"},
            {"name": "EMPTY", "value": ""},
            {"name": "FROM_HERE", "value": "yes"},
        ],
        "ports": [{"containerPort": 80}],
        "resources": {"limits": {"cpu": "0.5", "memory": "512Mi"}},
    }
    assert web["metadata"] == {"name": "web", "annotations": {NAMED_PORT_ANNOTATION: "80"}}
    assert claim["metadata"] == {"name": "cache-db-data"}
    assert cache["metadata"]["name"] == "cache-db"
    assert container(cache)["env"] == [{"name": "DEBUG", "value": "true"}]
    assert container(api)["ports"] == [{"containerPort": 8080}]
    for warning in (
        "web: build is not",
        "web: port 81 is left out",
        "web: healthcheck is not",
        "web: depends_on is not",
        "cache-db: not HTTP: it takes TCP connections at port 6379",
        "cache_db: renamed to cache-db",
    ):
        assert warning in done.stderr


def test_images_are_built_by_the_first_working_builder(tmp_path: Path) -> None:
    contexts(tmp_path)
    image, log = tmp_path / "image.tar", tmp_path / "log"
    built = oci_archive(image, [tar_of([("a", b"1", 0o644)])])
    working = _WORKING.format(log=log, image=image, cp=shutil.which("cp"))
    path = programs(tmp_path / "bin", buildah=_BROKEN, podman=working, docker=_BROKEN)
    (api, web), done = converted(tmp_path / "project", BUILDS, path=path)
    assert [container(service)["image"] for service in (api, web)] == [
        f"dev.local/{name}:{built[:12]}" for name in ("api", "old-web")
    ]
    stored = ImageStore(tmp_path / "project" / "state" / "images").find(container(api)["image"])
    assert stored is not None
    assert stored.is_kept
    project = tmp_path / "project"
    options = "--build-arg=A=1 --build-arg=B=true --build-arg=FROM_HERE=yes --target=small"
    assert [line for line in log.read_text().splitlines() if line.startswith("build")] == [
        f"build -q -t localhost/serving-build/api:latest -f {project}/api/sub/File {options} {project}/api",
        f"build -q -t localhost/serving-build/old-web:latest -f {project}/web/Dockerfile {project}/web",
    ]
    assert "api: build.labels is not converted" in done.stderr
    assert "web: build is not" not in done.stderr


@pytest.mark.parametrize(
    ("scripts", "message"), [({}, "buildah"), ({"docker": _BROKEN}, "Cannot connect to the daemon")]
)
def test_missing_builder_is_reported_in_one_line(tmp_path: Path, scripts: dict[str, str], message: str) -> None:
    contexts(tmp_path)
    _, done = converted(tmp_path / "project", BUILDS, code=1, path=programs(tmp_path / "bin", **scripts))
    (line,) = [each_line for each_line in done.stderr.splitlines() if not each_line.startswith("note: ")]
    assert "image api: building it needs buildah, podman or docker: apt-get install buildah" in line
    assert message in line
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("services: {web: 1}", "services.web"),
        ("services: {web: {build: 1}}", "a folder, or a mapping with context"),
        ("services: {web: {build: gone}}", "a folder to build an image from"),
        ("services: {web: {build: .}}", "Containerfile or Dockerfile"),
        ("services: {web: {build: {dockerfile: gone}}}", "gone"),
        ("services: {web: {build: {args: 5}}}", "a mapping or a list of build arguments"),
        ("services: {web: {build: {dockerfile_inline: FROM scratch}}}", "dockerfile_inline"),
        ("services: {web: {build: 'https://example.com/a.git'}}", "clone it first"),
        ("services: {'a b': {build: .}}", "'a b' is not a name here"),
        ("services: {web: {ports: [80]}}", "'services.web' is not a service with image or build"),
        ("services: {web: {extends: {service: b}}}", "write the fields of the service that it extends into it"),
        ("services: {a_b: {image: a}, a-b: {image: a}}", "'a-b' is not a unique name: a_b becomes a-b, too"),
        ("services: {web: {image: a, command: '\"a'}}", "'services.web.command' is not a command as in a shell"),
        (
            "services: {web: {image: a, command: [a, null]}}",
            "'services.web.command' is not a list of texts: None is in it",
        ),
        (
            "services: {web: {image: a, deploy: {resources: {limits: {memory: x}}}}}",
            "limits.memory' is not a size, as 512M",
        ),
        (
            "services: {web: {image: a, deploy: {resources: {limits: {cpus: x}}}}}",
            "limits.cpus' is not a number of cores",
        ),
        ("services: {web: {image: a, ports: [99999]}}", "'99999' is not a port of web, as 80"),
        ("services: {web: {env_file: gone}}", "compose.yaml: services.web.env_file: "),
        ("services: {web: {env_file: 5}}", "/5: No such file"),
        ("services: {web: {env_file: {path: a, format: raw}}}", "compose.yaml: services.web.env_file: leave it out"),
        ("services: {web: {image: a, ports: [http]}}", "'http' is not a port of web, as 80"),
        ("services: {web: {image: a, ports: [81-80]}}", "'81-80' is not a port of web, as 80"),
        ("services: {web: {image: a, environment: 5}}", "a mapping or a list of variables"),
        ("services: {web: {image: a, environment: [{A: b}]}}", "compose.yaml: \"{'A': 'b'}\" is not a text"),
        ("services: {web: {image: '${A'}}", "compose.yaml: services.web.image: '${A'; expected closed by a brace"),
        (
            "services: {web: {labels: [a, '${A:?set it}']}}",
            "compose.yaml: services.web.labels[1]: '$A'; expected a variable",
        ),
    ],
)
def test_unconvertible_compose_file_is_reported(tmp_path: Path, text: str, message: str) -> None:
    _, done = converted(tmp_path, text, code=2)
    assert message in done.stderr


def test_yaml_scalars_are_read_as_by_docker_compose(tmp_path: Path) -> None:
    text = (
        "services: {ssh: {image: a, ports: [22:22], environment: {COUNTRY: NO, AT: 12:30:45, ON: on, IS: true, N: 5}}}"
    )
    (manifest,), _ = converted(tmp_path, text)
    assert container(manifest)["ports"] == [{"containerPort": 22}]
    values = {pair["name"]: pair["value"] for pair in container(manifest)["env"]}
    assert values == {"COUNTRY": "NO", "AT": "12:30:45", "ON": "on", "IS": "true", "N": "5"}


def test_service_in_two_files_is_rejected_and_override_file_is_noted(tmp_path: Path) -> None:
    override = tmp_path / "compose.override.yaml"
    override.write_text("services: {web: {environment: {A: b}}}")
    text = "services: {web: {image: a, ports: [80]}}"
    assert f"note: {override} is not read" in converted(tmp_path, text)[1].stderr
    _, done = converted(tmp_path, text, str(override), code=2)
    assert f"{override}: services.web is in {tmp_path / 'compose.yaml'}, too" in done.stderr


_OF_OTHER_TYPES = (5, 1.5, "x", '"a b', [5], [None], [[1]], {"a": {"b": [1]}}, True)
_FIELDS = (
    *("image", "build", "ports", "expose", "volumes", "environment", "command", "entrypoint", "profiles", "restart"),
    *("working_dir", "deploy", "deploy.resources", "deploy.resources.limits", "deploy.resources.limits.memory"),
    *("build.args", "build.dockerfile", "build.context"),
)


@pytest.mark.parametrize("field", _FIELDS)
def test_compose_value_of_another_type_is_rejected_or_gives_a_valid_service(tmp_path: Path, field: str) -> None:
    for value in _OF_OTHER_TYPES:
        service: dict[str, Any] = {"image": "a", "ports": ["80:80"]}
        *above, last = field.split(".")
        place = service
        for name in above:
            place = place.setdefault(name, {})
        place[last] = value
        try:
            converted_file = from_compose({"services": {"web": service}}, folder=tmp_path, environment={})
        except InvalidValue as error:
            assert error.expected  # noqa: PT017
            continue
        for manifest in converted_file.manifests:
            admit(SERVING_SERVICE, manifest, is_one_machine=True)


def test_compose_service_with_a_provider_is_skipped(tmp_path: Path) -> None:
    text = "services: {llm: {provider: {type: model}}, web: {image: a, ports: [80]}}"
    manifests, done = converted(tmp_path, text)
    assert [manifest["metadata"]["name"] for manifest in manifests] == ["web"]
    assert "note: llm: not converted: a program of docker compose provides it" in done.stderr


def test_environment_overrides_variables_of_dot_env(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        """FROM_HERE=no
TAG=1
TAG='2$TAG'  # a later line replaces an earlier one
export HOST="${FROM_HERE}.$TAG.\\$x"
WITHOUT_VALUE
"""
    )
    text = """
x-common: &common {LEVEL: "${LEVEL:-info}", HOST: $HOST}
services:
  web: {image: "web:${TAG}", environment: *common, ports: ["${OUT:-80}:${IN-8080}"], command: run $$PORT $MISSING}
  api: {image: api, environment: *common, expose: ["81"]}
"""
    (web, api), done = converted(tmp_path, text)
    env = [{"name": "LEVEL", "value": "info"}, {"name": "HOST", "value": "yes.2$TAG.$x"}]
    assert container(web) == {
        "image": "web:2$TAG",
        "args": ["run", "$PORT"],
        "env": env,
        "ports": [{"containerPort": 8080}],
    }
    assert container(api)["env"] == env
    assert "compose.yaml: without a value, so empty: MISSING; $$MISSING leaves $MISSING" in done.stderr


def test_env_file_of_a_service_is_read_relative_to_the_compose_file(tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text("A=1\nB=${A}-${FROM_HERE}\nC=c\nFROM_HERE\nGONE\nLIT='$A'\n")
    (tmp_path / "b.env").write_text("C=${C:-none}$A\n")
    text = """
services:
  web: {image: web, env_file: [a.env, {path: "${FILE:-b}.env"}, {path: c.env, required: false}], environment: [A=2]}
  api: {image: "api:${A:-0}", env_file: b.env}
"""
    (web, api), _ = converted(tmp_path, text)
    env = {"A": "2", "B": "2-yes", "C": "none2", "FROM_HERE": "yes", "LIT": "$A"}
    assert {variable["name"]: variable["value"] for variable in container(web)["env"]} == env
    assert container(api) == {"image": "api:0", "env": [{"name": "C", "value": "none"}]}


def test_invalid_dot_env_lines_are_reported(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A=1\nB=${A\nfoo bar\n")
    _, done = converted(tmp_path, "services: {web: {image: web}}", code=2)
    assert f"{tmp_path}/.env:2: '${{A'; expected closed by a brace" in done.stderr
    assert f"{tmp_path}/.env:3: 'foo bar'; expected NAME=VALUE" in done.stderr


def test_folder_named_dot_env_is_ignored(tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()
    (web,), _ = converted(tmp_path, "services: {web: {image: web}}")
    assert container(web) == {"image": "web"}


def _works(builder: str) -> bool:
    program = shutil.which(builder)
    return program is not None and subprocess.run([program, "info"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not any(map(_works, ("buildah", "podman", "docker"))), reason="no builder of images works here")
def test_image_is_built_by_an_installed_builder(tmp_path: Path) -> None:
    contexts(tmp_path)
    (web,), _ = converted(tmp_path / "project", "services: {web: {build: web}}")
    store = ImageStore(tmp_path / "project" / "state" / "images")
    stored = store.find(container(web)["image"])
    assert stored is not None
    assert (store.root_of(stored) / "Dockerfile").read_text().startswith("FROM scratch")


def test_database_becomes_a_tcp_service_with_one_pod_and_a_volume(tmp_path: Path) -> None:
    (claim, _, db, broker), done = converted(tmp_path, DATABASES, "--no-build")
    assert (claim["kind"], claim["metadata"]["name"]) == ("PersistentVolumeClaim", "pg-data")
    assert db["metadata"]["annotations"] == {"serving.dev/tcp": "5432", "serving.dev/named-port": "5432"}
    template = db["spec"]["template"]
    scaling = {"autoscaling.knative.dev/min-scale": "1", "autoscaling.knative.dev/max-scale": "1"}
    assert template["metadata"]["annotations"] == scaling
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in ("pg-data", "seed")]
    assert template["spec"]["volumes"] == volumes
    assert container(db)["volumeMounts"] == [
        {"name": "pg-data", "mountPath": "/var/lib/postgresql/data"},
        {"name": "seed", "mountPath": "/seed", "readOnly": True},
    ]
    assert container(db)["ports"] == [{"containerPort": 5432}]
    assert broker["metadata"]["annotations"]["serving.dev/tcp"] == "1883"
    assert "volumes" not in broker["spec"]["template"]["spec"]
    for warning in (
        "db: volumes ./init:/docker-entrypoint-initdb.d is not converted",
        "broker: port 11883 of the machine",
        "volumes.pg_data.driver is not converted",
    ):
        assert warning in done.stderr
    assert "pg_data: not converted" not in done.stderr
    for body in (db, broker):
        admit(SERVING_SERVICE, body, is_one_machine=True)


@pytest.mark.parametrize(
    ("ports", "port", "notes"),
    [
        ('["53:53/tcp", "53:53/udp", "80:80"]', 80, ["port 53/udp is left out", "port 53 is left out"]),
        ('["443:443", "8080:8080"]', 8080, ["port 443 is left out"]),
        ("[{target: 22}, {target: 3000, protocol: tcp}]", 3000, ["port 22 is left out"]),
        ('["127.0.0.1:8081:80"]', 80, ["port 8081 of the machine is not opened"]),
        ('["9000-9001:8000-8001"]', 8000, ["port 8001 is left out", "port 9000 of the machine is not opened"]),
        ('["9000-9001:80"]', 80, ["port 9000-9001 of the machine is not opened"]),
        ('["53:53/udp"]', 0, ["port 53/udp is left out", "it publishes no port"]),
    ],
)
def test_http_port_is_chosen_from_compose_ports(tmp_path: Path, ports: str, port: int, notes: list[str]) -> None:
    (web,), done = converted(tmp_path, f"services: {{web: {{image: a, ports: {ports}}}}}", "--no-build")
    assert container(web).get("ports", []) == ([{"containerPort": port}] if port else [])
    assert "serving.dev/tcp" not in web["metadata"].get("annotations", {})
    assert all(f"note: web: {note}" in done.stderr for note in notes), done.stderr


def test_unread_compose_fields_are_noted(tmp_path: Path) -> None:
    text = """
x-shared: {a: b}
name: project
include: [other.yaml]
networks: {back: {}}
services:
  web:
    image: a
    ports: ["80"]
    labels: {a: b}
    restart: "no"
    x-own: 1
    logging: {driver: none}
    container_name: web
    extends: {service: base}
    deploy: {replicas: 3, restart_policy: {condition: any}, resources: {limits: {pids: 5, cpus: 1}}}
"""
    _, done = converted(tmp_path, text, "--no-build")
    fields = ("container_name", "deploy.replicas", "deploy.resources.limits.pids", "deploy.restart_policy", "extends")
    expected = [f"web: {field} is not converted" for field in (*fields, "labels", "logging", "restart no")]
    expected += ["include is not converted", "networks is not converted"]
    notes = [line.removeprefix("note: ") for line in done.stderr.splitlines()]
    assert [note for note in notes if not note.startswith(tuple(expected))] == []
    assert len(notes) == len(expected)


VOLUMES = """
services:
  db:
    image: postgres
    volumes:
      - {type: volume, source: pg, target: /data, read_only: true, volume: {subpath: a}}
      - seed:/seed:rw,z
  web: {image: a, ports: ["80"], volumes: [files:/files]}
volumes: {pg: {driver: nfs}, seed: , files: {external: true}}
secrets: {key: {file: key.txt}}
"""


def test_unconverted_volumes_and_options_are_noted(tmp_path: Path) -> None:
    _, done = converted(tmp_path, VOLUMES, "--no-build")
    notes = [
        line.removeprefix("note: ").partition(";")[0] for line in done.stderr.splitlines() if "not HTTP" not in line
    ]
    assert notes == [
        "db: option volume.subpath of volumes pg:/data is not converted",
        "db: option z of volumes seed:/seed is not converted",
        "web: volumes files:/files is not converted",
        "volumes files: not converted",
        "volumes.pg.driver is not converted",
        "secrets key: not converted",
    ]


def test_manifest_that_apply_would_reject_is_noted(tmp_path: Path) -> None:
    _, done = converted(tmp_path, 'services: {metrics: {image: prometheus, ports: ["9090:9090"]}}', "--no-build")
    assert '"metrics" is invalid: spec.template.spec.containers[0].ports[0].containerPort' in done.stderr
    assert "9090 is a reserved port" in done.stderr


@pytest.mark.parametrize(
    ("options", "names"),
    [((), ["web"]), (("--profile", "seed"), ["web", "seed"]), (("--profile", "*"), ["web", "seed", "debug"])],
)
def test_compose_service_is_converted_only_with_its_profile(
    tmp_path: Path, options: tuple[str, ...], names: list[str]
) -> None:
    text = "services: {web: {image: a}, seed: {image: b, profiles: [seed]}, debug: {image: c, profiles: [debug, dev]}}"
    manifests, done = converted(tmp_path, text, "--no-build", *options)
    assert [manifest["metadata"]["name"] for manifest in manifests] == names
    assert ("debug: not converted: no profile of it is chosen" in done.stderr) == ("debug" not in names)


@pytest.mark.parametrize(
    ("image", "port"),
    [
        ("postgres:16", 5432),
        ("docker.io/library/postgres", 5432),
        ("registry:5000/team/mysql:8@sha256:0", 3306),
        ("bitnami/redis", 6379),
        ("Mongo", 27017),
        ("mcr.microsoft.com/mssql/server:2022-latest", 1433),
    ],
)
def test_known_server_image_has_its_tcp_port(image: str, port: int) -> None:
    server = known_server(image)
    assert server is not None
    assert server.port == port


@pytest.mark.parametrize("image", ["", "nginx", "my-postgres-app", "example.com/postgres/exporter:1", "vault/server"])
def test_other_images_are_no_known_server(image: str) -> None:
    assert known_server(image) is None
