# --- the removal's steps: objects in the cluster, the server, files
#
# They share the variables of bootbridge_remove_all: `events`, the file with what they did; `keep_objects` and
# `keep_files`, the reason to leave everything as it is; `may_exist`, whether objects may exist; `problem`, the last
# failure for each kind of object; `deadline`, when requests must end.

# Deletes the agents' objects, the DaemonSet first and the namespace last, if they have our label. Each is retried
# on its own: the API server is unstable while the control plane moves to the cluster.
bootbridge_remove_objects() {
  local pending unfinished each
  read -r -a pending <<<"$BOOTBRIDGE_OBJECTS_REVERSED"
  deadline=$(($(bootbridge_now) + BOOTBRIDGE_API_SECONDS))
  while :; do
    unfinished=()
    for each in "${pending[@]}"; do bootbridge_remove_kind "$each" || unfinished+=("$each"); done
    pending=("${unfinished[@]}")
    if ((${#pending[@]} == 0)) || [[ -n $keep_objects ]] || [[ -z $may_exist ]]; then return; fi
    if (($(bootbridge_now) + 2 >= deadline)); then return; fi
    sleep 2
  done
}

# bootbridge_remove_kind RESOURCE: requests the deletion without waiting for it. One request and no list before
# it: if every second one fails, the deletion would fail each time.
bootbridge_remove_kind() {
  local resource=$1 output name
  if [[ -n $keep_objects ]]; then return 0; fi
  if output=$(bootbridge_oc_until_deadline delete "${resource//-/}" "$(bootbridge_scope "$resource")" --selector="$BOOTBRIDGE_SELECTOR" \
    --ignore-not-found --wait=false --output=name 2>"$events.error"); then
    problem[$resource]=
    while IFS= read -r name; do
      [[ -z $name ]] || bootbridge_record_event found "$resource" "$(bootbridge_object_name "$resource" "${name##*/}")"
    done <<<"$output"
    return 0
  fi
  problem[$resource]=$(bootbridge_api_problem)
  return 1
}

# bootbridge_list RESOURCE: sets `names` to the objects with our label: one line each, with the time at which
# their deletion was requested. Returns 1 and sets the problem if the API server does not answer.
bootbridge_list() {
  local resource=$1 output
  if output=$(bootbridge_oc_until_deadline get "${resource//-/}" "$(bootbridge_scope "$resource")" --selector="$BOOTBRIDGE_SELECTOR" \
    --ignore-not-found --output='jsonpath={range .items[*]}{.metadata.name} {.metadata.deletionTimestamp}{"\n"}{end}' 2>"$events.error"); then
    names=$output
    return 0
  fi
  problem[$resource]=$(bootbridge_api_problem)
  return 1
}

# Prints oc's message, which is either the API server's refusal or about the connection.
bootbridge_api_problem() {
  local message
  message=$(bootbridge_one_line "$(cat "$events.error")")
  if [[ $message == "Error from server"* ]]; then printf '%s' "$message"; else printf '%s: %s' "$BOOTBRIDGE_API_REASON" "$message"; fi
}

bootbridge_oc_until_deadline() {
  local left=$((deadline - $(bootbridge_now)))
  if ! command -v oc >/dev/null; then
    printf 'command not found: oc' >&2
    return 1
  fi
  if ((left <= 0)); then
    printf 'no answer in time' >&2
    return 1
  fi
  BOOTBRIDGE_OC_SECONDS=$((left < BOOTBRIDGE_OC_SECONDS ? left : BOOTBRIDGE_OC_SECONDS)) bootbridge_oc "$BOOTBRIDGE_KUBECONFIG" "$@"
}

bootbridge_scope() {
  if [[ $1 == namespace ]]; then printf -- '--field-selector=metadata.name=%s' "$BOOTBRIDGE_NAMESPACE"; else printf -- '--namespace=%s' "$BOOTBRIDGE_NAMESPACE"; fi
}

# bootbridge_object_name RESOURCE NAME
bootbridge_object_name() {
  case $1 in
    namespace) printf 'Namespace %s' "$2" ;;
    secret) printf 'Secret %s/%s' "$BOOTBRIDGE_NAMESPACE" "$2" ;;
    role) printf 'Role %s/%s' "$BOOTBRIDGE_NAMESPACE" "$2" ;;
    role-binding) printf 'RoleBinding %s/%s' "$BOOTBRIDGE_NAMESPACE" "$2" ;;
    daemonset) printf 'DaemonSet %s/%s' "$BOOTBRIDGE_NAMESPACE" "$2" ;;
  esac
}

# Removes the static pod and waits for the server to end, because a running server would create its socket again.
bootbridge_remove_server() {
  local ends
  bootbridge_remove_paths static-pod "$BOOTBRIDGE_SERVER_POD"
  if [[ -z $keep_files ]]; then
    ends=$(($(bootbridge_now) + BOOTBRIDGE_SERVER_END_SECONDS))
    while bootbridge_is_listening "$BOOTBRIDGE_AGENT_PORT" && (($(bootbridge_now) < ends)); do sleep 1; done
    if bootbridge_is_listening "$BOOTBRIDGE_AGENT_PORT"; then
      bootbridge_record_event remains static-pod "TCP port $BOOTBRIDGE_AGENT_PORT" \
        "still in use ${BOOTBRIDGE_SERVER_END_SECONDS}s after the static pod was removed"
    fi
  fi
  bootbridge_remove_paths socket "$BOOTBRIDGE_SOCKET"
}

# bootbridge_remove_paths RESOURCE PATH...
bootbridge_remove_paths() {
  local resource=$1 path
  shift
  for path in "$@"; do
    [[ -e $path || -L $path ]] || continue
    bootbridge_record_event found "$resource" "$path"
    [[ -n $keep_files ]] || rm -rf -- "$path"
    if [[ -e $path || -L $path ]]; then
      bootbridge_record_event remains "$resource" "$path" "${keep_files:-deletion failed}"
    else
      bootbridge_record_event removed "$resource" "$path"
    fi
  done
}

# Waits until the objects are deleted, and records those that are left.
bootbridge_verify_objects() {
  local each ends
  ends=$(($(bootbridge_now) + BOOTBRIDGE_OBJECTS_END_SECONDS))
  for each in $BOOTBRIDGE_OBJECTS_REVERSED; do bootbridge_verify_kind "$each"; done
}

# bootbridge_verify_kind RESOURCE: an object is removed only if the API server says so.
bootbridge_verify_kind() {
  local resource=$1 names='' name deleted reason answered='' failed=${problem[$1]-}
  while :; do
    answered=
    deadline=$(($(bootbridge_now) + BOOTBRIDGE_OC_SECONDS))
    if bootbridge_list "$resource"; then
      answered=yes
      if [[ -z $names ]]; then return 0; fi
    fi
    # After two minutes without an answer one more attempt is enough.
    if [[ -n $keep_objects || ($failed == "$BOOTBRIDGE_API_REASON"* && -z $answered) ]]; then break; fi
    if (($(bootbridge_now) + 1 >= ends)); then break; fi
    sleep 1
  done
  if [[ -z $answered ]]; then
    bootbridge_record_unknown "$resource"
    return
  fi
  while read -r name deleted; do
    name=$(bootbridge_object_name "$resource" "$name")
    bootbridge_record_event found "$resource" "$name"
    reason=$keep_objects
    if [[ -z $reason && -n $deleted ]]; then reason=$BOOTBRIDGE_FINALIZER_REASON; fi
    if [[ -z $reason && -n $failed ]]; then reason="deletion failed: $failed"; fi
    bootbridge_record_event remains "$resource" "$name" "${reason:-still exists}"
  done <<<"$names"
}

# bootbridge_record_unknown RESOURCE: what was found counts as remaining, and the namespace for what it may contain.
bootbridge_record_unknown() {
  local resource=$1 name found
  found=$(jq --raw-output --arg resource "$resource" \
    'select(.list == "found" and .item.resource == $resource and (.item.name | startswith("/") | not)) | .item.name' "$events")
  if [[ -z $found && $resource == namespace && -n $may_exist ]]; then found="Namespace $BOOTBRIDGE_NAMESPACE"; fi
  bootbridge_record_warning "cannot verify that the $resource is removed: ${problem[$resource]}"
  while IFS= read -r name; do
    [[ -z $name ]] || bootbridge_record_event remains "$resource" "$name" "unknown: ${problem[$resource]}"
  done < <(printf '%s\n' "$found" | sort -u)
}
