from serving.net.cluster.kube import connect


def test_kubeconfig_is_read_from_environment() -> None:
    assert connect("controller", environment={"KUBECONFIG": "a/b"})._kubeconfig == "a/b"


def test_connection_without_kubeconfig_uses_cluster_of_the_pod() -> None:
    assert connect("controller", identity="x", environment={})._kubeconfig is None
