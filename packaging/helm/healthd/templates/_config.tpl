{{/*
The chart's settings in healthd's configuration, because a container is no host. Values under `config` win.
*/}}
{{- define "healthd.chartConfig" -}}
orchestrator:
  kind: kubernetes
  kubernetes: {namespace: {{ .Release.Namespace }}}
{{- with .Values.budget.scopes }}
budget:
  scope:
    {{- range $name, $numbers := . }}
    {{ $name }}: {max_out: {{ $numbers.limit }}}
    {{- end }}
{{- end }}
remediation:
  mode: {{ .Values.mode }}
  # On the host's disk, where an operator on the node can make it.
  opt_out_file: /var/lib/healthd/opt-out
  {{- if ne .Values.profile "full" }}
  # Neither the devices nor the processes that hold them are this container's.
  gpu_reset: false
  {{- end }}
{{- if ne .Values.profile "full" }}
sources:
  # No device is let through; for syslog(2) its one capability is enough.
  kmsg: syslog
{{- end }}
daemon:
  http: {{ include "healthd.listen" . | quote }}
{{- if .Values.controller.enabled }}
controller:
  {{- with (include "healthd.nodes" . | fromJson).selector }}
  # Counted are the nodes that agents run on.
  selector: {{ . | quote }}
  {{- end }}
  # The kubelet's probes come to the address of the pod.
  http: "[::]:{{ .Values.metrics.controllerPort }}"
ledger:
  # It lies in the controller's state, which goes with the pod unless that is on a volume of its own.
  enabled: {{ ne .Values.controller.stateClaim "" }}
{{- end }}
checks:
  # The root of a container is never writable. The state is on the host's own disk.
  host.filesystems: {writable: [/var/lib/healthd]}
  # A bind mount of a folder is not the root of its file system, which xfs_spaceman asks for.
  storage.xfs: {enabled: false}
  {{- if ne .Values.profile "full" }}
  # Its device files and its disks are not in this container.
  gpu.gdrcopy: {enabled: false}
  storage.nvme: {smart: false}
  ebs.allowances: {enabled: false}
  lustre.client: {imports: false}
  {{- if not (include "healthd.hostNetwork" .) }}
  # One hop more than the metadata service's answers go by default.
  cloud.events: {optional: true}
  {{- end }}
  {{- if not (include "healthd.hostPID" .) }}
  # Processes of the host are not to be seen: all that hold a GPU would look as if they had ended.
  gpu.processes: {enabled: false}
  host.processes: {enabled: false}
  {{- end }}
  {{- end }}
{{- end }}

{{/* The configuration as JSON: the chart's, with the value `config` over it. */}}
{{- define "healthd.config" -}}
{{- include "healthd.overlay" (list (include "healthd.chartConfig" . | fromYaml) .Values.config) -}}
{{- end }}

{{/* The whole of config.toml. Argument: list of the root context and a map that lies on top. */}}
{{- define "healthd.configToml" -}}
{{- $all := include "healthd.overlay" (list (include "healthd.config" (index . 0) | fromJson) (index . 1)) | fromJson -}}
{{- range $key, $value := $all }}
{{- include "healthd.tomlTable" (list $key $key $value) }}
{{- end }}
{{- end }}

{{/* base with over laid over it, key by key, as JSON, which holds every text: YAML does not read each that it writes. Sprig's merge functions cannot set anything to false or 0. */}}
{{- define "healthd.overlay" -}}
{{- $out := deepCopy (index . 0) -}}
{{- range $key, $value := index . 1 -}}
{{- $there := get $out $key -}}
{{- if and (kindIs "map" $value) (kindIs "map" $there) -}}
{{- $_ := set $out $key (include "healthd.overlay" (list $there $value) | fromJson) -}}
{{- else -}}
{{- $_ := set $out $key $value -}}
{{- end -}}
{{- end -}}
{{- toJson $out -}}
{{- end }}

{{/*
One table as TOML, and the tables below it. Arguments: the header, its path without `match.`, the table.
`toToml` would write every whole number as a float, which healthd refuses. A null is left out.
*/}}
{{- define "healthd.tomlTable" -}}
{{- $header := index . 0 -}}
{{- $path := index . 1 -}}
{{- $lists := list "policy.rule" "budget.scope" "controller.drain" "match" "checks.\"kernel.rules\".rules" "checks.\"plugin.run\".plugins" -}}
{{- if has $path $lists }}
{{- range $name, $row := index . 2 }}
{{- if not (kindIs "invalid" $row) }}
{{- if eq $path "match" }}
# {{ $name }}
[[match]]
{{- else }}
[[{{ $header }}]]
name = {{ $name | toRawJson }}
{{- end }}
{{ include "healthd.tomlRows" (list $header (ternary "" $path (eq $path "match")) $row) }}
{{- end }}
{{- end }}
{{- else if not (kindIs "invalid" (index . 2)) }}
{{- $rows := include "healthd.tomlRows" (list $header $path (index . 2)) }}
{{- if hasPrefix "[" (trim $rows) }}
{{- $rows }}
{{- else }}
[{{ $header }}]
{{ $rows }}
{{- end }}
{{- end }}
{{- end }}

{{/* The rows of a table, then its tables. */}}
{{- define "healthd.tomlRows" -}}
{{- $header := index . 0 -}}
{{- $path := index . 1 -}}
{{- range $key, $value := index . 2 }}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value)) }}
{{- include "healthd.tomlKey" $key }} = {{ include "healthd.tomlValue" $value }}
{{ end }}
{{- end }}
{{- range $key, $value := index . 2 }}
{{- if kindIs "map" $value }}
{{- $name := include "healthd.tomlKey" $key }}
{{- include "healthd.tomlTable" (list (printf "%s.%s" $header $name) (ternary $name (printf "%s.%s" $path $name) (eq $path "")) $value) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "healthd.tomlKey" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . }}{{ . }}{{ else }}{{ . | toRawJson }}{{ end }}
{{- end }}

{{- define "healthd.tomlValue" -}}
{{- if kindIs "slice" . -}}
[{{ range $index, $item := . }}{{ if $index }}, {{ end }}{{ include "healthd.tomlValue" $item }}{{ end }}]
{{- else if kindIs "map" . -}}
{ {{- range $index, $key := keys . | sortAlpha }}{{ if $index }},{{ end }} {{ include "healthd.tomlKey" $key }} = {{ include "healthd.tomlValue" (get $ $key) }}{{ end }} }
{{- else if and (kindIs "float64" .) (eq (floor .) .) -}}
{{ printf "%d" (int64 .) }}
{{- else -}}
{{ toRawJson . }}
{{- end -}}
{{- end }}
