# --- what all the steps share
#
# Under bootkube.sh's `set -e` a failing step ends the script and systemd starts it again, so every
# step can be repeated. No step relies on `set -e` itself: bash turns it off inside conditions.

bootbridge_log() {
  printf 'bootbridge: %s\n' "$1"
}

bootbridge_warn() {
  printf 'bootbridge: warning: %s\n' "$1" >&2
}

# bootbridge_fail MESSAGE FIX: tell what is wrong and how to mend it.
bootbridge_fail() {
  printf 'bootbridge: %s (%s)\n' "$1" "$2" >&2
  return 1
}

bootbridge_require() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null || bootbridge_fail "the program $tool is not here" "install it on the node" || return
  done
}

# Stages are recorded where bootkube.sh's library is loaded; run by hand there is no record.
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

# bootbridge_put MODE PATH: the file is there whole or not at all. The temporary name begins with a
# dot, which the kubelet skips, and lies beside the target, so that it gets the label of that place.
bootbridge_put() {
  local mode=$1 path=$2 temporary
  temporary=$(mktemp "${path%/*}/.bootbridge.XXXXXXXX") \
    || bootbridge_fail "cannot write into ${path%/*}" "check that it exists, is writable and has space" || return
  if cat >"$temporary" && chmod "$mode" "$temporary" && mv -f "$temporary" "$path"; then return 0; fi
  rm -f "$temporary"
  bootbridge_fail "cannot write $path" "check that the directory is writable and has space"
}

# What an interrupted bootbridge_put or certificate run left behind.
bootbridge_sweep() {
  rm -f "${BOOTBRIDGE_SERVER_POD%/*}"/.bootbridge.???????? "$BOOTBRIDGE_CLUSTER_MANIFESTS"/.bootbridge.???????? \
    "${BOOTBRIDGE_EGRESS_CONFIG%/*}"/.bootbridge.???????? "$BOOTBRIDGE_STATE"/.bootbridge.????????
  rm -rf /run/bootbridge.????????
}

# The image of server and agents: the plan's, else the release payload's, asked for once.
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
    || bootbridge_fail "the release payload holds no $BOOTBRIDGE_PAYLOAD_IMAGE_NAME" \
      "it does from 4.11 on; else inject the tunnel with --image=REFERENCE" || return
  printf '%s' "$image" | bootbridge_put 0644 "$cached" || return
  printf '%s' "$image"
}

bootbridge_image_is_known() {
  [[ -n $BOOTBRIDGE_IMAGE || -s $BOOTBRIDGE_STATE/image ]]
}

# A placeholder and its value as a line for sed; the value goes in by the builtin printf alone, so
# that no key ever stands among a process's arguments.
bootbridge_substitution() {
  local value=${2//\\/\\\\}
  value=${value//|/\\|}
  value=${value//&/\\&}
  printf 's|%s|%s|g\n' "$1" "$value"
}

bootbridge_substitutions() {
  local hosts
  hosts=$(IFS=, && printf '%s' "${BOOTBRIDGE_ADDRESSES[*]}")
  # The original dials one address only.
  [[ $BOOTBRIDGE_IMAGE_KIND == bootbridge ]] || hosts=${BOOTBRIDGE_ADDRESSES[0]}
  bootbridge_substitution "$BOOTBRIDGE_MARK_IMAGE" "$1"
  bootbridge_substitution "$BOOTBRIDGE_MARK_SERVER_HOSTS" "$hosts"
  bootbridge_substitution "$BOOTBRIDGE_MARK_CA_CERT" "$(base64 -w0 <"$BOOTBRIDGE_CA_CERT")"
  bootbridge_substitution "$BOOTBRIDGE_MARK_AGENT_CERT" "$(base64 -w0 <"$BOOTBRIDGE_AGENT_CERT")"
  bootbridge_substitution "$BOOTBRIDGE_MARK_AGENT_KEY" "$(base64 -w0 <"$BOOTBRIDGE_AGENT_KEY")"
}

# bootbridge_render TEMPLATE IMAGE MODE TARGET
bootbridge_render() {
  local template=$BOOTBRIDGE_TEMPLATES/$1 text
  [[ -r $template ]] || bootbridge_fail "the template $template is missing" "inject the tunnel again" || return
  text=$(bootbridge_substitutions "$2" | sed -f /dev/stdin "$template") \
    || bootbridge_fail "cannot fill in $template" "the lines above say why" || return
  [[ $text != *@BOOTBRIDGE_* ]] \
    || bootbridge_fail "$template has a placeholder that nobody fills in" "inject the tunnel again" || return
  printf '%s\n' "$text" | bootbridge_put "$3" "$4"
}

# bootbridge_digest IMAGE TEMPLATE...: what a rendered manifest is made of; the key goes with its certificate.
bootbridge_digest() {
  local image=$1
  shift
  {
    printf '%s\n' "$image" "$BOOTBRIDGE_IMAGE_KIND" "${BOOTBRIDGE_ADDRESSES[@]}"
    cat "$BOOTBRIDGE_CA_CERT" "$BOOTBRIDGE_AGENT_CERT" "${@/#/$BOOTBRIDGE_TEMPLATES/}"
  } | sha256sum
}

# bootbridge_is_marked MARKER DIGEST
bootbridge_is_marked() {
  [[ -s $1 && $(<"$1") == "$2" ]]
}
