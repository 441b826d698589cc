"""Fakes podman, oc and the installer's shell libraries on a simulated bootstrap node.

The fakes record their calls and keep their state in files below /cluster, which tests read and write.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

# Upstream's versions whose `--help` is in proxy_help. The payload's programs of 4.11 to 4.13 (and of 4.14
# before 2023-12-01) are like OLDEST, those of 4.23 and later like NEWEST.
OLDEST, NEWEST = "v0.0.30", "v0.36.0"
PAYLOAD_IMAGE = "registry.example/payload/apiserver-network-proxy@sha256:0123"


@cache
def help_text(program: str, version: str) -> str:
    """Returns what the program prints for `--help`, in a version of upstream's or in ours (`bootbridge`)."""
    if version != "bootbridge":
        return (Path(__file__).parent / "proxy_help" / f"{version}-{program}.txt").read_text()
    path = shutil.which(program, path=str(Path(sys.executable).parent))
    assert path, f"{program} is not installed"
    return subprocess.run([path, "--help"], capture_output=True, text=True, check=True).stdout


# Prints an image for `image NAME`, as a release image does (all releases), and for `PROGRAM --help` the
# program's flags on stdout with exit code 0, as cobra does (all releases). Runs openssl as an entrypoint.
# `podman run` ends with 125 if the image cannot be pulled or started (podman 4 and 5).
PODMAN = """#!/usr/bin/bash
printf '%s\\n' "$*" >>/cluster/podman.calls
words=("$@")
for at in "${!words[@]}"; do
  case ${words[at]} in
    --entrypoint=openssl)
      [[ -e /cluster/payload-has-openssl ]] || exit 127
      exec /usr/bin/openssl "${words[@]:at+2}" ;;
    --entrypoint=/usr/bin/proxy-*)
      if [[ -e /cluster/image-cannot-run ]]; then
        echo 'Error: initializing source: connection refused' >&2; exit 125
      fi
      [[ ! -e /cluster/help-hangs ]] || exec /usr/bin/sleep 600
      cat "/cluster/help/${words[at]##*/}"; exit ;;
    image)
      [[ ! -e /cluster/payload-is-old ]] || { echo 'no such image' >&2; exit 1; }
      echo "registry.example/payload/${words[at+1]}@sha256:0123"; exit ;;
  esac
done
exit 125
"""

# Keeps a cluster in a directory: /cluster/KIND/NAME contains an object's manifest. Messages and exit codes
# are those of oc 4.20 (kubectl 1.33), and the same since 4.6: "Error from server (Reason): …" for a refusal
# of the API server, a message without this prefix if there is no connection. Faults, as files:
#   /cluster/down           no connection
#   /cluster/down-until     no connection until this time of the node's clock
#   /cluster/hangs          no answer until the request's time limit, which passes on the node's clock
#   /cluster/flaky          every second call fails, as behind a load balancer with one dead API server
#   /cluster/refuses-KIND   objects of this kind are refused (admission, quota, a webhook)
#   /cluster/forbids        deletions are refused
OC = r"""#!/usr/bin/bash
read -r now _ </proc/uptime
now=${now%.*}
printf '%s\n' "$*" >>/cluster/oc.calls
if [[ " $* " == *' config view '* ]]; then
  # Reads a file only. The tests' kubeconfigs are JSON, which --output=json prints.
  for word in "$@"; do case $word in --kubeconfig=*) exec cat "${word#*=}" ;; esac; done
fi
printf '%s oc %s\n' "$now" "$*" >>/cluster/timeline
down() {
  echo 'The connection to the server api:6443 was refused - did you specify the right host or port?' >&2
  exit 1
}
if [[ -e /cluster/hangs ]]; then
  for word in "$@"; do case $word in --request-timeout=*) sleep "$(tr -d s <<<"${word#*=}")" ;; esac; done
  echo 'Unable to connect to the server: context deadline exceeded' >&2; exit 1
fi
[[ ! -e /cluster/down ]] || down
[[ ! -e /cluster/down-until ]] || ((now >= $(</cluster/down-until))) || down
if [[ -e /cluster/flaky ]]; then
  printf x >>/cluster/flaky
  (($(wc -c </cluster/flaky) % 2 == 0)) || down
fi
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
    jsonpath=*) echo "${1##*/} $([[ ! -e $1.deleted ]] || echo 2026-01-01T00:00:00Z)" ;;
  esac
}
remove() {
  show "$1"
  if [[ -e /cluster/finalises-for-ever && $kind == namespace ]]; then : >"$1.deleted"; return; fi
  rm -f "$1" "$1.deleted"
}
refuse() { echo "Error from server ($1): $2" >&2; exit 1; }
case $verb in
  get) each show ;;
  delete)
    [[ ! -e /cluster/forbids ]] || refuse Forbidden 'admission webhook "guard.example" denied the request'
    each remove ;;
  apply)
    for file in "${files[@]}"; do
      [[ -e $file ]] || { echo "error: the path \"$file\" does not exist" >&2; exit 1; }
      kind=$(sed -n 's/^kind: //p' "$file"); kind=${kind,,}; name=$(sed -n '/^  name: /{s///p;q}' "$file")
      namespace=$(sed -n '/^  namespace: /{s///p;q}' "$file")
      [[ -z $namespace || -e /cluster/namespace/$namespace ]] \
        || refuse NotFound "namespaces \"$namespace\" not found"
      [[ ! -e /cluster/refuses-$kind ]] || refuse Forbidden "$kind \"$name\" is forbidden: exceeded quota"
      mkdir -p "/cluster/$kind" /cluster/requests; cp "$file" "/cluster/requests/$kind"
      if [[ -e /cluster/slow-$kind ]]; then # the request takes ten seconds of the node's clock
        mkdir -p /cluster/followers; ends=$((now + 10))
        while read -r now _ </proc/uptime && now=${now%.*} && ((now < ends)); do
          echo "$now" >/cluster/followers/oc; /usr/bin/sleep 0.01
        done
      fi
      mv "/cluster/requests/$kind" "/cluster/$kind/$name"; echo "$kind/$name serverside-applied"
      /usr/bin/rm -f /cluster/followers/oc
    done ;;
  create) mkdir -p /cluster/event; cat >"/cluster/event/$now-$RANDOM" ;;
  *) exit 64 ;;
esac
"""

# Advances the node's clock instead of waiting. Then waits, in real time, until every program that follows
# this clock has acted on the new time (node_programs.py), so that no test depends on timing.
SLEEP = r"""#!/usr/bin/bash
seconds=${1%.*}
if [[ $1 == *.* ]]; then
  # A fraction of a second is for what happens in real time: except for a server that cannot answer.
  [[ -e /cluster/server-crashes || -e /cluster/server-silent || -e /cluster/server-socketless \
    || -e /cluster/server-lacks-flag || -e /cluster/kubelet-absent ]] || exec /usr/bin/sleep "$1"
  seconds=1
fi
read -r now _ </proc/uptime
now=$((${now%.*} + seconds))
echo "$now.00 0.00" 1<>/proc/uptime # without truncating it: others read it at any time
for follower in /cluster/followers/*; do
  left=500 # a program that was killed does not follow
  while [[ -e $follower ]] && seen=$(cat "$follower" 2>/dev/null) && ((${seen:-0} < now && left-- > 0)); do
    /usr/bin/sleep 0.01
  done
  ((left > 0)) || /usr/bin/rm -f "$follower"
done
[[ ! -e /cluster/at-$now ]] || . "/cluster/at-$now"
"""

# Programs on the node's clock end by themselves: a limit in real time would depend on the machine's load.
# With /cluster/stuck they do not: `timeout` (coreutils, all releases) ends them and returns 124.
TIMEOUT = """#!/usr/bin/bash
case $2 in
  oc | systemctl)
    if [[ -e /cluster/stuck ]]; then sleep "$1"; exit 124; fi
    shift
    exec "$@" ;;
esac
exec /usr/bin/timeout "$@"
"""

# Enables and starts units as systemd does (239, RHEL 8, and later): `enable` links the unit below the target
# of its [Install] section; `start --no-block` returns at once. A test runs started units itself. Real systemd
# runs the units in tests/systemd/test_bootstrap_units.py.
SYSTEMCTL = r"""#!/usr/bin/bash
printf '%s\n' "$*" >>/cluster/systemctl.calls
[[ ! -e /cluster/systemctl-fails ]] || exit 1
for unit in "$@"; do :; done
[[ -e /etc/systemd/system/$unit ]] || { echo "Unit $unit not found." >&2; exit 5; }
wants=/etc/systemd/system/$(sed -n '/^\[Install]/,$s/^WantedBy=//p' "/etc/systemd/system/$unit").wants
case $1 in
  enable) mkdir -p "$wants" && ln -sf "../$unit" "$wants/$unit" ;;
  disable) rm -f "$wants/$unit" ;;
  start) echo "$unit" >>/cluster/started-units ;;
esac
"""

# Writes the removal of the server's manifest to the timeline, with what the kube-apiserver does then.
RM = r"""#!/usr/bin/bash
case " $* " in *konnectivity-server-pod.yaml*)
  state=gone
  while read -r _ at _ code _; do
    [[ $at != *:192B || $code != 0A ]] || state=listens
  done < <(cat /proc/net/tcp /proc/net/tcp6)
  [[ ! -e /cluster/apiserver-process ]] || state=runs
  read -r now _ </proc/uptime
  echo "${now%.*} server-removed apiserver=$state" >>/cluster/timeline ;;
esac
exec /usr/bin/rm "$@"
"""

# The functions of bootstrap-service-record.sh that stages use, as of 4.8 to 5.0: a stage must be ended before
# the next starts, and the exit of the script ends an open one. Earlier releases have no such library. Writes
# one line per entry, not JSON.
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

# release-image.sh as of 4.2 and later: asks the release image, in a container.
RELEASE_IMAGE = """
image_for() { podman run --quiet --rm --net=none registry.example/release image "$1"; }
"""
