# --- stage before cluster-bootstrap: the agents' manifests, and a check of the kube-apiserver's configuration

bootbridge_manifests() {
  local each
  if bootbridge_bootstrap_is_over; then return 0; fi
  [[ ${#BOOTBRIDGE_ADDRESSES[@]} -gt 0 ]] || bootbridge_find_addresses || return
  # The server may have answered late, or have ended since.
  bootbridge_ensure_server "$BOOTBRIDGE_SERVER_RECHECK_SECONDS" || return
  if [[ -e $BOOTBRIDGE_BYPASS ]]; then
    # Agents without a server would only use resources.
    for each in $BOOTBRIDGE_OBJECTS_REVERSED; do rm -f "$(bootbridge_manifest_of "$each")"; done
    rm -f "$BOOTBRIDGE_AGENT_MARKER"
    return
  fi
  if ! { bootbridge_manifests_are_current && bootbridge_has_egress_argument; }; then
    bootbridge_stage_start "$BOOTBRIDGE_AGENT_STAGE"
    bootbridge_ensure_manifests || return
    bootbridge_ensure_egress_argument || return
    bootbridge_log "agents will dial $(bootbridge_server_hosts)"
    bootbridge_stage_success
  fi
  bootbridge_apply_in_background
}

bootbridge_ensure_manifests() {
  local image
  if bootbridge_manifests_are_current; then return 0; fi
  image=$(bootbridge_image) || return
  bootbridge_write_manifests "$image"
}

bootbridge_manifests_are_current() {
  local each
  for each in $BOOTBRIDGE_OBJECTS; do [[ -s $(bootbridge_manifest_of "$each") ]] || return; done
  bootbridge_image_is_known && bootbridge_marker_matches "$BOOTBRIDGE_AGENT_MARKER" "$(bootbridge_agent_digest "$(bootbridge_image)")"
}

bootbridge_agent_digest() {
  local each templates=()
  for each in $BOOTBRIDGE_OBJECTS; do templates+=("$(bootbridge_template_of "$each")"); done
  bootbridge_digest "$1" "${templates[@]}"
}

# bootbridge_template_of RESOURCE
bootbridge_template_of() {
  if [[ $1 == namespace ]]; then printf 'namespace.yaml'; else printf 'agent-%s.yaml' "$1"; fi
}

# bootbridge_manifest_of RESOURCE
bootbridge_manifest_of() {
  case $1 in
    namespace) printf '%s' "$BOOTBRIDGE_NAMESPACE_MANIFEST" ;;
    secret) printf '%s' "$BOOTBRIDGE_SECRET_MANIFEST" ;;
    role) printf '%s' "$BOOTBRIDGE_ROLE_MANIFEST" ;;
    role-binding) printf '%s' "$BOOTBRIDGE_ROLE_BINDING_MANIFEST" ;;
    daemonset) printf '%s' "$BOOTBRIDGE_DAEMONSET_MANIFEST" ;;
  esac
}

# bootbridge_write_manifests IMAGE
bootbridge_write_manifests() {
  local each mode program
  mkdir -p "$BOOTBRIDGE_CLUSTER_MANIFESTS" && chmod 0700 "$BOOTBRIDGE_CLUSTER_MANIFESTS" || return
  for each in $BOOTBRIDGE_OBJECTS; do
    mode=0644 program=
    case $each in
      secret) mode=0600 ;;
      daemonset) program=proxy-agent ;;
    esac
    bootbridge_render "$(bootbridge_template_of "$each")" "$1" "$mode" "$(bootbridge_manifest_of "$each")" "$program" || return
  done
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
