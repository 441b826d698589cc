"""Short, runnable versions of bootkube.sh of several releases.

They have what differs between releases: the last argument of the render command, a backslash before an empty
line, the calls of the installer's tunnel, bootstrap in place.
"""

from __future__ import annotations

RELEASES = ("4.6", "4.13", "4.18", "4.22", "5.0")

_TOP = """\
#!/usr/bin/env bash
set -euoE pipefail

mkdir --parents /etc/kubernetes/{manifests,bootstrap-configs,bootstrap-manifests}
BOOTSTRAP_INPLACE=false

cd /opt/openshift
mkdir --parents ./{bootstrap-manifests,manifests}

bootkube_podman_run() {
    podman run --quiet --net=host --rm "$@"
}

record_service_stage_start() { echo "stage $1" >> stages; }
record_service_stage_success() { :; }

if [ ! -f etcd-bootstrap.done ]
then
    record_service_stage_start "etcd-bootstrap"
    echo "Rendering etcd..."
    bootkube_podman_run etcd render
    touch etcd-bootstrap.done
    record_service_stage_success
fi

"""
_APISERVER = """\
if [ ! -f kube-apiserver-bootstrap.done ]
then
    record_service_stage_start "kube-apiserver-bootstrap"
    echo "Rendering the kube-apiserver..."

    rm --recursive --force kube-apiserver-bootstrap

ADDITIONAL_FLAGS=(--none)
VERSION=4.99.0
KUBERNETES_VERSION=1.99.0

\tbootkube_podman_run \\
\t\t--name kube-apiserver-render \\
\t\t--volume "$PWD:/assets:z" \\
\t\toperator-image \\
\t\t/usr/bin/cluster-kube-apiserver-operator render \\
\t\t--asset-output-dir=/assets/kube-apiserver-bootstrap \\
\t\t--config-output-file=/assets/kube-apiserver-bootstrap/config \\
@LAST@
\tcp kube-apiserver-bootstrap/config /etc/kubernetes/bootstrap-configs/kube-apiserver-config.yaml
\tcp kube-apiserver-bootstrap/config manifests/kube-apiserver-bootstrap.yaml

\ttouch kube-apiserver-bootstrap.done
    record_service_stage_success
fi

"""
_CLUSTER_BOOTSTRAP = """\
echo "Waiting for etcd..."

@BEFORE@echo "Starting cluster-bootstrap..."
run_cluster_bootstrap() {
    record_service_stage_start "cb-bootstrap"
    bootkube_podman_run cluster-bootstrap start --asset-dir=/assets
}

if [ ! -f cb-bootstrap.done ]
then
    if run_cluster_bootstrap
    then
        touch cb-bootstrap.done
        record_service_stage_success
    else
        code=$?
        echo "cluster-bootstrap failed"
        exit "$code"
    fi
fi

"""
_END = """\
@BEFORE@# Workaround: progress.service waits for this file.
touch /opt/openshift/.bootkube.done
echo "bootkube.service complete"
"""
_LAST = {
    "4.6": "\t\t--cluster-config-file=/assets/manifests/cluster-network-02-config.yml\n",
    "4.13": '\t\t"${ADDITIONAL_FLAGS[@]}"\n',
    "4.18": '\t\t--operand-kubernetes-version="${KUBERNETES_VERSION}"\n',
    "4.22": '\t\t--payload-version="$VERSION" \\\n\t\t--operand-kubernetes-version="${KUBERNETES_VERSION}"\n',
    "5.0": '\t\t--operand-kubernetes-version="${KUBERNETES_VERSION}" \\\n\n',
}
UPSTREAM_OVERRIDE = "--config-override-files=/assets/konnectivity-config-override.yaml"


def script(release: str) -> bytes:
    """Returns the script of that release, with the installer's tunnel off."""
    return _assembled(_LAST[release], has_upstream_calls=release == "5.0")


def with_upstream_tunnel() -> bytes:
    last = f'\t\t--operand-kubernetes-version="${{KUBERNETES_VERSION}}" \\\n\t\t{UPSTREAM_OVERRIDE}\n'
    return _assembled(last, has_upstream_calls=True)


def in_place() -> bytes:
    return script("4.22").replace(b"BOOTSTRAP_INPLACE=false", b"BOOTSTRAP_INPLACE=true")


def _assembled(last: str, *, has_upstream_calls: bool) -> bytes:
    def call(name: str) -> str:
        return f"{name}\n\n" if has_upstream_calls else ""

    names = ("konnectivity_setup", "konnectivity_manifests", "konnectivity_cleanup")
    no_ops = "".join(f"{name}() {{ :; }}\n" for name in names) + "\n" if has_upstream_calls else ""
    parts = [
        _TOP,
        no_ops,
        call(names[0]),
        _APISERVER.replace("@LAST@\n", last),
        _CLUSTER_BOOTSTRAP.replace("@BEFORE@", call(names[1])),
        _END.replace("@BEFORE@", call(names[2])),
    ]
    return "".join(parts).encode()
