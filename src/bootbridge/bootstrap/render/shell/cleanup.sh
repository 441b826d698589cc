# --- last stage: removes the tunnel, and writes a receipt of what was found, removed and left
#
# Nothing here fails and every wait has a limit, because bootkube.sh must reach its end. Idempotent. Also works
# after a failed bootstrap, and after an incomplete installation. What is left is handed to a unit that outlives
# bootkube.sh.

bootbridge_cleanup() {
  local result=0 apiserver_state=ended
  if [[ -e $BOOTBRIDGE_CLEANUP_MARKER ]]; then
    bootbridge_log "tunnel already removed: see $BOOTBRIDGE_RECEIPT"
    return 0
  fi
  # A failure to write the service record must not stop bootkube.sh.
  bootbridge_stop_apply || true
  bootbridge_report_agent_objects || true
  bootbridge_stage_start "$BOOTBRIDGE_APISERVER_END_STAGE" || true
  if bootbridge_wait_for_apiserver_end; then
    bootbridge_stage_success || true
  else
    apiserver_state=running
    bootbridge_stage_failure || true
  fi
  bootbridge_stage_start "$BOOTBRIDGE_CLEANUP_STAGE" || true
  bootbridge_remove_all "$apiserver_state" || result=$?
  if ((result != 0)); then bootbridge_publish_remains || true; fi
  if [[ ! -e $BOOTBRIDGE_CLEANUP_MARKER ]]; then bootbridge_hand_over || true; fi
  if ((result == 0)); then bootbridge_stage_success || true; else bootbridge_stage_failure || true; fi
}

# After an abandoned bootstrap an operator asks for the removal, also while the kube-apiserver runs.
bootbridge_cleanup_abandoned() {
  bootbridge_stop_apply
  bootbridge_remove_all abandoned
}

# The unit is enabled until it has ended, so that it also runs after a reboot.
bootbridge_hand_over() {
  if bootbridge_systemctl enable && bootbridge_systemctl start --no-block; then
    bootbridge_log "$BOOTBRIDGE_RETRY_UNIT continues the removal for up to ${BOOTBRIDGE_RETRY_SECONDS}s"
  else
    bootbridge_warn "cannot start $BOOTBRIDGE_RETRY_UNIT: run '${BASH_SOURCE[0]} cleanup' again"
  fi
}

bootbridge_systemctl() {
  timeout "$BOOTBRIDGE_OC_SECONDS" systemctl "$@" "$BOOTBRIDGE_RETRY_UNIT"
}

# The unit's program: tries until nothing is left, until its limit, or until the node shuts down. In the last case
# it deletes the objects in the cluster even if the kube-apiserver still runs: no later attempt could.
bootbridge_cleanup_retry() {
  local ends stopping='' final apiserver_state
  trap 'stopping=yes' TERM
  ends=$(($(bootbridge_now) + BOOTBRIDGE_RETRY_SECONDS))
  until [[ -e $BOOTBRIDGE_CLEANUP_MARKER ]]; do
    apiserver_state=ended
    if bootbridge_apiserver_runs; then apiserver_state=''; fi
    # Read as late as possible: an attempt that does not know that the node shuts down needs its time twice.
    final=$stopping
    if [[ -z $apiserver_state && -n $final ]]; then apiserver_state=stopping; fi
    # The receipt already contains everything while the kube-apiserver runs.
    if [[ -n $apiserver_state || ! -s $BOOTBRIDGE_RECEIPT ]]; then bootbridge_remove_all "${apiserver_state:-running}"; fi
    if [[ -n $final ]] || (($(bootbridge_now) >= ends)); then break; fi
    if [[ -z $stopping && ! -e $BOOTBRIDGE_CLEANUP_MARKER ]]; then sleep "$BOOTBRIDGE_RETRY_PAUSE_SECONDS"; fi
  done
  if [[ ! -e $BOOTBRIDGE_CLEANUP_MARKER ]]; then bootbridge_publish_remains; fi
  # A shutdown may be a reboot, after which the unit continues.
  if [[ -e $BOOTBRIDGE_CLEANUP_MARKER || -z $stopping ]]; then bootbridge_systemctl disable; fi
  [[ -e $BOOTBRIDGE_CLEANUP_MARKER ]] || bootbridge_fail "the removal is not complete" "see $BOOTBRIDGE_RECEIPT"
}

# bootbridge_remove_all ended|running|stopping|abandoned: what the kube-apiserver of this node does. Returns 0 if
# everything is removed or waits only for finalizers, and 1 if something is left.
bootbridge_remove_all() {
  local events='' keep_files='' keep_objects='' may_exist='' deadline=0 each
  local -A problem=()
  if bootbridge_objects_may_exist; then may_exist=yes; fi
  case $1 in
    running) keep_objects=$BOOTBRIDGE_APISERVER_REASON keep_files=$BOOTBRIDGE_APISERVER_REASON ;;
    stopping) keep_files=$BOOTBRIDGE_APISERVER_REASON ;;
  esac
  (
    trap - ERR EXIT TERM
    set +e
    umask 022
    bootbridge_open_events
    bootbridge_record_notes
    bootbridge_record_agent_objects
    bootbridge_remove_objects
    for each in $BOOTBRIDGE_OBJECTS_REVERSED; do bootbridge_remove_paths "$each" "$(bootbridge_manifest_of "$each")"; done
    bootbridge_remove_server
    bootbridge_remove_health_rule
    bootbridge_remove_paths apiserver-address "$BOOTBRIDGE_APISERVER_ADDRESS"
    bootbridge_remove_paths certificates "$BOOTBRIDGE_TLS"
    [[ -n $keep_files ]] || bootbridge_remove_temporary_files
    bootbridge_remove_paths egress-config "$BOOTBRIDGE_EGRESS_CONFIG"
    bootbridge_remove_paths record "$BOOTBRIDGE_CLUSTER_MANIFESTS" "$BOOTBRIDGE_CERTS_MARKER" "$BOOTBRIDGE_SERVER_MARKER" \
      "$BOOTBRIDGE_AGENT_MARKER" "$BOOTBRIDGE_STATE/image" "$BOOTBRIDGE_PROGRAM_FLAGS" "$BOOTBRIDGE_BYPASS" "$BOOTBRIDGE_NOTES" \
      "$BOOTBRIDGE_AGENT_OBJECTS"
    bootbridge_verify_objects
    bootbridge_write_receipt
  )
}

# Objects exist only if their manifests were written: now, before a restart that went on without the tunnel, or
# before a removal that left a receipt or was interrupted.
bootbridge_objects_may_exist() {
  local interrupted
  if [[ -e $BOOTBRIDGE_AGENT_MARKER || -e $BOOTBRIDGE_NAMESPACE_MANIFEST || -e $BOOTBRIDGE_AGENT_OBJECTS ]]; then return 0; fi
  if [[ -s $BOOTBRIDGE_RECEIPT ]]; then return 0; fi
  interrupted=$(cat "${BOOTBRIDGE_RECEIPT%/*}/.removal" 2>/dev/null) || return
  [[ $interrupted == *'"resource":"namespace"'* || $interrupted == *"\"$BOOTBRIDGE_AGENT_OBJECTS\""* ]]
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

# The receipt also says which objects never came into being, and why.
bootbridge_record_agent_objects() {
  local line
  while IFS= read -r line; do
    jq --compact-output --null-input --arg text "$line" '{list: "warnings", item: $text}' >>"$events"
  done < <(bootbridge_agent_objects_problems)
}

bootbridge_write_receipt() {
  local earlier=null receipt
  if [[ -s $BOOTBRIDGE_RECEIPT ]]; then earlier=$(<"$BOOTBRIDGE_RECEIPT"); fi
  receipt=$(jq --slurp --argjson earlier "$earlier" --argjson plan "$BOOTBRIDGE_PLAN_SUMMARY" \
    --arg now "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$BOOTBRIDGE_RECEIPT_RULES" "$events")
  if [[ -n $receipt ]] && bootbridge_write_file 0644 "$BOOTBRIDGE_RECEIPT" <<<"$receipt"; then
    rm -f "$events" "$events.error"
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

# Writes an Event to the cluster, because the receipt is lost with this node. The API server deletes it by itself.
bootbridge_publish_remains() {
  local event
  event=$(jq --arg namespace "$BOOTBRIDGE_NAMESPACE" "$BOOTBRIDGE_REMAINS_EVENT" "$BOOTBRIDGE_RECEIPT") || return
  bootbridge_oc "$BOOTBRIDGE_KUBECONFIG" create --validate=false --filename=- <<<"$event" >/dev/null 2>&1 \
    || bootbridge_warn "cannot write an Event about what remains to the cluster"
}
