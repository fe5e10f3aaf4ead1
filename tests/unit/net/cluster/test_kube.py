from serving.net.cluster.kube import connect


def test_the_kubeconfig_of_the_environment_names_the_cluster() -> None:
    assert connect("controller", environment={"KUBECONFIG": "a/b"})._kubeconfig == "a/b"


def test_without_one_it_is_the_cluster_of_this_pod() -> None:
    assert connect("controller", identity="x", environment={})._kubeconfig is None
