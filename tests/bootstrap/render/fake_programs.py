"""Fakes podman, oc and the installer's shell libraries on a simulated bootstrap node.

The fakes record their calls and keep their state in files below /cluster, which tests read and write.
"""

from __future__ import annotations

PAYLOAD_IMAGE = "registry.example/payload/apiserver-network-proxy@sha256:0123"

# Prints an image for `image NAME`, as a release image does. Runs openssl if it is the entrypoint.
PODMAN = """#!/usr/bin/bash
printf '%s\\n' "$*" >>/cluster/podman.calls
words=("$@")
for at in "${!words[@]}"; do
  case ${words[at]} in
    --entrypoint=openssl)
      [[ -e /cluster/payload-has-openssl ]] || exit 127
      exec /usr/bin/openssl "${words[@]:at+2}" ;;
    image)
      [[ ! -e /cluster/payload-is-old ]] || { echo 'no such image' >&2; exit 1; }
      echo "registry.example/payload/${words[at+1]}@sha256:0123"; exit ;;
  esac
done
exit 125
"""

# Keeps a cluster in a directory: /cluster/KIND/NAME contains an object's manifest.
OC = r"""#!/usr/bin/bash
printf '%s\n' "$*" >>/cluster/oc.calls
[[ ! -e /cluster/hangs ]] || exec sleep 600
[[ ! -e /cluster/down ]] || { echo 'connection refused' >&2; exit 1; }
verb='' kind='' output='' files=() only=''
for word in "$@"; do
  case $word in
    --output=*) output=${word#*=} ;;
    --filename=*) files+=("${word#*=}") ;;
    --field-selector=metadata.name=*) only=${word##*=} ;;
    --*) ;;
    *) if [[ -z $verb ]]; then verb=$word; else kind=$word; fi ;;
  esac
done
each() {
  for object in /cluster/"$kind"/*; do
    [[ -e $object && $object != *.deleted ]] || continue
    [[ -z $only || ${object##*/} == "$only" ]] || continue
    [[ $(<"$object") == *openshift.io/bootstrap-only:\ [\'\"]true* ]] || continue
    "$@" "$object"
  done
}
show() {
  case $output in
    name) echo "$kind/${1##*/}" ;;
    jsonpath=*deletionTimestamp*) [[ ! -e $1.deleted ]] || echo 2026-01-01T00:00:00Z ;;
  esac
}
remove() {
  if [[ -e /cluster/finalises-for-ever && $kind == namespace ]]; then : >"$1.deleted"; else rm -f "$1"; fi
}
case $verb in
  get) each show ;;
  delete) [[ ! -e /cluster/forbids ]] || { echo forbidden >&2; exit 1; }; each remove ;;
  replace)
    for file in "${files[@]}"; do
      kind=$(sed -n 's/^kind: //p' "$file"); name=$(sed -n '/^  name: /{s///p;q}' "$file")
      [[ -e /cluster/${kind,,}/$name ]] || { echo NotFound >&2; exit 1; }
      cp "$file" "/cluster/${kind,,}/$name"
    done ;;
  *) exit 64 ;;
esac
"""

# The functions of the installer's service-record library that stages use. Writes one line per entry.
RECORDS = """
record() { printf '%s\\n' "$1 ${STAGE_NAME-}" >>/cluster/records; }
record_service_stage_start() {
  [[ -z ${STAGE_NAME-} ]] || { echo 'a stage is open'; exit 1; }
  STAGE_NAME=$1; record start
}
record_service_stage_end() {
  [[ -n ${STAGE_NAME-} ]] || { echo 'no stage is open'; exit 1; }
  record "$1"; STAGE_NAME=""
}
record_service_stage_success() { record_service_stage_end success; }
record_service_stage_failure() { record_service_stage_end failure; }
record_service_exit() {
  if [[ -n ${STAGE_NAME-} ]]; then
    if [[ $1 == 0 ]]; then record_service_stage_end success; else record_service_stage_end failure; fi
  fi
}
trap 'record_service_exit $?' EXIT
"""

RELEASE_IMAGE = """
image_for() { podman run --quiet --rm --net=none registry.example/release image "$1"; }
"""
