# --- stage before cluster-bootstrap: the agents' manifests, and a check of the kube-apiserver's configuration

bootbridge_manifests() {
  local image made_before=
  [[ ${#BOOTBRIDGE_ADDRESSES[@]} -gt 0 ]] || bootbridge_find_addresses || return
  if bootbridge_manifests_are_current && bootbridge_has_egress_argument; then return 0; fi
  bootbridge_stage_start "$BOOTBRIDGE_AGENT_STAGE"
  image=$(bootbridge_image) || return
  if ! bootbridge_manifests_are_current; then
    if [[ -e $BOOTBRIDGE_AGENT_MARKER ]]; then made_before=yes; fi
    bootbridge_write_manifests "$image" || return
  fi
  bootbridge_ensure_egress_argument || return
  if [[ -n $made_before ]]; then bootbridge_refresh_in_background; fi
  bootbridge_stage_success
}

bootbridge_manifests_are_current() {
  bootbridge_image_is_known \
    && [[ -s $BOOTBRIDGE_NAMESPACE_MANIFEST && -s $BOOTBRIDGE_SECRET_MANIFEST && -s $BOOTBRIDGE_DAEMONSET_MANIFEST ]] \
    && bootbridge_marker_matches "$BOOTBRIDGE_AGENT_MARKER" "$(bootbridge_agent_digest "$(bootbridge_image)")"
}

bootbridge_agent_digest() {
  bootbridge_digest "$1" namespace.yaml agent-secret.yaml agent-daemonset.yaml
}

bootbridge_write_manifests() {
  mkdir -p "$BOOTBRIDGE_CLUSTER_MANIFESTS" || return
  bootbridge_render namespace.yaml "$1" 0644 "$BOOTBRIDGE_NAMESPACE_MANIFEST" || return
  bootbridge_render agent-secret.yaml "$1" 0600 "$BOOTBRIDGE_SECRET_MANIFEST" || return
  bootbridge_render agent-daemonset.yaml "$1" 0644 "$BOOTBRIDGE_DAEMONSET_MANIFEST" || return
  bootbridge_agent_digest "$1" | bootbridge_write_file 0644 "$BOOTBRIDGE_AGENT_MARKER"
}

# Tests whether the rendered kube-apiserver configuration refers to our egress configuration.
bootbridge_has_egress_argument() {
  [[ -r $BOOTBRIDGE_APISERVER_CONFIG ]] && [[ $(bootbridge_egress_argument) == "$BOOTBRIDGE_EGRESS_CONFIG_SEEN" ]]
}

# Prints the argument's value without quotes: the list item in the line after the key.
bootbridge_egress_argument() {
  sed -n '/^[[:space:]]*egress-selector-config-file:/{n;s/^[[:space:]]*-[[:space:]]*//;s/^["'\'']//;s/["'\'']*[[:space:]]*$//;p;q}' \
    "$BOOTBRIDGE_APISERVER_CONFIG"
}

# The operator's render command applied the override. If that had no effect, webhooks would time out much
# later for no visible reason. So this adds the argument, or stops the bootstrap.
bootbridge_ensure_egress_argument() {
  local other text
  [[ -s $BOOTBRIDGE_EGRESS_CONFIG ]] \
    || bootbridge_fail "file not found: $BOOTBRIDGE_EGRESS_CONFIG" "restart bootkube.service, which writes it" || return
  if bootbridge_has_egress_argument; then return 0; fi
  [[ -r $BOOTBRIDGE_APISERVER_CONFIG ]] \
    || bootbridge_fail "file not found: $BOOTBRIDGE_APISERVER_CONFIG" "check the stage kube-apiserver-bootstrap" || return
  other=$(bootbridge_egress_argument)
  [[ -z $other ]] || bootbridge_fail "$BOOTBRIDGE_APISERVER_CONFIG refers to another egress configuration: $other" \
    "use either the installer's tunnel or this one" || return
  bootbridge_log "adding egress-selector-config-file to $BOOTBRIDGE_APISERVER_CONFIG"
  text=$(sed "/^apiServerArguments:[[:space:]]*\$/a\\
\\  egress-selector-config-file:\\
\\  - $BOOTBRIDGE_EGRESS_CONFIG_SEEN" "$BOOTBRIDGE_APISERVER_CONFIG") || return
  printf '%s\n' "$text" | bootbridge_write_file "$(stat -c %a "$BOOTBRIDGE_APISERVER_CONFIG")" "$BOOTBRIDGE_APISERVER_CONFIG" || return
  bootbridge_has_egress_argument \
    || bootbridge_fail "apiServerArguments not found in $BOOTBRIDGE_APISERVER_CONFIG: the kube-apiserver would not use the tunnel" \
      "bootbridge does not support the format of this release"
}

# cluster-bootstrap does not update existing objects. After a failed attempt the agents' objects may exist
# with certificates that the server no longer accepts, so they are replaced as soon as the API server answers.
# The background process ends with bootkube.service at the latest.
bootbridge_refresh_in_background() {
  bootbridge_log "agent Secret and DaemonSet will be replaced when the API server answers"
  bootbridge_refresh </dev/null &
}

bootbridge_refresh() (
  trap - ERR EXIT
  set +e
  ends=$((SECONDS + BOOTBRIDGE_REFRESH_SECONDS))
  while ((SECONDS < ends)); do
    if output=$(bootbridge_oc "$BOOTBRIDGE_LOOPBACK_KUBECONFIG" replace \
      --filename="$BOOTBRIDGE_SECRET_MANIFEST" --filename="$BOOTBRIDGE_DAEMONSET_MANIFEST" 2>&1); then
      bootbridge_log "agent Secret and DaemonSet replaced"
      exit 0
    fi
    # cluster-bootstrap creates missing objects from the new manifests.
    if [[ $output == *NotFound* || ! -e $BOOTBRIDGE_SECRET_MANIFEST ]]; then exit 0; fi
    sleep 2
  done
  bootbridge_warn "replacing the agent Secret timed out after ${BOOTBRIDGE_REFRESH_SECONDS}s"
)

# bootbridge_oc KUBECONFIG ARGUMENT...: runs oc with a time limit for the request and one for the process.
bootbridge_oc() {
  local kubeconfig=$1
  shift
  timeout "$BOOTBRIDGE_OC_SECONDS" oc --kubeconfig="$kubeconfig" --request-timeout="${BOOTBRIDGE_REQUEST_SECONDS}s" "$@"
}
