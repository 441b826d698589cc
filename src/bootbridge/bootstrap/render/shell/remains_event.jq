# Converts a receipt to a core/v1 Event about the agents' namespace. Events about objects without a namespace are
# in `default`.
(.remains | map("\(.name): \(.reason)") | join("; ")) as $text
| {
    apiVersion: "v1",
    kind: "Event",
    metadata: {name: "bootbridge-remains.\(.writtenAt | ascii_downcase | gsub("[^0-9a-z]"; ""))", namespace: "default"},
    involvedObject: {apiVersion: "v1", kind: "Namespace", name: $namespace},
    type: "Warning",
    reason: "BootstrapTunnelRemains",
    message: "the clean-up of the bootstrap tunnel left: \($text)"[:1000],
    source: {component: "bootbridge"},
    firstTimestamp: .writtenAt,
    lastTimestamp: .writtenAt,
    count: 1
  }
