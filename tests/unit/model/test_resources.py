from serving.model.resources import Resources, resources_of


def test_amounts_are_read_as_kubernetes_writes_them() -> None:
    assert resources_of({"cpu": "250m", "memory": "64Mi"}) == Resources(cpu_m=250, memory_bytes=64 * 2**20)
    assert resources_of({"cpu": 2}) == Resources(cpu_m=2000)


def test_what_is_not_written_or_cannot_be_read_is_unset() -> None:
    assert resources_of(None) == Resources()
    assert resources_of({"cpu": "much", "memory": ""}) == Resources()
