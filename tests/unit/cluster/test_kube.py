from serving.cluster.kube import connect


def test_the_kubeconfig_of_the_environment_names_the_cluster() -> None:
    assert repr(connect("controller", environment={"KUBECONFIG": "a/b"})) == "KubeCluster(a/b)"


def test_without_one_it_is_the_cluster_of_this_pod() -> None:
    assert repr(connect("controller", identity="x", environment={})) == "KubeCluster(in-cluster)"
