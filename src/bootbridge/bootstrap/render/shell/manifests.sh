# --- before cluster-bootstrap: the agents' manifests, and a last look at the kube-apiserver's configuration

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
    && bootbridge_is_marked "$BOOTBRIDGE_AGENT_MARKER" "$(bootbridge_agent_digest "$(bootbridge_image)")"
}

bootbridge_agent_digest() {
  bootbridge_digest "$1" namespace.yaml agent-secret.yaml agent-daemonset.yaml
}

bootbridge_write_manifests() {
  mkdir -p "$BOOTBRIDGE_CLUSTER_MANIFESTS" || return
  bootbridge_render namespace.yaml "$1" 0644 "$BOOTBRIDGE_NAMESPACE_MANIFEST" || return
  bootbridge_render agent-secret.yaml "$1" 0600 "$BOOTBRIDGE_SECRET_MANIFEST" || return
  bootbridge_render agent-daemonset.yaml "$1" 0644 "$BOOTBRIDGE_DAEMONSET_MANIFEST" || return
  bootbridge_agent_digest "$1" | bootbridge_put 0644 "$BOOTBRIDGE_AGENT_MARKER"
}

# Whether the rendered kube-apiserver configuration names our egress configuration.
bootbridge_has_egress_argument() {
  [[ -r $BOOTBRIDGE_APISERVER_CONFIG ]] && [[ $(bootbridge_egress_argument) == "$BOOTBRIDGE_EGRESS_CONFIG_SEEN" ]]
}

# The value of the argument, without its quotes: the item in the line after the key.
bootbridge_egress_argument() {
  sed -n '/^[[:space:]]*egress-selector-config-file:/{n;s/^[[:space:]]*-[[:space:]]*//;s/^["'\'']//;s/["'\'']*[[:space:]]*$//;p;q}' \
    "$BOOTBRIDGE_APISERVER_CONFIG"
}

# The operator's render command was given the override. Should that have had no effect, webhooks
# would time out much later and nobody would know why, so it is mended here or the bootstrap stops.
bootbridge_ensure_egress_argument() {
  local other text
  [[ -s $BOOTBRIDGE_EGRESS_CONFIG ]] \
    || bootbridge_fail "$BOOTBRIDGE_EGRESS_CONFIG is missing" "restart bootkube.service: it is written again" || return
  if bootbridge_has_egress_argument; then return 0; fi
  [[ -r $BOOTBRIDGE_APISERVER_CONFIG ]] \
    || bootbridge_fail "$BOOTBRIDGE_APISERVER_CONFIG is missing" "look into the stage kube-apiserver-bootstrap" || return
  other=$(bootbridge_egress_argument)
  [[ -z $other ]] || bootbridge_fail "$BOOTBRIDGE_APISERVER_CONFIG has another egress configuration already: $other" \
    "use the installer's own tunnel, or this one: not both" || return
  bootbridge_log "$BOOTBRIDGE_APISERVER_CONFIG lacks egress-selector-config-file: adding it"
  text=$(sed "/^apiServerArguments:[[:space:]]*\$/a\\
\\  egress-selector-config-file:\\
\\  - $BOOTBRIDGE_EGRESS_CONFIG_SEEN" "$BOOTBRIDGE_APISERVER_CONFIG") || return
  printf '%s\n' "$text" | bootbridge_put "$(stat -c %a "$BOOTBRIDGE_APISERVER_CONFIG")" "$BOOTBRIDGE_APISERVER_CONFIG" || return
  bootbridge_has_egress_argument \
    || bootbridge_fail "$BOOTBRIDGE_APISERVER_CONFIG has no apiServerArguments, so the kube-apiserver would not use the tunnel" \
      "this release renders it in a shape that bootbridge does not know"
}

# cluster-bootstrap leaves objects alone that exist already. After a failed attempt the agents' ones may,
# with certificates that the server does not know any more; so they are replaced as soon as an API
# answers. It ends with bootkube.service at the latest.
bootbridge_refresh_in_background() {
  bootbridge_log "the agents' Secret and DaemonSet are replaced once the API answers"
  bootbridge_refresh </dev/null &
}

bootbridge_refresh() (
  trap - ERR EXIT
  set +e
  ends=$((SECONDS + BOOTBRIDGE_REFRESH_SECONDS))
  while ((SECONDS < ends)); do
    if said=$(bootbridge_oc "$BOOTBRIDGE_LOOPBACK_KUBECONFIG" replace \
      --filename="$BOOTBRIDGE_SECRET_MANIFEST" --filename="$BOOTBRIDGE_DAEMONSET_MANIFEST" 2>&1); then
      bootbridge_log "the agents' Secret and DaemonSet have the new certificates"
      exit 0
    fi
    # What is not there yet is created by cluster-bootstrap, from the new manifests.
    if [[ $said == *NotFound* || ! -e $BOOTBRIDGE_SECRET_MANIFEST ]]; then exit 0; fi
    sleep 2
  done
  bootbridge_warn "the agents' Secret could not be replaced within $BOOTBRIDGE_REFRESH_SECONDS s"
)

# bootbridge_oc KUBECONFIG ARGUMENT...: bounded twice, as a request and as a process.
bootbridge_oc() {
  local kubeconfig=$1
  shift
  timeout "$BOOTBRIDGE_OC_SECONDS" oc --kubeconfig="$kubeconfig" --request-timeout="${BOOTBRIDGE_REQUEST_SECONDS}s" "$@"
}
