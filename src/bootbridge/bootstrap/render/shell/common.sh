# --- functions shared by all stages
#
# bootkube.sh runs with `set -e`: a failing stage ends the script and systemd restarts it, so every stage
# is idempotent. No function relies on `set -e`: bash disables it inside conditions.

bootbridge_log() {
  printf 'bootbridge: %s\n' "$1"
}

bootbridge_warn() {
  printf 'bootbridge: warning: %s\n' "$1" >&2
}

# bootbridge_fail PROBLEM FIX: prints both to stderr and returns 1.
bootbridge_fail() {
  printf 'bootbridge: %s (%s)\n' "$1" "$2" >&2
  return 1
}

bootbridge_require() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null || bootbridge_fail "command not found: $tool" "install it on the node" || return
  done
}

# Prints the seconds since boot. Waits are not measured with SECONDS, which follows the wall clock: that is set
# during a bootstrap.
bootbridge_now() {
  local up
  read -r up _ </proc/uptime
  printf '%s' "${up%.*}"
}

# bootbridge_is_listening PORT: tests whether a process listens on the port, from /proc.
bootbridge_is_listening() {
  local port at state
  printf -v port ':%04X' "$1"
  while read -r _ at _ state _; do
    if [[ $at == *"$port" && $state == 0A ]]; then return 0; fi
  done < <(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null)
  return 1
}

# bootbridge_one_line TEXT: prints the first line of a program's message, without control characters and bounded.
bootbridge_one_line() {
  local line=${1%%$'\n'*}
  line=${line:0:BOOTBRIDGE_REASON_CHARACTERS}
  printf '%s' "${line//[[:cntrl:]]/ }"
}

# cluster-bootstrap has returned: this node's kube-apiserver ends and does not start again, also after a reboot.
bootbridge_bootstrap_is_over() {
  [[ -e $BOOTBRIDGE_CLUSTER_BOOTSTRAP_MARKER ]]
}

# Records stages through bootkube.sh's service-record library. A manual run has no such library.
bootbridge_stage_start() {
  bootbridge_log "stage $1"
  if declare -F record_service_stage_start >/dev/null; then record_service_stage_start "$1"; fi
}

bootbridge_stage_success() {
  if declare -F record_service_stage_success >/dev/null; then record_service_stage_success; fi
}

bootbridge_stage_failure() {
  if declare -F record_service_stage_failure >/dev/null; then record_service_stage_failure; fi
}

# bootbridge_write_file MODE PATH: writes stdin atomically. The temporary file starts with a dot, so that the
# kubelet skips it, and is in the target's directory, so that it gets the right SELinux label.
bootbridge_write_file() {
  local mode=$1 path=$2 temporary
  temporary=$(mktemp "${path%/*}/.bootbridge.XXXXXXXX") \
    || bootbridge_fail "cannot write to ${path%/*}" "check that it exists, is writable and has free space" || return
  if cat >"$temporary" && chmod "$mode" "$temporary" && mv -f "$temporary" "$path"; then return 0; fi
  rm -f "$temporary"
  bootbridge_fail "cannot write $path" "check that the directory is writable and has free space"
}

# Removes what an interrupted bootbridge_write_file or bootbridge_make_certificates left behind.
bootbridge_remove_temporary_files() {
  rm -f "${BOOTBRIDGE_SERVER_POD%/*}"/.bootbridge.???????? "$BOOTBRIDGE_CLUSTER_MANIFESTS"/.bootbridge.???????? \
    "${BOOTBRIDGE_EGRESS_CONFIG%/*}"/.bootbridge.???????? "$BOOTBRIDGE_STATE"/.bootbridge.????????
  rm -rf /run/bootbridge.????????
}

# Prints the image of server and agents: the plan's, or the release payload's, which is cached.
bootbridge_image() {
  local cached=$BOOTBRIDGE_STATE/image image
  if [[ -n $BOOTBRIDGE_IMAGE ]]; then
    printf '%s' "$BOOTBRIDGE_IMAGE"
    return
  fi
  if [[ -s $cached ]]; then
    cat "$cached"
    return
  fi
  image=$(image_for "$BOOTBRIDGE_PAYLOAD_IMAGE_NAME") && [[ -n $image && $image != *[[:space:]]* ]] \
    || bootbridge_fail "image $BOOTBRIDGE_PAYLOAD_IMAGE_NAME not found in the release payload" \
      "releases before $BOOTBRIDGE_FIRST_RELEASE have none: inject the tunnel with --image=REFERENCE" || return
  printf '%s' "$image" | bootbridge_write_file 0644 "$cached" || return
  printf '%s' "$image"
}

bootbridge_image_is_known() {
  [[ -n $BOOTBRIDGE_IMAGE || -s $BOOTBRIDGE_STATE/image ]]
}

# bootbridge_substitution PLACEHOLDER VALUE: prints a sed command. The builtin printf writes the value, so that
# no private key appears in the arguments of a process.
bootbridge_substitution() {
  local value=${2//\\/\\\\}
  value=${value//|/\\|}
  value=${value//&/\\&}
  printf 's|%s|%s|g\n' "$1" "$value"
}

# bootbridge_substitutions IMAGE PROGRAM
bootbridge_substitutions() {
  bootbridge_flag_removals "$2"
  bootbridge_substitution "$BOOTBRIDGE_MARK_IMAGE" "$1"
  bootbridge_substitution "$BOOTBRIDGE_MARK_SERVER_HOSTS" "$(bootbridge_server_hosts)"
  bootbridge_substitution "$BOOTBRIDGE_MARK_CA_CERT" "$(base64 -w0 <"$BOOTBRIDGE_CA_CERT")"
  bootbridge_substitution "$BOOTBRIDGE_MARK_AGENT_CERT" "$(base64 -w0 <"$BOOTBRIDGE_AGENT_CERT")"
  bootbridge_substitution "$BOOTBRIDGE_MARK_AGENT_KEY" "$(base64 -w0 <"$BOOTBRIDGE_AGENT_KEY")"
}

# bootbridge_render TEMPLATE IMAGE MODE TARGET [PROGRAM]
bootbridge_render() {
  local template=$BOOTBRIDGE_TEMPLATES/$1 text
  [[ -r $template ]] || bootbridge_fail "template not found: $template" "inject the tunnel again" || return
  text=$(bootbridge_substitutions "$2" "${5-}" | sed -f /dev/stdin "$template") \
    || bootbridge_fail "cannot render $template" "see the lines above" || return
  [[ $text != *@BOOTBRIDGE_* ]] \
    || bootbridge_fail "unknown placeholder in $template" "inject the tunnel again" || return
  printf '%s\n' "$text" | bootbridge_write_file "$3" "$4"
}

# bootbridge_digest IMAGE TEMPLATE...: prints a digest of everything that a rendered manifest contains. The key
# is left out: it changes together with its certificate.
bootbridge_digest() {
  local image=$1
  shift
  {
    printf '%s\n' "$image" "$BOOTBRIDGE_IMAGE_KIND" "${BOOTBRIDGE_ADDRESSES[@]}"
    cat "$BOOTBRIDGE_PROGRAM_FLAGS" "$BOOTBRIDGE_CA_CERT" "$BOOTBRIDGE_AGENT_CERT" "${@/#/$BOOTBRIDGE_TEMPLATES/}"
  } | sha256sum
}

# bootbridge_marker_matches MARKER DIGEST
bootbridge_marker_matches() {
  [[ -s $1 && $(<"$1") == "$2" ]]
}
