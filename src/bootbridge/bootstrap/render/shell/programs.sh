# --- the image's programs: which flags they know
#
# Programs of older releases lack flags of newer ones and end at an unknown flag. So the image itself is asked.

# bootbridge_ensure_program_flags IMAGE: writes the optional flags that its programs do not know, as lines
# "PROGRAM FLAG" after a line with the image. Fails if a program cannot be run or lacks a required flag.
bootbridge_ensure_program_flags() {
  local image=$1 unknown=
  if bootbridge_program_flags_are_known "$image"; then return 0; fi
  unknown+=$(bootbridge_unknown_flags "$image" proxy-server server-pod.yaml) || return
  unknown+=$'\n'$(bootbridge_unknown_flags "$image" proxy-agent agent-daemonset.yaml) || return
  printf '%s\n' "$image" "$unknown" | bootbridge_write_file 0644 "$BOOTBRIDGE_PROGRAM_FLAGS"
}

# bootbridge_program_flags_are_known IMAGE
bootbridge_program_flags_are_known() {
  local asked=
  [[ -s $BOOTBRIDGE_PROGRAM_FLAGS ]] && read -r asked <"$BOOTBRIDGE_PROGRAM_FLAGS" && [[ $asked == "$1" ]]
}

# bootbridge_unknown_flags IMAGE PROGRAM TEMPLATE: prints a line "PROGRAM FLAG" for each optional flag of the
# template that the program does not know.
bootbridge_unknown_flags() {
  local image=$1 program=$2 template=$BOOTBRIDGE_TEMPLATES/$3 help known flag missing=
  # The first call pulls the image, which the kubelet needs anyway.
  help=$(timeout "$BOOTBRIDGE_HELP_SECONDS" podman run --quiet --rm --net=none --entrypoint="/usr/bin/$program" \
    "$image" --help 2>&1 </dev/null) \
    || bootbridge_fail "image $image: \`$program --help\` failed: $(bootbridge_last_line "$help")" \
      "check that this node can pull and run the image" || return
  known=$(sed -n 's/^[[:space:]]*\(-[[:alpha:]], \)\{0,1\}--\([[:alnum:]-]*\).*/\2/p' <<<"$help")
  known=" ${known//$'\n'/ } "
  while IFS= read -r flag; do
    if [[ $known == *" $flag "* ]]; then continue; fi
    if [[ " $BOOTBRIDGE_OPTIONAL_FLAGS " == *" $flag "* ]]; then printf '%s %s\n' "$program" "$flag"; else missing+=" --$flag"; fi
  done < <(sed -n 's/^[[:space:]]*- --\([[:alnum:]-]*\)=.*/\1/p' "$template")
  [[ -z $missing ]] || bootbridge_fail "image $image: $program does not know$missing" \
    "inject the tunnel with another image: --image=REFERENCE"
}

# bootbridge_lacks_flag PROGRAM FLAG: tests whether the image does not know it.
bootbridge_lacks_flag() {
  local program flag
  while read -r program flag; do
    if [[ $program == "$1" && $flag == "$2" ]]; then return 0; fi
  done < <(cat "$BOOTBRIDGE_PROGRAM_FLAGS" 2>/dev/null)
  return 1
}

# bootbridge_flag_removals PROGRAM: prints a sed command for each argument that the program does not know.
bootbridge_flag_removals() {
  local flag
  for flag in $BOOTBRIDGE_OPTIONAL_FLAGS; do
    if bootbridge_lacks_flag "$1" "$flag"; then printf '/^[[:space:]]*- --%s=/d\n' "$flag"; fi
  done
}

# Prints the last line that is not empty, at most 300 characters, without control characters.
bootbridge_last_line() {
  local line last=
  while IFS= read -r line; do
    if [[ $line == *[![:space:]]* ]]; then last=$line; fi
  done <<<"$1"
  last=${last//[^[:print:]]/?}
  printf '%s' "${last:0:300}"
}

# Prints the addresses that agents dial, as one argument. The Go agent dials only one address.
bootbridge_server_hosts() {
  local hosts=${BOOTBRIDGE_ADDRESSES[0]}
  if [[ $BOOTBRIDGE_IMAGE_KIND == bootbridge ]]; then
    hosts=$(IFS=, && printf '%s' "${BOOTBRIDGE_ADDRESSES[*]}")
  elif [[ $hosts == *:* ]] && bootbridge_lacks_flag proxy-agent "$BOOTBRIDGE_BRACKETS_FLAG"; then
    # Programs without this flag join host and port without brackets.
    hosts="[$hosts]"
  fi
  printf '%s' "$hosts"
}

# --- the health port of a server that cannot bind it to loopback

# Closes the port to other machines. A rule of nft is lost at a reboot, so every start of bootkube.sh sets it.
bootbridge_close_health_port() {
  if ! bootbridge_lacks_flag proxy-server "$BOOTBRIDGE_HEALTH_FLAG"; then return 0; fi
  if nft -f - <<NFT
table inet $BOOTBRIDGE_NFT_TABLE
delete table inet $BOOTBRIDGE_NFT_TABLE
table inet $BOOTBRIDGE_NFT_TABLE {
  chain input {
    type filter hook input priority -10; policy accept;
    iifname != "lo" tcp dport $BOOTBRIDGE_HEALTH_PORT drop
  }
}
NFT
  then
    bootbridge_log "the image does not know --$BOOTBRIDGE_HEALTH_FLAG: nft table inet $BOOTBRIDGE_NFT_TABLE closes port $BOOTBRIDGE_HEALTH_PORT"
  else
    bootbridge_note "port $BOOTBRIDGE_HEALTH_PORT (health and metrics of the server) is open to other machines: the image does not know --$BOOTBRIDGE_HEALTH_FLAG and nft failed"
  fi
}

bootbridge_remove_health_rule() {
  local name="nft table inet $BOOTBRIDGE_NFT_TABLE"
  command -v nft >/dev/null && nft list table inet "$BOOTBRIDGE_NFT_TABLE" >/dev/null 2>&1 || return 0
  bootbridge_record_event found firewall "$name"
  if [[ -n $keep_files ]]; then
    bootbridge_record_event remains firewall "$name" "$keep_files"
  elif nft delete table inet "$BOOTBRIDGE_NFT_TABLE"; then
    bootbridge_record_event removed firewall "$name"
  else
    bootbridge_record_event remains firewall "$name" "deletion failed"
  fi
}

# --- notes: what the receipt repeats as warnings

bootbridge_note() {
  local noted
  bootbridge_warn "$1"
  noted=$(cat "$BOOTBRIDGE_NOTES" 2>/dev/null) || true
  if [[ $'\n'$noted$'\n' != *$'\n'"$1"$'\n'* ]]; then printf '%s\n' "$1" >>"$BOOTBRIDGE_NOTES"; fi
}

bootbridge_record_notes() {
  local note
  while IFS= read -r note; do
    jq --compact-output --null-input --arg text "$note" '{list: "warnings", item: $text}' >>"$events"
  done < <(
    cat "$BOOTBRIDGE_NOTES" 2>/dev/null
    if [[ -e $BOOTBRIDGE_BYPASS ]]; then printf '%s\n' "$BOOTBRIDGE_BYPASS_NOTE"; fi
  )
}
