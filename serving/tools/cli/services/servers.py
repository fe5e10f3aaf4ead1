"""Knows which images and ports do not speak HTTP, and where such an image keeps its data. Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec

# "server" alone names nothing.
_SERVER_FOLDERS: Final = ("mssql",)
# Ports at which no program speaks plain HTTP: names of services in /etc/services, and those of databases and brokers.
PORTS_WITHOUT_HTTP: Final = frozenset(
    {
        *(21, 22, 23, 25, 53, 110, 123, 143, 161, 162, 179, 389, 443, 445, 465, 514, 587, 636, 853, 873, 990, 993, 995),
        *(1025, 1194, 1433, 1521, 1883, 2049, 2181, 2379, 2380, 3260, 3306, 3389, 4222, 5044, 5060, 5061, 5222, 5269),
        *(5432, 5433, 5671, 5672, 5900, 6379, 6380, 6443, 6667, 7000, 7687, 8443, 8883, 9042, 9092, 9093, 9094, 9300),
        *(11211, 11212, 26257, 26379, 27017, 27018, 27019, 33060, 61613, 61616),
    }
)


class KnownServer(msgspec.Struct, frozen=True):
    """A program for TCP connections. ``data`` is the folder of its data, "" for none."""

    port: int
    data: str = ""


_POSTGRES: Final = KnownServer(5432, "/var/lib/postgresql/data")
_MYSQL: Final = KnownServer(3306, "/var/lib/mysql")
_REDIS: Final = KnownServer(6379, "/data")
_KAFKA: Final = KnownServer(9092, "/var/lib/kafka/data")
_BY_IMAGE: Final[Mapping[str, KnownServer]] = {
    **dict.fromkeys(("pgvector", "postgis", "postgres", "postgresql", "timescaledb", "timescaledb-ha"), _POSTGRES),
    **dict.fromkeys(("mariadb", "mysql", "mysql-server", "percona", "percona-server"), _MYSQL),
    **dict.fromkeys(
        ("dragonfly", "keydb", "redis", "redis-stack", "redis-stack-server", "valkey", "valkey-bundle"), _REDIS
    ),
    **dict.fromkeys(("cp-kafka", "kafka", "kafka-native", "redpanda"), _KAFKA),
    **dict.fromkeys(("cassandra", "scylla"), KnownServer(9042, "/var/lib/cassandra")),
    **dict.fromkeys(
        ("mongo", "mongodb", "mongodb-community-server", "percona-server-mongodb"), KnownServer(27017, "/data/db")
    ),
    **dict.fromkeys(("cp-zookeeper", "zookeeper"), KnownServer(2181, "/data")),
    **dict.fromkeys(("eclipse-mosquitto", "mosquitto"), KnownServer(1883, "/mosquitto/data")),
    **dict.fromkeys(("pgbouncer", "pgcat", "pgpool"), KnownServer(5432)),
    **dict.fromkeys(("activemq-artemis", "artemis"), KnownServer(61616)),
    "cockroach": KnownServer(26257, "/cockroach/cockroach-data"),
    "emqx": KnownServer(1883, "/opt/emqx/data"),
    "etcd": KnownServer(2379),
    "ferretdb": KnownServer(27017),
    "memcached": KnownServer(11211),
    "nats": KnownServer(4222),
    "neo4j": KnownServer(7687, "/data"),
    "openldap": KnownServer(389, "/var/lib/ldap"),
    "rabbitmq": KnownServer(5672, "/var/lib/rabbitmq"),
    "sftp": KnownServer(22),
    "server": KnownServer(1433, "/var/opt/mssql"),
}


def known_server(image: str) -> KnownServer | None:
    """The program of an image by its name, as "docker.io/library/postgres:16" or "bitnami/redis"; None for others."""
    path = image.partition("@")[0]
    folder, _, name = path.rpartition("/")
    name = name.partition(":")[0].lower()
    if name == "server" and not folder.endswith(_SERVER_FOLDERS):
        return None
    return _BY_IMAGE.get(name)
