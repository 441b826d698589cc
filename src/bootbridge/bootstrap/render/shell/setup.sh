# --- stages before the kube-apiserver is rendered: certificates and server

bootbridge_setup() {
  if bootbridge_bootstrap_is_over; then
    # The server runs until the removal, also after a reboot.
    bootbridge_close_health_port
    return 0
  fi
  # Invalidates the result of an earlier removal.
  rm -f "$BOOTBRIDGE_CLEANUP_MARKER" "$BOOTBRIDGE_RECEIPT"
  mkdir -p "$BOOTBRIDGE_STATE" "$BOOTBRIDGE_TLS" && chmod 0700 "$BOOTBRIDGE_TLS" || return
  bootbridge_remove_temporary_files
  bootbridge_ensure_certificates || return
  bootbridge_ensure_server
}

# Detects the addresses at every start: the machine may have got others since the last one.
bootbridge_ensure_certificates() {
  local reason
  if ! { bootbridge_find_addresses && bootbridge_find_openssl; }; then
    bootbridge_stage_start "$BOOTBRIDGE_CERTS_STAGE"
    return 1
  fi
  bootbridge_log "addresses in the server's certificate: ${BOOTBRIDGE_ADDRESSES[*]}"
  reason=$(bootbridge_renewal_reason)
  if [[ -z $reason && -e $BOOTBRIDGE_CERTS_MARKER ]]; then return 0; fi
  bootbridge_stage_start "$BOOTBRIDGE_CERTS_STAGE"
  if [[ -n $reason ]]; then
    bootbridge_log "creating certificates: $reason"
    rm -f "$BOOTBRIDGE_CERTS_MARKER"
    bootbridge_make_certificates || return
  fi
  : >"$BOOTBRIDGE_CERTS_MARKER" || return
  bootbridge_stage_success
}

# Starts the server and waits until it answers. A server that does not is a failed stage, but not the end of the
# bootstrap: bootbridge_manifests tries again, and without a server the kube-apiserver dials directly.
bootbridge_ensure_server() {
  local image seconds=${1:-$BOOTBRIDGE_SERVER_START_SECONDS}
  bootbridge_ensure_apiserver_address || return
  if [[ ! -e $BOOTBRIDGE_BYPASS ]] && bootbridge_server_is_current && bootbridge_server_problem >/dev/null; then
    bootbridge_close_health_port
    bootbridge_use_tunnel
    return
  fi
  bootbridge_stage_start "$BOOTBRIDGE_SERVER_STAGE"
  image=$(bootbridge_image) || return
  if bootbridge_ensure_program_flags "$image"; then
    bootbridge_close_health_port
    bootbridge_write_server_pod "$image" || return
    bootbridge_wait_for_server "$seconds" && bootbridge_use_tunnel && bootbridge_stage_success && return
  fi
  bootbridge_bypass_tunnel || return
  bootbridge_stage_failure
}

# Writes address and CA of this node's kube-apiserver, which the server asks about agents' tokens; without a user.
# The server reads the file when an agent connects. Without it, agents are admitted with the default route only.
bootbridge_ensure_apiserver_address() {
  local text
  if [[ -z $BOOTBRIDGE_PROVES_NODES ]]; then return 0; fi
  text=$(set -o pipefail && timeout "$BOOTBRIDGE_OC_SECONDS" oc --kubeconfig="$BOOTBRIDGE_LOOPBACK_KUBECONFIG" config view \
    --raw --minify --flatten --output=json | jq --exit-status "$BOOTBRIDGE_APISERVER_ADDRESS_RULES") || {
    bootbridge_warn "cannot read the kube-apiserver's address from $BOOTBRIDGE_LOOPBACK_KUBECONFIG: agents can prove no node"
    return 0
  }
  if [[ -r $BOOTBRIDGE_APISERVER_ADDRESS && $(<"$BOOTBRIDGE_APISERVER_ADDRESS") == "$text" ]]; then return 0; fi
  printf '%s\n' "$text" | bootbridge_write_file 0644 "$BOOTBRIDGE_APISERVER_ADDRESS"
}

bootbridge_write_server_pod() {
  local image=$1 ends earlier=
  if bootbridge_server_is_current; then return 0; fi
  if bootbridge_server_problem >/dev/null; then earlier=$(bootbridge_server_log); fi
  bootbridge_ensure_egress_config || return
  mkdir -p "${BOOTBRIDGE_SERVER_POD%/*}" || return
  bootbridge_render server-pod.yaml "$image" 0600 "$BOOTBRIDGE_SERVER_POD" proxy-server || return
  bootbridge_digest "$image" server-pod.yaml | bootbridge_write_file 0644 "$BOOTBRIDGE_SERVER_MARKER" || return
  # A server of an earlier manifest answers until the kubelet has ended it; the next one writes another log.
  ends=$(($(bootbridge_now) + BOOTBRIDGE_SERVER_END_SECONDS))
  while [[ -n $earlier && $(bootbridge_server_log) == "$earlier" ]] && (($(bootbridge_now) < ends)); do sleep 0.1; done
}

bootbridge_server_is_current() {
  bootbridge_image_is_known && bootbridge_program_flags_are_known "$(bootbridge_image)" && [[ -s $BOOTBRIDGE_SERVER_POD ]] \
    && bootbridge_marker_matches "$BOOTBRIDGE_SERVER_MARKER" "$(bootbridge_digest "$(bootbridge_image)" server-pod.yaml)"
}

# bootbridge_wait_for_server SECONDS
bootbridge_wait_for_server() {
  local problem began now
  began=$(bootbridge_now)
  until problem=$(bootbridge_server_problem); do
    now=$(bootbridge_now)
    if ((now - began >= $1)); then
      bootbridge_fail "the server does not answer after $((now - began))s: $problem; $(bootbridge_server_last_words)" \
        "read its log: crictl logs, or bootbridge gather"
      return
    fi
    sleep 0.2
  done
  bootbridge_log "the server answers after $(($(bootbridge_now) - began))s"
}

# Prints why the server does not work, and returns 1; returns 0 if it listens on port and socket and is healthy.
bootbridge_server_problem() {
  bootbridge_is_listening "$BOOTBRIDGE_AGENT_PORT" || { printf 'TCP port %s: connection refused' "$BOOTBRIDGE_AGENT_PORT" && return 1; }
  bootbridge_socket_is_listening || { printf '%s: no process listens' "$BOOTBRIDGE_SOCKET" && return 1; }
  bootbridge_is_healthy || { printf 'http://127.0.0.1:%s/healthz does not return 200' "$BOOTBRIDGE_HEALTH_PORT" && return 1; }
}

# Flags 00010000 mean that the socket listens. A server that was killed leaves the file behind.
bootbridge_socket_is_listening() {
  local flags path
  [[ -S $BOOTBRIDGE_SOCKET ]] || return
  while read -r _ _ _ flags _ _ _ path; do
    if [[ $flags == 00010000 && $path == "$BOOTBRIDGE_SOCKET" ]]; then return 0; fi
  done </proc/net/unix
  return 1
}

# With bash alone: a node needs no curl for it.
bootbridge_is_healthy() {
  # shellcheck disable=SC2016  # expanded by the inner bash
  timeout "$BOOTBRIDGE_HEALTH_SECONDS" bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1" && printf "GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n" >&3 \
    && read -r _ status _ <&3 && [[ $status == 200 ]]' - "$BOOTBRIDGE_HEALTH_PORT" 2>/dev/null
}

# Prints the newest log of the server. The kubelet counts the starts of one pod from 0 in the names.
bootbridge_server_log() {
  local log newest=''
  for log in /var/log/pods/*_"$BOOTBRIDGE_SERVER_POD_NAME"*/*/*.log; do
    if [[ -r $log && ( -z $newest || $log -nt $newest ) ]]; then newest=$log; fi
  done
  printf '%s' "$newest"
}

# Prints how often the kubelet started the server, and the error in its last log.
bootbridge_server_last_words() {
  local log number line words=''
  log=$(bootbridge_server_log)
  if [[ -z $log ]]; then
    printf 'the kubelet has not started it'
    return
  fi
  number=${log##*/}
  number=${number%%[!0-9]*}
  # An error may precede a list of all flags. CRI logs begin with time, stream and tag.
  while read -r _ _ _ line; do
    if [[ $line == -* ]]; then continue; fi
    if [[ ${line,,} == *@(error|unknown|fatal|panic|fail)* || -z $words ]]; then words=$line; fi
  done < <(tail -n 200 "$log")
  printf 'restarts: %s, last words: %s' "${number:-0}" "$(bootbridge_last_line "$words")"
}

# --- with or without the tunnel: the kube-apiserver reads the egress configuration at its start, after both hooks

# Ignition writes the file at the first boot. An existing file is kept, because an operator may have edited it.
bootbridge_ensure_egress_config() {
  if [[ -s $BOOTBRIDGE_EGRESS_CONFIG ]]; then return 0; fi
  mkdir -p "${BOOTBRIDGE_EGRESS_CONFIG%/*}" || return
  printf '%s' "$BOOTBRIDGE_EGRESS_CONFIG_TEXT" | bootbridge_write_file 0644 "$BOOTBRIDGE_EGRESS_CONFIG"
}

bootbridge_use_tunnel() {
  if [[ -e $BOOTBRIDGE_BYPASS ]]; then
    mv -f "$BOOTBRIDGE_BYPASS" "$BOOTBRIDGE_EGRESS_CONFIG" || return
    bootbridge_log "the kube-apiserver will use the tunnel"
  fi
  bootbridge_ensure_egress_config
}

# A kube-apiserver that is configured for a dead socket fails every call of a webhook. So calls go directly, as
# without a tunnel. The configuration of the tunnel is kept for the next start.
bootbridge_bypass_tunnel() {
  if [[ ! -e $BOOTBRIDGE_BYPASS ]]; then
    bootbridge_ensure_egress_config || return
    cp "$BOOTBRIDGE_EGRESS_CONFIG" "$BOOTBRIDGE_BYPASS" || return
  fi
  printf '%s' "$BOOTBRIDGE_DIRECT_CONFIG_TEXT" | bootbridge_write_file 0644 "$BOOTBRIDGE_EGRESS_CONFIG" || return
  bootbridge_warn "$BOOTBRIDGE_BYPASS_NOTE"
}
