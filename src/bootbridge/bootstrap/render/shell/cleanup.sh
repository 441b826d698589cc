# --- last stage: removes the tunnel, and writes a receipt of what was found, removed and left
#
# Nothing here fails and every wait has a limit, because bootkube.sh must reach its end. Idempotent. Also works
# after a failed bootstrap, and after an incomplete installation.

bootbridge_cleanup() {
  local result=0
  if [[ -e $BOOTBRIDGE_CLEANUP_MARKER ]]; then
    bootbridge_log "tunnel already removed: see $BOOTBRIDGE_RECEIPT"
    return 0
  fi
  # A failure to write the service record must not stop bootkube.sh.
  bootbridge_stage_start "$BOOTBRIDGE_CLEANUP_STAGE" || true
  bootbridge_remove_all || result=$?
  if ((result == 0)); then bootbridge_stage_success || true; else bootbridge_stage_failure || true; fi
}

# Returns 0 if everything is removed or waits only for finalizers, and 1 if something is left.
bootbridge_remove_all() {
  local events='' api=up
  (
    trap - ERR EXIT
    set +e
    umask 022
    bootbridge_open_events
    bootbridge_remove_objects
    bootbridge_remove_paths daemonset "$BOOTBRIDGE_DAEMONSET_MANIFEST"
    bootbridge_remove_paths secret "$BOOTBRIDGE_SECRET_MANIFEST"
    bootbridge_remove_paths namespace "$BOOTBRIDGE_NAMESPACE_MANIFEST"
    bootbridge_remove_server
    bootbridge_remove_paths certificates "$BOOTBRIDGE_TLS"
    bootbridge_remove_temporary_files
    bootbridge_remove_paths egress-config "$BOOTBRIDGE_EGRESS_CONFIG"
    bootbridge_remove_paths record "$BOOTBRIDGE_CERTS_MARKER" "$BOOTBRIDGE_SERVER_MARKER" \
      "$BOOTBRIDGE_AGENT_MARKER" "$BOOTBRIDGE_STATE/image"
    bootbridge_verify_objects
    bootbridge_write_receipt
  )
}

# Keeps what an interrupted removal found, so that the next receipt contains it.
bootbridge_open_events() {
  local earlier
  mkdir -p "${BOOTBRIDGE_RECEIPT%/*}"
  events=${BOOTBRIDGE_RECEIPT%/*}/.removal
  : >>"$events" || events=/run/bootbridge-removal
  earlier=$(jq --compact-output 'select(.list == "found")' "$events" 2>/dev/null)
  printf '%s' "${earlier:+$earlier$'\n'}" >"$events"
}

# bootbridge_record_event found|removed|remains RESOURCE NAME [REASON]
bootbridge_record_event() {
  jq --compact-output --null-input --arg list "$1" --arg resource "$2" --arg name "$3" --arg reason "${4-}" \
    '{list: $list, item: ({resource: $resource, name: $name} + (if $reason == "" then {} else {reason: $reason} end))}' >>"$events"
}

bootbridge_record_warning() {
  bootbridge_warn "$1"
  jq --compact-output --null-input --arg text "$1" '{list: "warnings", item: $text}' >>"$events"
}

# bootbridge_list KIND [ARGUMENT...]: prints the objects with our label, as kind/name lines.
bootbridge_list() {
  bootbridge_oc "$BOOTBRIDGE_KUBECONFIG" get "$@" --selector="$BOOTBRIDGE_SELECTOR" --ignore-not-found --output=name
}

# Deletes DaemonSet, Secret and namespace, in this order, if they have our label.
bootbridge_remove_objects() {
  if ! command -v oc >/dev/null; then
    bootbridge_skip_api "command not found: oc"
    return
  fi
  bootbridge_remove_kind daemonset DaemonSet --namespace="$BOOTBRIDGE_NAMESPACE"
  bootbridge_remove_kind secret Secret --namespace="$BOOTBRIDGE_NAMESPACE"
  bootbridge_remove_kind namespace Namespace --field-selector="metadata.name=$BOOTBRIDGE_NAMESPACE"
}

# bootbridge_remove_kind RESOURCE KIND SCOPE: requests the deletion without waiting for it.
bootbridge_remove_kind() {
  local resource=$1 kind=$2 scope=$3 names name
  [[ $api == up ]] || return
  if ! names=$(bootbridge_list "$resource" "$scope" 2>/dev/null); then
    bootbridge_skip_api "API server unreachable"
    return
  fi
  [[ -n $names ]] || return
  while IFS= read -r name; do
    bootbridge_record_event found "$resource" "$(bootbridge_object_name "$kind" "${name##*/}")"
  done <<<"$names"
  bootbridge_oc "$BOOTBRIDGE_KUBECONFIG" delete "$resource" "$scope" --selector="$BOOTBRIDGE_SELECTOR" \
    --ignore-not-found --wait=false >/dev/null || bootbridge_record_warning "oc failed to delete the $kind"
}

# Waits only once for an unreachable API server. Objects exist only if their manifests were written.
bootbridge_skip_api() {
  api=down
  bootbridge_record_warning "$1: objects in the cluster are not removed"
  if [[ -e $BOOTBRIDGE_AGENT_MARKER || -e $BOOTBRIDGE_NAMESPACE_MANIFEST || -s $BOOTBRIDGE_RECEIPT ]]; then
    bootbridge_record_event remains namespace "Namespace $BOOTBRIDGE_NAMESPACE" "unknown: $1"
  fi
}

bootbridge_object_name() {
  if [[ $1 == Namespace ]]; then printf '%s %s' "$1" "$2"; else printf '%s %s/%s' "$1" "$BOOTBRIDGE_NAMESPACE" "$2"; fi
}

# Removes the static pod and waits for the server to end, because a running server would create its socket again.
bootbridge_remove_server() {
  local ends=$((SECONDS + BOOTBRIDGE_SERVER_END_SECONDS))
  bootbridge_remove_paths static-pod "$BOOTBRIDGE_SERVER_POD"
  while bootbridge_is_listening && ((SECONDS < ends)); do sleep 0.2; done
  if bootbridge_is_listening; then
    bootbridge_record_event remains static-pod "TCP port $BOOTBRIDGE_AGENT_PORT" \
      "still in use ${BOOTBRIDGE_SERVER_END_SECONDS}s after the static pod was removed"
  fi
  bootbridge_remove_paths socket "$BOOTBRIDGE_SOCKET"
}

# Tests whether a process listens on the agents' port, from /proc.
bootbridge_is_listening() {
  local port at state
  printf -v port ':%04X' "$BOOTBRIDGE_AGENT_PORT"
  while read -r _ at _ state _; do
    if [[ $at == *"$port" && $state == 0A ]]; then return 0; fi
  done < <(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null)
  return 1
}

# bootbridge_remove_paths RESOURCE PATH...
bootbridge_remove_paths() {
  local resource=$1 path
  shift
  for path in "$@"; do
    [[ -e $path || -L $path ]] || continue
    bootbridge_record_event found "$resource" "$path"
    rm -rf -- "$path"
    if [[ -e $path || -L $path ]]; then
      bootbridge_record_event remains "$resource" "$path" "deletion failed"
    else
      bootbridge_record_event removed "$resource" "$path"
    fi
  done
}

# Waits until the objects are deleted, and records those that are left.
bootbridge_verify_objects() {
  local ends=$((SECONDS + BOOTBRIDGE_OBJECTS_END_SECONDS))
  [[ $api == up ]] || return
  while [[ -n $(bootbridge_remaining_objects) ]] && ((SECONDS < ends)); do sleep 1; done
  bootbridge_verify_kind daemonset DaemonSet --namespace="$BOOTBRIDGE_NAMESPACE"
  bootbridge_verify_kind secret Secret --namespace="$BOOTBRIDGE_NAMESPACE"
  bootbridge_verify_kind namespace Namespace --field-selector="metadata.name=$BOOTBRIDGE_NAMESPACE"
}

bootbridge_remaining_objects() {
  bootbridge_list daemonset --namespace="$BOOTBRIDGE_NAMESPACE"
  bootbridge_list secret --namespace="$BOOTBRIDGE_NAMESPACE"
  bootbridge_list namespace --field-selector="metadata.name=$BOOTBRIDGE_NAMESPACE"
} 2>/dev/null

# Records the objects that still exist.
bootbridge_verify_kind() {
  local resource=$1 kind=$2 scope=$3 names name
  if ! names=$(bootbridge_list "$resource" "$scope" 2>/dev/null); then
    bootbridge_record_warning "API server unreachable: cannot verify that the $kind is removed"
    names=$(jq --raw-output --arg resource "$resource" 'select(.list == "found" and .item.resource == $resource) | .item.name' "$events")
  fi
  while IFS= read -r name; do
    [[ -n $name ]] || continue
    bootbridge_record_event remains "$resource" "$(bootbridge_object_name "$kind" "${name##*[ /]}")" "$(bootbridge_remaining_reason "$resource")"
  done <<<"$names"
}

bootbridge_remaining_reason() {
  local since
  since=$(bootbridge_oc "$BOOTBRIDGE_KUBECONFIG" get "$1" --namespace="$BOOTBRIDGE_NAMESPACE" \
    --selector="$BOOTBRIDGE_SELECTOR" --output='jsonpath={.items[*].metadata.deletionTimestamp}' 2>/dev/null)
  if [[ -n $since ]]; then printf '%s' "$BOOTBRIDGE_FINALIZER_REASON"; else printf 'still exists'; fi
}

bootbridge_write_receipt() {
  local earlier=null receipt
  if [[ -s $BOOTBRIDGE_RECEIPT ]]; then earlier=$(<"$BOOTBRIDGE_RECEIPT"); fi
  receipt=$(jq --slurp --argjson earlier "$earlier" --argjson plan "$BOOTBRIDGE_PLAN_SUMMARY" \
    --arg now "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$BOOTBRIDGE_RECEIPT_RULES" "$events")
  if [[ -n $receipt ]] && bootbridge_write_file 0644 "$BOOTBRIDGE_RECEIPT" <<<"$receipt"; then
    rm -f "$events"
  else
    bootbridge_warn "cannot write the receipt to $BOOTBRIDGE_RECEIPT"
  fi
  jq --raw-output '.remains[] | "bootbridge: remains: \(.name): \(.reason)"' <<<"$receipt" >&2
  if jq --exit-status '.clean' <<<"$receipt" >/dev/null; then
    bootbridge_log "tunnel removed, nothing left: see $BOOTBRIDGE_RECEIPT"
    : >"$BOOTBRIDGE_CLEANUP_MARKER"
    return
  fi
  jq --exit-status --arg waiting "$BOOTBRIDGE_FINALIZER_REASON" 'all(.remains[]; .reason == $waiting)' <<<"$receipt" >/dev/null
}
