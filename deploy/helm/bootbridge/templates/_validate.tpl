{{- /* Refuses invalid texts and values that do not fit together, each with a sentence. values.schema.json checks
       names, types and ranges only: for the rest its messages would quote the schema's rule, and not the fix. */}}
{{- define "bootbridge.validate" -}}
{{- $values := .Values -}}
{{- $kind := $values.kind -}}
{{- $method := $values.authentication.method -}}
{{- $ca := $values.servers.ca -}}
{{- $name := "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$" -}}
{{- $nameFix := "lower case letters, digits, '-' and '.'" -}}
{{- $count := "^([0-9]+%?)?$" -}}
{{- $countFix := "a number, or a percentage such as 10%" -}}
{{- $flags := list -}}
{{- range $values.extraArgs -}}{{- $flags = append $flags (list "extraArgs" . "^--[a-z][a-z0-9-]*=.*$" "write --flag=value, with two dashes") -}}{{- end -}}
{{- range $rule := concat $flags (list
  (list "image.repository" $values.image.repository "^[^\\s@]*$" "without tag and digest, which have values of their own")
  (list "image.tag" $values.image.tag "^[A-Za-z0-9_.-]*$" "letters, digits, '_', '.' and '-'")
  (list "image.digest" $values.image.digest "^(sha256:[0-9a-f]{64})?$" "sha256: and 64 hexadecimal digits")
  (list "image.command" $values.image.command "^(/\\S*)?$" "an absolute path")
  (list "servers.leases.namespace" $values.servers.leases.namespace $name $nameFix)
  (list "servers.ca.secret" $ca.secret $name $nameFix)
  (list "servers.ca.configMap" $ca.configMap $name $nameFix)
  (list "servers.ca.key" $ca.key "^[-._A-Za-z0-9]+$" "letters, digits, '-', '_' and '.'")
  (list "authentication.certificate.secret" $values.authentication.certificate.secret $name $nameFix)
  (list "authentication.token.audience" $values.authentication.token.audience "^\\S+$" "the servers' --authentication-audience")
  (list "advertise.extra" $values.advertise.extra "^([a-z0-9-]+=[^\\s&]*(&[a-z0-9-]+=[^\\s&]*)*)?$" "for example host=legacy&cidr=192.0.2.0/24")
  (list "rollout.maxSurge" (include "bootbridge.text" $values.rollout.maxSurge) $count $countFix)
  (list "rollout.maxUnavailable" (include "bootbridge.text" $values.rollout.maxUnavailable) $count $countFix)
  (list "podDisruptionBudget.minAvailable" (include "bootbridge.text" $values.podDisruptionBudget.minAvailable) $count $countFix)
  (list "podDisruptionBudget.maxUnavailable" (include "bootbridge.text" $values.podDisruptionBudget.maxUnavailable) $count $countFix)
  (list "health.bindAddress" $values.health.bindAddress "^[0-9A-Fa-f:.]*$" "an IP address without brackets")
  (list "metrics.serviceMonitor.interval" $values.metrics.serviceMonitor.interval "^[0-9]+(ms|s|m|h)$" "for example 15s")
  (list "kubeApiServer.host" $values.kubeApiServer.host "^[^\\s/]*$" "a host name or address, without https://")
  (list "serviceAccount.name" $values.serviceAccount.name $name $nameFix)
  (list "nameOverride" $values.nameOverride "^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$" "at most 63 lower case letters, digits and '-'")
) -}}
{{- if not (regexMatch (index $rule 2) (index $rule 1)) -}}
{{- fail (printf "%s: invalid value %q (%s)" (index $rule 0) (index $rule 1) (index $rule 3)) -}}
{{- end -}}
{{- end -}}

{{- if not $values.image.repository -}}
{{- fail "image.repository: required value missing (make an image with `bootbridge image build`, and push it to your registry)" -}}
{{- end -}}
{{- if not $values.servers.hosts -}}
{{- fail "servers.hosts: at least one host is required (the load balancer of the proxy-servers, or the address of each control plane)" -}}
{{- end -}}
{{- range $values.servers.hosts -}}
{{- if or (regexMatch "^[^:]*:[^:]*$" .) (contains "]:" .) -}}
{{- fail (printf "servers.hosts: %q contains a port (set servers.port)" .) -}}
{{- end -}}
{{- if regexMatch "[,\\s/]" . -}}
{{- fail (printf "servers.hosts: invalid host %q (one host name or address in each entry)" .) -}}
{{- end -}}
{{- end -}}
{{- range concat $values.destinations.allow $values.destinations.deny -}}
{{- if not (regexMatch "^\\[?[0-9A-Fa-f:.]+(/[0-9]+)?\\]?(:[0-9]+(-[0-9]+)?)?$" .) -}}
{{- fail (printf "destinations: invalid rule %q (a CIDR with optional ports, as 10.0.0.0/8:443 or [fd00::/8]:1-1024)" .) -}}
{{- end -}}
{{- end -}}

{{- if and (eq $method "certificate") (not $values.authentication.certificate.secret) -}}
{{- fail "authentication.certificate.secret: required with authentication.method=certificate (name a Secret with ca.crt, tls.crt and tls.key, or use authentication.method=token)" -}}
{{- end -}}
{{- if and (eq $method "token") $values.authentication.certificate.secret -}}
{{- fail "authentication.certificate.secret: not used with authentication.method=token (remove it, or use authentication.method=certificate)" -}}
{{- end -}}
{{- if and $ca.secret $ca.configMap -}}
{{- fail "servers.ca: secret and configMap are both set (keep one)" -}}
{{- end -}}
{{- if and (eq $method "token") (not (or $ca.secret $ca.configMap)) -}}
{{- fail "servers.ca: required with authentication.method=token (set servers.ca.secret or servers.ca.configMap; servers.ca.configMap=kube-root-ca.crt if the cluster's CA has signed the servers' certificate)" -}}
{{- end -}}
{{- if and $values.authentication.proveNode (eq $method "token") (eq $values.authentication.token.audience "system:konnectivity-server") -}}
{{- fail "authentication.proveNode: the token must be valid for the kube-apiserver (set authentication.token.audience, and --authentication-audience of the servers, to the kube-apiserver's --service-account-issuer)" -}}
{{- end -}}
{{- if and (not $values.serviceAccount.create) (not $values.serviceAccount.name) -}}
{{- fail "serviceAccount.name: required with serviceAccount.create=false" -}}
{{- end -}}
{{- if and $values.kubeApiServer.host (not (include "bootbridge.countsLeases" .)) -}}
{{- fail "kubeApiServer.host: used only to count leases (set servers.count=leases, or remove it)" -}}
{{- end -}}

{{- if not (include "bootbridge.isOurs" .) -}}
{{- $lacks := "the Go agent does not have this (use image.program=bootbridge, or %s)" -}}
{{- if gt (len $values.servers.hosts) 1 -}}
{{- fail (printf "servers.hosts: more than one host: %s" (printf $lacks "name a load balancer")) -}}
{{- end -}}
{{- if or $values.destinations.allow $values.destinations.deny -}}
{{- fail (printf "destinations: %s" (printf $lacks "remove them, and use a NetworkPolicy")) -}}
{{- end -}}
{{- if $values.authentication.proveNode -}}
{{- fail (printf "authentication.proveNode: %s" (printf $lacks "remove it")) -}}
{{- end -}}
{{- if ne $values.logFormat "text" -}}
{{- fail (printf "logFormat: %s" (printf $lacks "logFormat=text")) -}}
{{- end -}}
{{- end -}}

{{- if eq $kind "Deployment" -}}
{{- if gt (int $values.advertise.podPrefixLength) 0 -}}
{{- fail "advertise.podPrefixLength: only with kind=DaemonSet (an agent of a Deployment serves no certain node)" -}}
{{- end -}}
{{- if $values.authentication.proveNode -}}
{{- fail "authentication.proveNode: only with kind=DaemonSet (an agent of a Deployment serves no certain node)" -}}
{{- end -}}
{{- end -}}
{{- if and $values.hostNetwork (gt (int $values.advertise.podPrefixLength) 0) -}}
{{- fail "advertise.podPrefixLength: not with hostNetwork=true (the agent has no address of the pod network)" -}}
{{- end -}}
{{- if and (eq $values.advertise.ipFamily "ipv4") (gt (int $values.advertise.podPrefixLength) 32) -}}
{{- fail "advertise.podPrefixLength: at most 32 with advertise.ipFamily=ipv4" -}}
{{- end -}}
{{- if not (include "bootbridge.identifiers" .) -}}
{{- fail "advertise.defaultRoute: agents of a Deployment that advertise nothing get no dials (set it to true, or set advertise.extra)" -}}
{{- end -}}

{{- if eq (int $values.health.port) (int $values.admin.port) -}}
{{- fail (printf "admin.port: port %d is health.port too (choose another)" (int $values.admin.port)) -}}
{{- end -}}
{{- if and $values.hostNetwork $values.networkPolicy.enabled -}}
{{- fail "networkPolicy.enabled: no effect with hostNetwork=true (use the nodes' firewall)" -}}
{{- end -}}
{{- if and $values.hostNetwork $values.openshift -}}
{{- fail "hostNetwork: not with openshift=true (the SCC restricted-v2 allows no host network)" -}}
{{- end -}}
{{- if and $values.hostNetwork (or $values.metrics.service.enabled $values.metrics.serviceMonitor.enabled) (not $values.health.bindAddress) -}}
{{- fail "metrics: the health port is on loopback with hostNetwork=true (set health.bindAddress to an address that Prometheus reaches, for example 0.0.0.0)" -}}
{{- end -}}

{{- if and $values.metrics.serviceMonitor.enabled $values.networkPolicy.enabled (not $values.networkPolicy.metricsFrom) -}}
{{- fail "networkPolicy.metricsFrom: required with networkPolicy.enabled and metrics.serviceMonitor.enabled (name the pods of Prometheus: the policy allows no other connections)" -}}
{{- end -}}

{{- $surge := include "bootbridge.maxSurge" . -}}
{{- $unavailable := include "bootbridge.maxUnavailable" . -}}
{{- if and (has $surge (list "0" "0%")) (has $unavailable (list "0" "0%")) -}}
{{- fail "rollout: maxSurge and maxUnavailable are both 0, so that no update is possible (raise one of them)" -}}
{{- end -}}
{{- if and $values.hostNetwork (eq $kind "DaemonSet") (not (has $surge (list "0" "0%"))) -}}
{{- fail "rollout.maxSurge: not with hostNetwork=true (two agents on one node would use the same ports)" -}}
{{- end -}}
{{- if $values.podDisruptionBudget.enabled -}}
{{- $least := include "bootbridge.text" $values.podDisruptionBudget.minAvailable -}}
{{- $most := include "bootbridge.text" $values.podDisruptionBudget.maxUnavailable -}}
{{- if eq (empty $least) (empty $most) -}}
{{- fail "podDisruptionBudget: exactly one of minAvailable and maxUnavailable is required (set the other to \"\")" -}}
{{- end -}}
{{- if and (eq $kind "DaemonSet") (not (regexMatch "^[0-9]+$" $least)) -}}
{{- fail "podDisruptionBudget: only a number in minAvailable with kind=DaemonSet (Kubernetes computes nothing else for a DaemonSet)" -}}
{{- end -}}
{{- if and (eq $kind "Deployment") (regexMatch "^[0-9]+$" $least) (ge (int $least) (int $values.replicas)) -}}
{{- fail (printf "podDisruptionBudget.minAvailable: %s of %d replicas must remain, so that no node can be drained (raise replicas, or disable the budget)" $least (int $values.replicas)) -}}
{{- end -}}
{{- end -}}

{{- $own := list -}}
{{- range (splitList "\n" (include "bootbridge.args" .)) -}}
{{- $own = append $own (first (splitList "=" .)) -}}
{{- end -}}
{{- range $values.extraArgs -}}
{{- $flag := first (splitList "=" .) -}}
{{- if has $flag $own -}}
{{- fail (printf "extraArgs: %s is set by the chart (use the chart's value for it)" $flag) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "bootbridge.maxSurge" -}}
{{- $given := include "bootbridge.text" .Values.rollout.maxSurge -}}
{{- if $given -}}{{ $given }}
{{- else if eq .Values.kind "Deployment" -}}25%
{{- else -}}{{ ternary "0" "20%" .Values.hostNetwork }}
{{- end }}
{{- end }}

{{- define "bootbridge.maxUnavailable" -}}
{{- $given := include "bootbridge.text" .Values.rollout.maxUnavailable -}}
{{- if $given -}}{{ $given }}
{{- else -}}{{ ternary "10%" "0" (and .Values.hostNetwork (eq .Values.kind "DaemonSet")) }}
{{- end }}
{{- end }}
