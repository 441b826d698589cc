# Run by `bootbridge gather` on a bootstrap node, as root, from standard input. Collects files in a temporary
# directory, writes a tar archive of it to standard output, and removes it. Does not copy files with keys.
# `bootbridge gather` prepends the settings, which it derives from the plan.

collect_main() {
  umask 077
  export LC_ALL=C
  work=$(mktemp -d /var/tmp/bootbridge-gather.XXXXXX) || exit 1
  trap 'rm -rf "$work"' EXIT
  trap 'exit 1' HUP INT TERM PIPE
  collect_pages
  collect_records
  collect_assets
  collect_certificates
  collect_logs
  collect_network
  collect_cluster
  tar -C "$work" -czf - .
}

# keep NAME: stores the last FILE_BYTES_MAX bytes of standard input.
keep() {
  mkdir -p "$work/${1%/*}"
  tail -c "$FILE_BYTES_MAX" >"$work/$1"
}

# limited COMMAND...: prints its output and errors, and stops it after COMMAND_SECONDS_MAX.
limited() {
  timeout "$COMMAND_SECONDS_MAX" "$@" </dev/null 2>&1 || true
}

has() {
  command -v "$1" >/dev/null 2>&1
}

# copy FILE NAME: stores the file unless it contains a key or a Secret.
copy() {
  [ -f "$1" ] || return 0
  case $1 in
    *.key | *.p12 | *kubeconfig*) return 0 ;;
  esac
  if grep -q -E -e '-----BEGIN [A-Z ]*PRIVATE KEY' -e 'kind["'"'"' ]*:["'"'"' ]*Secret' "$1"; then
    printf 'withheld on the node: contains a key or a Secret\n' | keep "$2"
  else
    keep "$2" <"$1"
  fi
}

collect_pages() {
  has curl || return 0
  for page in healthz readyz metrics; do
    collect_page "$HEALTH_PORT" "$page" "node/server/health-$page.txt"
  done
  for page in status metrics; do
    collect_page "$ADMIN_PORT" "$page" "node/server/admin-$page.txt"
  done
}

collect_page() {
  limited curl --silent --show-error --max-time 5 --write-out '\nHTTP %{http_code}\n' \
    "http://localhost:$1/$2" | keep "$3"
}

collect_records() {
  for file in "$RECORDS"/*.json; do
    copy "$file" "node/services/${file##*/}"
  done
  copy "$RECEIPT" node/receipt.json
}

collect_assets() {
  find "$STATE" -type f 2>/dev/null | while IFS= read -r file; do
    copy "$file" "node/assets$file"
  done
  for file in $ASSETS; do
    copy "$file" "node/assets$file"
  done
}

collect_certificates() {
  has openssl || return 0
  for file in "$STATE"/tls/*.crt; do
    [ -f "$file" ] || continue
    limited openssl x509 -in "$file" -noout -subject -issuer -dates -ext subjectAltName -fingerprint -sha256 |
      keep "node/certificates/${file##*/}.txt"
  done
  find "$STATE" -printf '%M %u %s %p\n' 2>&1 | keep node/certificates/modes.txt
}

collect_logs() {
  for name in $CONTAINERS; do
    for file in /var/log/pods/*_"$name"*/*/*.log; do
      copy "$file" "node/logs/${file#/var/log/pods/}"
    done
    has crictl || continue
    limited crictl ps -a -q --name "$name" | while IFS= read -r id; do
      limited crictl logs --tail "$LOG_LINES" "$id" | keep "node/logs/crictl-$name-$id.log"
    done
  done
  if has journalctl; then
    for unit in $UNITS; do
      limited journalctl --no-pager --output=short-iso --unit="$unit" --lines="$LOG_LINES" |
        keep "node/journals/$unit.log"
    done
  fi
}

collect_network() {
  limited ip address | keep node/network/ip-address.txt
  limited ip route | keep node/network/ip-route.txt
  limited ip -6 route | keep node/network/ip-route-6.txt
  limited ss -lntup | keep node/network/listeners.txt
  has crictl && limited crictl ps -a | keep node/network/containers.txt
}

collect_cluster() {
  client=''
  for name in oc kubectl; do
    has "$name" && client=$name && break
  done
  [ -n "$client" ] || return 0
  for config in $KUBECONFIGS; do
    [ -f "$config" ] || continue
    limited "$client" --kubeconfig="$config" --request-timeout=10s version | grep -qi server || continue
    collect_objects "$client" "$config"
    return 0
  done
}

# collect_objects CLIENT KUBECONFIG: of Secrets, only the names of their fields.
collect_objects() {
  for kind in daemonsets pods events; do
    limited "$1" --kubeconfig="$2" --request-timeout=10s --namespace="$NAMESPACE" get "$kind" --output=json |
      keep "cluster/$kind.json"
  done
  limited "$1" --kubeconfig="$2" --request-timeout=10s get namespace "$NAMESPACE" --output=json |
    keep cluster/namespace.json
  for kind in validatingwebhookconfigurations mutatingwebhookconfigurations apiservices nodes; do
    limited "$1" --kubeconfig="$2" --request-timeout=10s get "$kind" --output=json | keep "cluster/$kind.json"
  done
  # shellcheck disable=SC2016  # a template for the client, not shell variables
  limited "$1" --kubeconfig="$2" --request-timeout=10s --namespace="$NAMESPACE" get secrets \
    --output='go-template={{range .items}}{{.metadata.name}}:{{range $name, $value := .data}} {{$name}}{{end}}{{"\n"}}{{end}}' |
    keep cluster/secrets.txt
  limited "$1" --kubeconfig="$2" --namespace="$NAMESPACE" logs --selector="$AGENT_SELECTOR" --prefix \
    --ignore-errors --max-log-requests=50 --tail="$LOG_LINES" | keep cluster/logs/agents.log
}

collect_main
