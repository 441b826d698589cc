# --- stages before the kube-apiserver is rendered: certificates and server

bootbridge_setup() {
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
  bootbridge_log "addresses that agents dial: ${BOOTBRIDGE_ADDRESSES[*]}"
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

bootbridge_ensure_server() {
  local image
  if bootbridge_server_is_current; then return 0; fi
  bootbridge_stage_start "$BOOTBRIDGE_SERVER_STAGE"
  image=$(bootbridge_image) || return
  bootbridge_ensure_egress_config || return
  mkdir -p "${BOOTBRIDGE_SERVER_POD%/*}" || return
  bootbridge_render server-pod.yaml "$image" 0600 "$BOOTBRIDGE_SERVER_POD" || return
  bootbridge_digest "$image" server-pod.yaml | bootbridge_write_file 0644 "$BOOTBRIDGE_SERVER_MARKER" || return
  bootbridge_stage_success
}

bootbridge_server_is_current() {
  bootbridge_image_is_known && [[ -s $BOOTBRIDGE_SERVER_POD && -s $BOOTBRIDGE_EGRESS_CONFIG ]] \
    && bootbridge_marker_matches "$BOOTBRIDGE_SERVER_MARKER" "$(bootbridge_digest "$(bootbridge_image)" server-pod.yaml)"
}

# Ignition writes the file at the first boot. An existing file is kept, because an operator may have edited it.
bootbridge_ensure_egress_config() {
  if [[ -s $BOOTBRIDGE_EGRESS_CONFIG ]]; then return 0; fi
  mkdir -p "${BOOTBRIDGE_EGRESS_CONFIG%/*}" || return
  printf '%s' "$BOOTBRIDGE_EGRESS_CONFIG_TEXT" | bootbridge_write_file 0644 "$BOOTBRIDGE_EGRESS_CONFIG"
}
