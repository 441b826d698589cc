# Converts a kubeconfig with one context to one with the cluster's address and CA, and no user.
(.clusters[0].cluster | select(.server)) as $cluster
| {
    apiVersion: "v1",
    kind: "Config",
    "current-context": "cluster",
    contexts: [{name: "cluster", context: {cluster: "cluster"}}],
    clusters: [{name: "cluster", cluster: $cluster}]
  }
