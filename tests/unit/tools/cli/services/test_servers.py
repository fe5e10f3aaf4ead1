import pytest

from serving.tools.cli.services.servers import known_server


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
def test_an_image_is_known_by_its_name(image: str, port: int) -> None:
    server = known_server(image)
    assert server is not None
    assert server.port == port


@pytest.mark.parametrize("image", ["", "nginx", "my-postgres-app", "example.com/postgres/exporter:1", "vault/server"])
def test_other_images_are_not_known(image: str) -> None:
    assert known_server(image) is None
