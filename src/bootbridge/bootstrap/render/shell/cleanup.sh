# --- last: take everything away, and say what was there, what went and what is left
#
# Nothing here fails and nothing waits without bound: bootkube.sh must get to its end. May be called
# again, after a failed bootstrap, and when only half of the tunnel was ever there.

bootbridge_cleanup() {
  local result=0
  if [[ -e $BOOTBRIDGE_CLEANUP_MARKER ]]; then
    bootbridge_log "the tunnel has been removed already: see $BOOTBRIDGE_RECEIPT"
    return 0
  fi
  # Not even a record that cannot be written may keep bootkube.sh from its end.
  bootbridge_stage_start "$BOOTBRIDGE_CLEANUP_STAGE" || true
  bootbridge_remove_all || result=$?
  if ((result == 0)); then bootbridge_stage_success || true; else bootbridge_stage_failure || true; fi
}

# 0: all is gone, or only waits for the cluster to finalise it; 1: something is left.
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
    bootbridge_sweep
    bootbridge_remove_paths egress-config "$BOOTBRIDGE_EGRESS_CONFIG"
    bootbridge_remove_paths record "$BOOTBRIDGE_CERTS_MARKER" "$BOOTBRIDGE_SERVER_MARKER" \
      "$BOOTBRIDGE_AGENT_MARKER" "$BOOTBRIDGE_STATE/image"
    bootbridge_verify_objects
    bootbridge_write_receipt
  )
}

# A removal that was interrupted before its receipt is told of in the next one.
bootbridge_open_events() {
  local earlier
  mkdir -p "${BOOTBRIDGE_RECEIPT%/*}"
  events=${BOOTBRIDGE_RECEIPT%/*}/.removal
  : >>"$events" || events=/run/bootbridge-removal
  earlier=$(jq --compact-output 'select(.list == "found")' "$events" 2>/dev/null)
  printf '%s' "${earlier:+$earlier$'\n'}" >"$events"
}

# bootbridge_event found|removed|remains PART WHAT [WHY]
bootbridge_event() {
  jq --compact-output --null-input --arg list "$1" --arg resource "$2" --arg name "$3" --arg reason "${4-}" \
    '{list: $list, item: ({resource: $resource, name: $name} + (if $reason == "" then {} else {reason: $reason} end))}' >>"$events"
}

bootbridge_warning() {
  bootbridge_warn "$1"
  jq --compact-output --null-input --arg text "$1" '{list: "warnings", item: $text}' >>"$events"
}

# bootbridge_list KIND [ARGUMENT...]: names of ours, as kind/name lines.
bootbridge_list() {
  bootbridge_oc "$BOOTBRIDGE_KUBECONFIG" get "$@" --selector="$BOOTBRIDGE_SELECTOR" --ignore-not-found --output=name
}

# DaemonSet, then Secret, then the namespace; each only if it carries our label.
bootbridge_remove_objects() {
  if ! command -v oc >/dev/null; then
    bootbridge_give_up_on_api "the program oc is not here"
    return
  fi
  bootbridge_remove_kind daemonset DaemonSet --namespace="$BOOTBRIDGE_NAMESPACE"
  bootbridge_remove_kind secret Secret --namespace="$BOOTBRIDGE_NAMESPACE"
  bootbridge_remove_kind namespace Namespace --field-selector="metadata.name=$BOOTBRIDGE_NAMESPACE"
}

# bootbridge_remove_kind PART KIND SCOPE: asks for the removal and does not wait for it.
bootbridge_remove_kind() {
  local resource=$1 kind=$2 scope=$3 names name
  [[ $api == up ]] || return
  if ! names=$(bootbridge_list "$resource" "$scope" 2>/dev/null); then
    bootbridge_give_up_on_api "the API does not answer"
    return
  fi
  [[ -n $names ]] || return
  while IFS= read -r name; do
    bootbridge_event found "$resource" "$(bootbridge_what "$kind" "${name##*/}")"
  done <<<"$names"
  bootbridge_oc "$BOOTBRIDGE_KUBECONFIG" delete "$resource" "$scope" --selector="$BOOTBRIDGE_SELECTOR" \
    --ignore-not-found --wait=false >/dev/null || bootbridge_warning "oc could not delete the $kind"
}

# One wait for an API that does not answer is enough. What was never handed to cluster-bootstrap is not there.
bootbridge_give_up_on_api() {
  api=down
  bootbridge_warning "$1: what is in the cluster stays there"
  if [[ -e $BOOTBRIDGE_AGENT_MARKER || -e $BOOTBRIDGE_NAMESPACE_MANIFEST || -s $BOOTBRIDGE_RECEIPT ]]; then
    bootbridge_event remains namespace "Namespace $BOOTBRIDGE_NAMESPACE" "$1, so nobody knows"
  fi
}

bootbridge_what() {
  if [[ $1 == Namespace ]]; then printf '%s %s' "$1" "$2"; else printf '%s %s/%s' "$1" "$BOOTBRIDGE_NAMESPACE" "$2"; fi
}

# The static pod first, then its end is waited for: a server that still runs would make its socket again.
bootbridge_remove_server() {
  local ends=$((SECONDS + BOOTBRIDGE_SERVER_END_SECONDS))
  bootbridge_remove_paths static-pod "$BOOTBRIDGE_SERVER_POD"
  while bootbridge_is_listening && ((SECONDS < ends)); do sleep 0.2; done
  if bootbridge_is_listening; then
    bootbridge_event remains static-pod "TCP port $BOOTBRIDGE_AGENT_PORT" \
      "somebody still listened $BOOTBRIDGE_SERVER_END_SECONDS s after the static pod was removed"
  fi
  bootbridge_remove_paths socket "$BOOTBRIDGE_SOCKET"
}

# Whether anybody listens on the agents' port, from the kernel's own tables.
bootbridge_is_listening() {
  local port at state
  printf -v port ':%04X' "$BOOTBRIDGE_AGENT_PORT"
  while read -r _ at _ state _; do
    if [[ $at == *"$port" && $state == 0A ]]; then return 0; fi
  done < <(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null)
  return 1
}

# bootbridge_remove_paths PART PATH...
bootbridge_remove_paths() {
  local resource=$1 path
  shift
  for path in "$@"; do
    [[ -e $path || -L $path ]] || continue
    bootbridge_event found "$resource" "$path"
    rm -rf -- "$path"
    if [[ -e $path || -L $path ]]; then
      bootbridge_event remains "$resource" "$path" "it could not be deleted"
    else
      bootbridge_event removed "$resource" "$path"
    fi
  done
}

# Asked for is not yet gone: looks again for a while.
bootbridge_verify_objects() {
  local ends=$((SECONDS + BOOTBRIDGE_OBJECTS_END_SECONDS))
  [[ $api == up ]] || return
  while [[ -n $(bootbridge_leftovers) ]] && ((SECONDS < ends)); do sleep 1; done
  bootbridge_judge_kind daemonset DaemonSet --namespace="$BOOTBRIDGE_NAMESPACE"
  bootbridge_judge_kind secret Secret --namespace="$BOOTBRIDGE_NAMESPACE"
  bootbridge_judge_kind namespace Namespace --field-selector="metadata.name=$BOOTBRIDGE_NAMESPACE"
}

bootbridge_leftovers() {
  bootbridge_list daemonset --namespace="$BOOTBRIDGE_NAMESPACE"
  bootbridge_list secret --namespace="$BOOTBRIDGE_NAMESPACE"
  bootbridge_list namespace --field-selector="metadata.name=$BOOTBRIDGE_NAMESPACE"
} 2>/dev/null

# What was found and is not there any more has been removed; what is there remains.
bootbridge_judge_kind() {
  local resource=$1 kind=$2 scope=$3 names name
  if ! names=$(bootbridge_list "$resource" "$scope" 2>/dev/null); then
    bootbridge_warning "the API did not answer when it was asked whether the $kind is gone"
    names=$(jq --raw-output --arg resource "$resource" 'select(.list == "found" and .item.resource == $resource) | .item.name' "$events")
  fi
  while IFS= read -r name; do
    [[ -n $name ]] || continue
    bootbridge_event remains "$resource" "$(bootbridge_what "$kind" "${name##*[ /]}")" "$(bootbridge_why_it_remains "$resource")"
  done <<<"$names"
}

bootbridge_why_it_remains() {
  local since
  since=$(bootbridge_oc "$BOOTBRIDGE_KUBECONFIG" get "$1" --namespace="$BOOTBRIDGE_NAMESPACE" \
    --selector="$BOOTBRIDGE_SELECTOR" --output='jsonpath={.items[*].metadata.deletionTimestamp}' 2>/dev/null)
  if [[ -n $since ]]; then printf '%s' "$BOOTBRIDGE_BEING_FINALISED"; else printf 'it is still there'; fi
}

bootbridge_write_receipt() {
  local earlier=null receipt
  if [[ -s $BOOTBRIDGE_RECEIPT ]]; then earlier=$(<"$BOOTBRIDGE_RECEIPT"); fi
  receipt=$(jq --slurp --argjson earlier "$earlier" --argjson plan "$BOOTBRIDGE_PLAN_SUMMARY" \
    --arg now "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$BOOTBRIDGE_RECEIPT_RULES" "$events")
  if [[ -n $receipt ]] && bootbridge_put 0644 "$BOOTBRIDGE_RECEIPT" <<<"$receipt"; then
    rm -f "$events"
  else
    bootbridge_warn "the receipt could not be written to $BOOTBRIDGE_RECEIPT"
  fi
  jq --raw-output '.remains[] | "bootbridge: remains: \(.name): \(.reason)"' <<<"$receipt" >&2
  if jq --exit-status '.clean' <<<"$receipt" >/dev/null; then
    bootbridge_log "the tunnel is removed, nothing is left: $BOOTBRIDGE_RECEIPT"
    : >"$BOOTBRIDGE_CLEANUP_MARKER"
    return
  fi
  jq --exit-status --arg waiting "$BOOTBRIDGE_BEING_FINALISED" 'all(.remains[]; .reason == $waiting)' <<<"$receipt" >/dev/null
}
