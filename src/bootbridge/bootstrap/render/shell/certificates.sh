# --- certificates

# Runs the node's openssl, or one from the release payload in a container without network.
bootbridge_openssl() {
  if [[ -z $BOOTBRIDGE_OPENSSL_IMAGE ]]; then
    openssl "$@"
    return
  fi
  podman run --quiet --rm --interactive --net=none --security-opt=label=disable \
    --volume=/run:/run --volume="$BOOTBRIDGE_STATE:$BOOTBRIDGE_STATE" \
    --entrypoint=openssl "$BOOTBRIDGE_OPENSSL_IMAGE" "$@"
}

bootbridge_find_openssl() {
  local name image
  BOOTBRIDGE_OPENSSL_IMAGE=
  if command -v openssl >/dev/null; then return 0; fi
  for name in $BOOTBRIDGE_OPENSSL_PAYLOAD_IMAGES; do
    image=$(image_for "$name" 2>/dev/null) || continue
    BOOTBRIDGE_OPENSSL_IMAGE=$image
    if [[ -n $image ]] && bootbridge_openssl version >/dev/null 2>&1; then
      bootbridge_log "openssl not found on this node: using the one in $image"
      return 0
    fi
  done
  BOOTBRIDGE_OPENSSL_IMAGE=
  bootbridge_fail "command not found: openssl, neither on this node nor in the payload images $BOOTBRIDGE_OPENSSL_PAYLOAD_IMAGES" \
    "install openssl on the node"
}

# Prints why the certificates must be renewed, or nothing if they are valid.
bootbridge_renewal_reason() {
  local file
  for file in "$BOOTBRIDGE_CA_CERT" "$BOOTBRIDGE_SERVER_CERT" "$BOOTBRIDGE_SERVER_KEY" \
    "$BOOTBRIDGE_AGENT_CERT" "$BOOTBRIDGE_AGENT_KEY"; do
    if [[ ! -s $file || ! -r $file ]]; then
      printf 'certificates missing or unreadable'
      return
    fi
  done
  if ! { bootbridge_key_matches "$BOOTBRIDGE_SERVER_CERT" "$BOOTBRIDGE_SERVER_KEY" \
    && bootbridge_key_matches "$BOOTBRIDGE_AGENT_CERT" "$BOOTBRIDGE_AGENT_KEY"; }; then
    printf 'certificate and key do not match'
    return
  fi
  for file in "$BOOTBRIDGE_CA_CERT" "$BOOTBRIDGE_SERVER_CERT" "$BOOTBRIDGE_AGENT_CERT"; do
    bootbridge_is_key_kind "$file" || { printf 'key type is not %s' "$BOOTBRIDGE_KEY_KIND" && return; }
    bootbridge_openssl x509 -noout -checkend "$((BOOTBRIDGE_VALIDITY_SECONDS / BOOTBRIDGE_RENEWAL_FRACTION))" -in "$file" \
      >/dev/null 2>&1 || { printf 'certificates expired or expire soon' && return; }
  done
  bootbridge_has_addresses || { printf "node addresses changed" && return; }
  bootbridge_verify sslserver "$BOOTBRIDGE_SERVER_CERT" && bootbridge_verify sslclient "$BOOTBRIDGE_AGENT_CERT" \
    || printf 'certificates are not signed by this CA, or not valid yet'
}

bootbridge_key_matches() {
  local of_cert of_key
  of_cert=$(bootbridge_openssl x509 -noout -pubkey -in "$1" 2>/dev/null) || return
  of_key=$(bootbridge_openssl pkey -pubout -in "$2" 2>/dev/null) || return
  [[ $of_cert == "$of_key" ]]
}

bootbridge_is_key_kind() {
  local text
  text=$(bootbridge_openssl x509 -noout -text -in "$1" 2>/dev/null) || return
  case $BOOTBRIDGE_KEY_KIND in
    rsa-2048) [[ $text == *rsaEncryption*"Public-Key: (2048 bit)"* ]] ;;
    ecdsa-p256) [[ $text == *id-ecPublicKey*"ASN1 OID: prime256v1"* ]] ;;
  esac
}

bootbridge_verify() {
  local purpose=$1 leaf=$2
  shift 2
  bootbridge_openssl verify -purpose "$purpose" "$@" -CAfile "$BOOTBRIDGE_CA_CERT" "$leaf" >/dev/null 2>&1
}

# Tests that the certificate has exactly these addresses: the same number, and each of them.
bootbridge_has_addresses() {
  local names without address mark='IP Address:'
  names=$(bootbridge_openssl x509 -noout -ext subjectAltName -in "$BOOTBRIDGE_SERVER_CERT" 2>/dev/null) || return
  without=${names//$mark/}
  (((${#names} - ${#without}) / ${#mark} == ${#BOOTBRIDGE_ADDRESSES[@]})) || return
  for address in "${BOOTBRIDGE_ADDRESSES[@]}"; do
    [[ $(bootbridge_openssl x509 -noout -checkip "$address" -in "$BOOTBRIDGE_SERVER_CERT" 2>/dev/null) == *"does match"* ]] \
      || return
  done
}

# The CA key is kept in memory (/run), in a directory that only root can read, and is never copied.
# The subshell's trap deletes it in every case.
bootbridge_make_certificates() {
  local work
  work=$(mktemp -d /run/bootbridge.XXXXXXXX) \
    || bootbridge_fail "cannot create a directory below /run" "check that it is writable" || return
  (
    trap - ERR
    trap 'rm -rf -- "$work"' EXIT
    trap 'exit 143' HUP INT TERM
    umask 077
    bootbridge_sign_all >"$work/log" 2>&1 || bootbridge_show_log "$work/log" || exit
    bootbridge_install_certificates
  )
}

bootbridge_show_log() {
  cat "$1" >&2
  bootbridge_fail "openssl failed to create the certificates" "see its output above"
}

bootbridge_install_certificates() {
  mkdir -p "$BOOTBRIDGE_TLS" || return
  bootbridge_write_file 0644 "$BOOTBRIDGE_CA_CERT" <"$work/ca.crt" || return
  bootbridge_write_file 0600 "$BOOTBRIDGE_SERVER_KEY" <"$work/server.key" || return
  bootbridge_write_file 0644 "$BOOTBRIDGE_SERVER_CERT" <"$work/server.crt" || return
  bootbridge_write_file 0600 "$BOOTBRIDGE_AGENT_KEY" <"$work/agent.key" || return
  bootbridge_write_file 0644 "$BOOTBRIDGE_AGENT_CERT" <"$work/agent.crt"
}

bootbridge_sign_all() {
  local now starts ends
  now=$(date +%s)
  # Valid from 5 minutes ago, because the clocks of two machines differ.
  starts=$(date -u -d "@$((now - 300))" +%Y%m%d%H%M%SZ) || return
  ends=$(date -u -d "@$((now + BOOTBRIDGE_VALIDITY_SECONDS))" +%Y%m%d%H%M%SZ) || return
  bootbridge_openssl_config >"$work/config" && : >"$work/index.txt" || return
  bootbridge_sign ca "$BOOTBRIDGE_CA_NAME" -selfsign || return
  bootbridge_sign server "$BOOTBRIDGE_SERVER_NAME" -cert "$work/ca.crt" || return
  bootbridge_sign agent "$BOOTBRIDGE_AGENT_NAME" -cert "$work/ca.crt" || return
  rm -f "$work/ca.key"
}

# bootbridge_sign NAME COMMON_NAME ISSUER...: uses `openssl ca`, the only command with a validity in hours.
bootbridge_sign() {
  local name=$1 subject=$2
  shift 2
  case $BOOTBRIDGE_KEY_KIND in
    rsa-2048) bootbridge_openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out "$work/$name.key" ;;
    ecdsa-p256) bootbridge_openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 \
      -pkeyopt ec_param_enc:named_curve -out "$work/$name.key" ;;
  esac || return
  bootbridge_openssl req -new -sha256 -config "$work/config" -key "$work/$name.key" -subj "/CN=$subject" \
    -out "$work/$name.csr" || return
  bootbridge_openssl ca -batch -notext -config "$work/config" -extensions "${name}_extensions" -keyfile "$work/ca.key" "$@" \
    -startdate "$starts" -enddate "$ends" -in "$work/$name.csr" -out "$work/$name.crt"
}

bootbridge_openssl_config() {
  local usage=digitalSignature names
  # TLS 1.2 key exchange with RSA needs keyEncipherment.
  [[ $BOOTBRIDGE_KEY_KIND != rsa-2048 ]] || usage=digitalSignature,keyEncipherment
  names=$(printf ',IP:%s' "${BOOTBRIDGE_ADDRESSES[@]}")
  cat <<CONFIG
[req]
distinguished_name = name
[name]
[ca]
default_ca = authority
[authority]
database = $work/index.txt
new_certs_dir = $work
rand_serial = yes
unique_subject = no
default_md = sha256
policy = policy
[policy]
commonName = supplied
[ca_extensions]
basicConstraints = critical,CA:TRUE,pathlen:0
keyUsage = critical,digitalSignature,keyCertSign,cRLSign
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid:always
[server_extensions]
basicConstraints = critical,CA:FALSE
keyUsage = critical,$usage
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid:always
subjectAltName = ${names#,}
[agent_extensions]
basicConstraints = critical,CA:FALSE
keyUsage = critical,$usage
extendedKeyUsage = clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid:always
CONFIG
}
