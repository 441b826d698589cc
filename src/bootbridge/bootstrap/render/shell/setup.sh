# --- before the kube-apiserver is rendered: certificates and server

bootbridge_setup() {
  # A tunnel that is laid anew has not been removed.
  rm -f "$BOOTBRIDGE_CLEANUP_MARKER" "$BOOTBRIDGE_RECEIPT"
  mkdir -p "$BOOTBRIDGE_STATE" "$BOOTBRIDGE_TLS" && chmod 0700 "$BOOTBRIDGE_TLS" || return
  bootbridge_sweep
  bootbridge_ensure_certificates || return
  bootbridge_ensure_server
}

# The addresses are looked at every time: the machine may have been given others since.
bootbridge_ensure_certificates() {
  local why
  if ! { bootbridge_find_addresses && bootbridge_find_openssl; }; then
    bootbridge_stage_start "$BOOTBRIDGE_CERTS_STAGE"
    return 1
  fi
  bootbridge_log "agents will dial ${BOOTBRIDGE_ADDRESSES[*]}"
  why=$(bootbridge_why_renew)
  if [[ -z $why && -e $BOOTBRIDGE_CERTS_MARKER ]]; then return 0; fi
  bootbridge_stage_start "$BOOTBRIDGE_CERTS_STAGE"
  if [[ -n $why ]]; then
    bootbridge_log "making certificates: $why"
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
  bootbridge_digest "$image" server-pod.yaml | bootbridge_put 0644 "$BOOTBRIDGE_SERVER_MARKER" || return
  bootbridge_stage_success
}

bootbridge_server_is_current() {
  bootbridge_image_is_known && [[ -s $BOOTBRIDGE_SERVER_POD && -s $BOOTBRIDGE_EGRESS_CONFIG ]] \
    && bootbridge_is_marked "$BOOTBRIDGE_SERVER_MARKER" "$(bootbridge_digest "$(bootbridge_image)" server-pod.yaml)"
}

# Usually it is there since the first boot, perhaps changed by its owner: then it stays as it is.
bootbridge_ensure_egress_config() {
  if [[ -s $BOOTBRIDGE_EGRESS_CONFIG ]]; then return 0; fi
  mkdir -p "${BOOTBRIDGE_EGRESS_CONFIG%/*}" || return
  printf '%s' "$BOOTBRIDGE_EGRESS_CONFIG_TEXT" | bootbridge_put 0644 "$BOOTBRIDGE_EGRESS_CONFIG"
}
