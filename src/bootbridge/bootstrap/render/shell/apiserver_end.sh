# --- stage after cluster-bootstrap: waits until the kube-apiserver of this node has ended
#
# cluster-bootstrap returns when it has deleted the kube-apiserver's static pod manifest. The kube-apiserver then
# serves until its shutdown delay is over (70 s; 71 to 79 s were measured with 4.20), and its webhooks and aggregated
# APIs still need the tunnel. The kubelet sees the deletion within 20 s and kills the pod 135 s later, so the wait
# ends well before its limit unless the kubelet is stuck.

# Returns 1 if the kube-apiserver still runs at the limit.
bootbridge_wait_for_apiserver_end() {
  local started now
  started=$(bootbridge_now)
  now=$started
  while bootbridge_apiserver_runs; do
    if ((now == started)); then bootbridge_log "waiting up to ${BOOTBRIDGE_APISERVER_END_SECONDS}s for the kube-apiserver of this node to end"; fi
    if ((now - started >= BOOTBRIDGE_APISERVER_END_SECONDS)); then
      bootbridge_warn "kube-apiserver of this node: still running, bound reached after $((now - started))s"
      return 1
    fi
    sleep 1
    now=$(bootbridge_now)
  done
  bootbridge_log "kube-apiserver of this node: ended after $((now - started))s"
}

# It closes its port before it has answered its last requests, so its process must be gone too. The container
# runtime is not asked: it may hang, and reports a container's end later than the process table.
bootbridge_apiserver_runs() {
  bootbridge_is_listening "$BOOTBRIDGE_APISERVER_PORT" || bootbridge_apiserver_process_runs
}

# In every release since 4.6 the bootstrap kube-apiserver has this argument, and no other process has it.
bootbridge_apiserver_process_runs() {
  local file words
  for file in /proc/[0-9]*/cmdline; do
    words=()
    { mapfile -d '' -t words <"$file"; } 2>/dev/null
    if [[ " ${words[*]} " == *" --openshift-config=$BOOTBRIDGE_APISERVER_CONFIG_SEEN "* ]]; then return 0; fi
  done
  return 1
}
