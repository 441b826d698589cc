# --- addresses

# The addresses that the plan or the installer's own variable names.
bootbridge_said_addresses() {
  local said=$BOOTBRIDGE_NODE_IPS
  [[ -n $said ]] || said=${OPENSHIFT_INSTALL_BOOTSTRAP_NODE_IP-}
  printf '%s' "${said//[\[\],]/ }"
}

bootbridge_route() {
  ip -j "-$1" route get "$2" 2>/dev/null || printf '[]'
}

# Sets BOOTBRIDGE_ADDRESSES, the primary one first.
bootbridge_find_addresses() {
  local said links='[]' routes='{}' decision
  bootbridge_require jq || return
  said=$(bootbridge_said_addresses)
  if command -v ip >/dev/null; then
    links=$(ip -j addr show) || links='[]'
    routes="{\"4\":$(bootbridge_route 4 "$BOOTBRIDGE_OUTSIDE_4"),\"6\":$(bootbridge_route 6 "$BOOTBRIDGE_OUTSIDE_6")}"
  elif [[ -z $said ]]; then
    bootbridge_fail "the program ip is not here" "$BOOTBRIDGE_NODE_IP_HINT" || return
  fi
  decision=$(jq --raw-output --null-input --argjson links "$links" --argjson routes "$routes" --arg said "$said" \
    --argjson networks "$BOOTBRIDGE_MACHINE_NETWORKS" --argjson families "$BOOTBRIDGE_FAMILIES" "$BOOTBRIDGE_ADDRESS_RULES") \
    || bootbridge_fail "what ip -j printed cannot be read" "$BOOTBRIDGE_NODE_IP_HINT" || return
  bootbridge_take_decision <<<"$decision"
}

# Reads lines of a word and its value.
bootbridge_take_decision() {
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
