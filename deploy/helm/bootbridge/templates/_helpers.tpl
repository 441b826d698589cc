{{- define "bootbridge.name" -}}
{{ .Values.nameOverride | default (printf "%s-agent" .Release.Name) | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "bootbridge.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "bootbridge.name" .) }}
{{- end }}

{{- /* A value that may be a number, a text or absent, as text. */}}
{{- define "bootbridge.text" -}}
{{- if not (kindIs "invalid" .) }}{{ . }}{{ end }}
{{- end }}

{{- define "bootbridge.selectorLabels" -}}
app.kubernetes.io/name: bootbridge-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "bootbridge.labels" -}}
{{ include "bootbridge.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "bootbridge.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- /* "true" for our agent; empty for the Go agent, which lacks some flags. */}}
{{- define "bootbridge.isOurs" -}}
{{- if eq .Values.image.program "bootbridge" }}true{{ end }}
{{- end }}

{{- define "bootbridge.countsLeases" -}}
{{- if eq .Values.servers.count "leases" }}true{{ end }}
{{- end }}

{{- define "bootbridge.command" -}}
{{ .Values.image.command | default (ternary "/usr/bin/proxy-agent" "/proxy-agent" (eq .Values.image.program "bootbridge")) }}
{{- end }}

{{- /* The address of the health port; empty means all. In the host network the port must not be public. */}}
{{- define "bootbridge.healthAddress" -}}
{{ .Values.health.bindAddress | default (ternary "127.0.0.1" "" .Values.hostNetwork) }}
{{- end }}

{{- define "bootbridge.probe" -}}
{{- $address := include "bootbridge.healthAddress" . -}}
port: health
scheme: HTTP
{{- if and $address (not (has $address (list "0.0.0.0" "::"))) }}
host: {{ $address | quote }}
{{- end }}
{{- end }}

{{- /* The destinations that an agent serves. The agent of a Deployment serves no certain node. */}}
{{- define "bootbridge.identifiers" -}}
{{- $found := list -}}
{{- if eq .Values.kind "DaemonSet" -}}
{{- $found = append $found "host=$(NODE_NAME)" -}}
{{- $found = append $found (printf "%s=$(HOST_IP)" .Values.advertise.ipFamily) -}}
{{- if and (gt (int .Values.advertise.podPrefixLength) 0) (not .Values.hostNetwork) -}}
{{- $found = append $found (printf "cidr=$(POD_IP)/%d" (int .Values.advertise.podPrefixLength)) -}}
{{- end -}}
{{- end -}}
{{- if .Values.advertise.defaultRoute -}}{{- $found = append $found "default-route=true" -}}{{- end -}}
{{- if .Values.advertise.extra -}}{{- $found = append $found .Values.advertise.extra -}}{{- end -}}
{{- join "&" $found -}}
{{- end }}

{{- /* The flags that the chart decides, one on a line. The agent's ID is its pod's name: during an update two agents run on a
       node, and a Go server confuses the connections of two agents with one ID. */}}
{{- define "bootbridge.args" -}}
--logtostderr=true
--v={{ .Values.logVerbosity }}
--proxy-server-host={{ join "," .Values.servers.hosts }}
--proxy-server-port={{ .Values.servers.port }}
--ca-cert=/etc/bootbridge/ca/{{ .Values.servers.ca.key }}
{{- if eq .Values.authentication.method "certificate" }}
--agent-cert=/etc/bootbridge/certificate/tls.crt
--agent-key=/etc/bootbridge/certificate/tls.key
{{- end }}
{{- if include "bootbridge.tokenAudience" . }}
--service-account-token-path=/var/run/secrets/bootbridge/token
{{- end }}
--agent-id=$(POD_NAME)
--agent-identifiers={{ include "bootbridge.identifiers" . }}
--health-server-port={{ .Values.health.port }}
{{- with include "bootbridge.healthAddress" . }}
--health-server-host={{ . }}
{{- end }}
--admin-server-port={{ .Values.admin.port }}
--admin-bind-address=127.0.0.1
--keepalive-time=30s
--probe-interval=1s
--sync-interval=1s
--sync-interval-cap=10s
--sync-forever=true
{{- if include "bootbridge.countsLeases" . }}
--count-server-leases=true
--lease-namespace={{ .Values.servers.leases.namespace }}
{{ ternary "--lease-label-selector" "--lease-label" (eq .Values.image.program "bootbridge") }}={{ .Values.servers.leases.labelSelector }}
{{- end }}
{{- if include "bootbridge.isOurs" . }}
--log-format={{ .Values.logFormat }}
--drain-timeout={{ .Values.drainSeconds }}s
{{- with .Values.destinations.allow }}
--allow-destinations={{ join "," . }}
{{- end }}
{{- with .Values.destinations.deny }}
--deny-destinations={{ join "," . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The audience of the agents' token, or "kube-apiserver" for a token that only proves the node; empty: no token. */}}
{{- define "bootbridge.tokenAudience" -}}
{{- if eq .Values.authentication.method "token" -}}
{{ .Values.authentication.token.audience }}
{{- else if .Values.authentication.proveNode -}}
kube-apiserver
{{- end }}
{{- end }}
