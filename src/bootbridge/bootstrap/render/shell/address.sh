# --- addresses

# Prints the addresses given by the plan or by the installer's variable.
bootbridge_given_addresses() {
  local given=$BOOTBRIDGE_NODE_IPS
  [[ -n $given ]] || given=${OPENSHIFT_INSTALL_BOOTSTRAP_NODE_IP-}
  printf '%s' "${given//[\[\],]/ }"
}

bootbridge_route() {
  ip -j "-$1" route get "$2" 2>/dev/null || printf '[]'
}

# Sets BOOTBRIDGE_ADDRESSES, with the primary one first.
bootbridge_find_addresses() {
  local given links='[]' routes='{}' decision
  bootbridge_require jq || return
  given=$(bootbridge_given_addresses)
  if command -v ip >/dev/null; then
    links=$(ip -j addr show) || links='[]'
    routes="{\"4\":$(bootbridge_route 4 "$BOOTBRIDGE_OUTSIDE_4"),\"6\":$(bootbridge_route 6 "$BOOTBRIDGE_OUTSIDE_6")}"
  elif [[ -z $given ]]; then
    bootbridge_fail "command not found: ip" "$BOOTBRIDGE_NODE_IP_HINT" || return
  fi
  decision=$(jq --raw-output --null-input --argjson links "$links" --argjson routes "$routes" --arg given "$given" \
    --argjson networks "$BOOTBRIDGE_MACHINE_NETWORKS" --argjson families "$BOOTBRIDGE_FAMILIES" "$BOOTBRIDGE_ADDRESS_RULES") \
    || bootbridge_fail "invalid output of ip -j" "$BOOTBRIDGE_NODE_IP_HINT" || return
  bootbridge_read_decision <<<"$decision"
}

# Reads lines of the form "address|warning|error TEXT" from stdin.
bootbridge_read_decision() {
  local word value
  BOOTBRIDGE_ADDRESSES=()
  while read -r word value; do
    case $word in
      address) BOOTBRIDGE_ADDRESSES+=("$value") ;;
      warning) bootbridge_warn "$value" ;;
      error) bootbridge_fail "$value" "$BOOTBRIDGE_NODE_IP_HINT" || return ;;
    esac
  done
}
