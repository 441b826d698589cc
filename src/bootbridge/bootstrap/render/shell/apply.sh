# --- beside cluster-bootstrap: applies the agents' objects, and reports the result after it
#
# Not through cluster-bootstrap's manifests: it ends only when all of them exist, after 60 minutes at the latest,
# so one refused object (admission, quota, a webhook) would fail the bootstrap.

# The background process ends when all objects are applied, when the removal starts, or with bootkube.service.
bootbridge_apply_in_background() {
  bootbridge_log "the agents' objects are applied as soon as the API server accepts them"
  rm -f "$BOOTBRIDGE_APPLY_STOP"
  : >"$BOOTBRIDGE_APPLY_PID"
  bootbridge_apply </dev/null &
}

# Applies, so that objects of an earlier attempt get the certificates that the server accepts now.
bootbridge_apply() {
  local pending=() each ends
  local -A outcome=() refusal=() attempts=()
  for each in $BOOTBRIDGE_OBJECTS; do
    pending+=("$each")
    outcome[$each]=pending
  done
  trap - ERR
  trap 'rm -f "$BOOTBRIDGE_APPLY_PID"' EXIT
  set +e
  printf '%s' "$BASHPID" >"$BOOTBRIDGE_APPLY_PID"
  ends=$(($(bootbridge_now) + BOOTBRIDGE_APPLY_SECONDS))
  bootbridge_write_agent_objects
  while bootbridge_apply_goes_on; do
    bootbridge_apply_pending
    bootbridge_write_agent_objects
    if ((${#pending[@]} == 0)); then
      bootbridge_log "the agents' objects are applied"
      return 0
    fi
    sleep 5
  done
  if [[ ! -e $BOOTBRIDGE_APPLY_STOP ]]; then bootbridge_warn "gave up applying the agents' objects after ${BOOTBRIDGE_APPLY_SECONDS}s"; fi
}

bootbridge_apply_goes_on() {
  [[ ! -e $BOOTBRIDGE_APPLY_STOP ]] && (($(bootbridge_now) < ends))
}

# Tries each pending object once. Without the namespace the others need no attempt.
bootbridge_apply_pending() {
  local each waiting=()
  for each in "${pending[@]}"; do
    if [[ ${outcome[namespace]} != applied && $each != namespace ]] || ! bootbridge_apply_goes_on || ! bootbridge_apply_object "$each"; then
      waiting+=("$each")
    fi
  done
  pending=("${waiting[@]}")
}

# bootbridge_apply_object RESOURCE: on the server, because the client would copy the key into an annotation.
bootbridge_apply_object() {
  local resource=$1 output why
  attempts[$resource]=$((${attempts[$resource]-0} + 1))
  if output=$(bootbridge_oc "$BOOTBRIDGE_LOOPBACK_KUBECONFIG" apply --server-side --force-conflicts --validate=false \
    --field-manager=bootbridge --filename="$(bootbridge_manifest_of "$resource")" 2>&1); then
    outcome[$resource]=applied refusal[$resource]=
    return 0
  fi
  why=$(bootbridge_one_line "$output")
  # Other errors are normal until the API server has started.
  if [[ $output == *"Error from server"* ]]; then
    [[ ${refusal[$resource]-} == "$why" ]] || bootbridge_warn "$(bootbridge_planned_object "$resource") refused: $why"
    outcome[$resource]=refused
  fi
  refusal[$resource]=$why
  return 1
}

# bootbridge_planned_object RESOURCE
bootbridge_planned_object() {
  case $1 in
    namespace) bootbridge_object_name "$1" "$BOOTBRIDGE_NAMESPACE" ;;
    secret) bootbridge_object_name "$1" "$BOOTBRIDGE_SECRET_NAME" ;;
    role | role-binding) bootbridge_object_name "$1" "$BOOTBRIDGE_ROLE_NAME" ;;
    daemonset) bootbridge_object_name "$1" "$BOOTBRIDGE_DAEMONSET_NAME" ;;
  esac
}

# Writes one JSON line for each object.
bootbridge_write_agent_objects() {
  local each
  for each in $BOOTBRIDGE_OBJECTS; do
    jq --compact-output --null-input --arg name "$(bootbridge_planned_object "$each")" --arg result "${outcome[$each]}" \
      --arg reason "${refusal[$each]-}" --argjson attempts "${attempts[$each]-0}" \
      '{name: $name, result: $result, attempts: $attempts} + (if $reason == "" then {} else {reason: $reason} end)'
  done | bootbridge_write_file 0644 "$BOOTBRIDGE_AGENT_OBJECTS"
}

# Ends the background process, so that it creates nothing after the removal. It may be in one last request.
bootbridge_stop_apply() {
  local ends
  if [[ ! -e $BOOTBRIDGE_APPLY_PID ]]; then return 0; fi
  : >"$BOOTBRIDGE_APPLY_STOP"
  ends=$(($(bootbridge_now) + BOOTBRIDGE_APPLY_END_SECONDS))
  while bootbridge_apply_runs && (($(bootbridge_now) < ends)); do sleep 1; done
  rm -f "$BOOTBRIDGE_APPLY_PID"
}

# The file is empty while the process starts, and is left if the process was killed.
bootbridge_apply_runs() {
  local pid
  # Not $(<file): with `set -e`, bash exits if the file is gone.
  pid=$(cat "$BOOTBRIDGE_APPLY_PID" 2>/dev/null) || return 1
  [[ -z $pid ]] || kill -0 "$pid" 2>/dev/null
}

# Records whether cluster-bootstrap ended with agents in the cluster. Without them webhooks were unreachable.
bootbridge_report_agent_objects() {
  if [[ ! -s $BOOTBRIDGE_AGENT_OBJECTS ]]; then return 0; fi
  bootbridge_stage_start "$BOOTBRIDGE_APPLY_STAGE"
  if bootbridge_agent_objects_problems | bootbridge_prefixed_warnings; then bootbridge_stage_failure; else bootbridge_stage_success; fi
}

# Prints one line for each object that was not applied.
bootbridge_agent_objects_problems() {
  jq --raw-output 'select(.result != "applied") | "\(.name) was not applied in \(.attempts) attempts: \(.reason // "no answer")"' \
    "$BOOTBRIDGE_AGENT_OBJECTS" 2>/dev/null
}

# Prints each line of stdin as a warning. Returns 1 if there was none.
bootbridge_prefixed_warnings() {
  local line any=1
  while IFS= read -r line; do
    bootbridge_warn "$line"
    any=0
  done
  return "$any"
}

# bootbridge_oc KUBECONFIG ARGUMENT...: runs oc with a time limit for the request and one for the process.
bootbridge_oc() {
  local kubeconfig=$1
  shift
  timeout "$BOOTBRIDGE_OC_SECONDS" oc --kubeconfig="$kubeconfig" --request-timeout="${BOOTBRIDGE_REQUEST_SECONDS}s" "$@"
}
