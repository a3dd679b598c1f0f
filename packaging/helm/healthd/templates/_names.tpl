{{/*
Names are fixed: the admission policies name the ServiceAccount, the agents the Leases, and one healthd in a cluster is
all that there can be.
*/}}
{{- define "healthd.labels" -}}
app.kubernetes.io/name: healthd
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "healthd.selector" -}}
app.kubernetes.io/name: healthd
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "healthd.image" -}}
{{- $image := .Values.image -}}
{{ $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* A map without its nulls, by which a later file of values takes away what an earlier one gave. */}}
{{- define "healthd.given" -}}
{{- $given := dict -}}
{{- range $key, $value := . }}{{ if not (kindIs "invalid" $value) }}{{ $_ := set $given $key $value }}{{ end }}{{ end -}}
{{- toJson $given -}}
{{- end }}

{{- define "healthd.pullSecrets" -}}
{{- with include "healthd.given" .Values.image.pullSecrets | fromJson }}
imagePullSecrets:
{{- range $name, $_ := . }}
  - name: {{ $name }}
{{- end }}
{{- end }}
{{- end }}

{{/* The files of `secrets` for agents and controllers: the mounts of a container, the volumes of its pod. */}}
{{- define "healthd.secretMounts" -}}
{{- range $name, $_ := include "healthd.given" .Values.secrets | fromJson }}
- {name: secret-{{ $name }}, mountPath: /etc/healthd-secrets/{{ $name }}, readOnly: true}
{{- end }}
{{- end }}
{{- define "healthd.secretVolumes" -}}
{{- range $name, $_ := include "healthd.given" .Values.secrets | fromJson }}
- {name: secret-{{ $name }}, secret: {secretName: {{ $name }}, defaultMode: 0440, optional: true}}
{{- end }}
{{- end }}

{{/* "true" or "": a value of null is the profile's. */}}
{{- define "healthd.hostNetwork" -}}
{{- if (ternary (eq .Values.profile "full") .Values.agent.hostNetwork (kindIs "invalid" .Values.agent.hostNetwork)) }}true{{ end }}
{{- end }}
{{- define "healthd.hostPID" -}}
{{- if (ternary (eq .Values.profile "full") .Values.agent.hostPID (kindIs "invalid" .Values.agent.hostPID)) }}true{{ end }}
{{- end }}

{{/*
Loopback of the host unless metrics are wanted; in a network of its own the kubelet's probe needs the pod's address, which
is one of IPv6 in some clusters: [::] is every address of either family.
*/}}
{{- define "healthd.listen" -}}
{{- $open := or .Values.metrics.enabled (not (include "healthd.hostNetwork" .)) -}}
{{ ternary "[::]" "127.0.0.1" $open }}:{{ .Values.metrics.port }}
{{- end }}

{{/* Annotations of what exists for `helm uninstall` alone. Argument: its weight, lower ones come first. */}}
{{- define "healthd.beforeDelete" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/*
The rest of a pod that runs one command of healthd and ends, with no right over its node. Arguments: the root context,
the words of the command. It may run where only healthd keeps others off, and needs no GPU.
*/}}
{{- define "healthd.onePod" -}}
{{- $ := index . 0 -}}
{{- include "healthd.pullSecrets" $ }}
priorityClassName: {{ $.Values.controller.priorityClassName }}
enableServiceLinks: false
nodeSelector: {kubernetes.io/os: linux}
tolerations:
  - {key: healthd.io/unhealthy, operator: Exists}
  - {key: healthd.io/claimed, operator: Exists}
  - {key: healthd.io/unverified, operator: Exists}
  - {key: healthd.io/domain-fence, operator: Exists}
  - {key: nvidia.com/gpu, operator: Exists}
  {{- with $.Values.controller.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
containers:
  - name: healthd
    image: {{ include "healthd.image" $ }}
    imagePullPolicy: {{ $.Values.image.pullPolicy }}
    args: [{{ index . 1 }}, {{ ternary "--yes" "--cluster" (eq (index . 1) "uninstall") }}]
    env:
      - name: HEALTHD_NODE_NAME
        valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
    resources:
      {{- toYaml $.Values.controller.resources | nindent 6 }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    volumeMounts:
      - {name: config, mountPath: /etc/healthd, readOnly: true}
      - {name: tmp, mountPath: /tmp}
volumes:
  - {name: config, configMap: {name: healthd}}
  - {name: tmp, emptyDir: {medium: Memory, sizeLimit: 32Mi}}
{{- end }}

{{/*
The requests to its platform that an agent may write: those of the provisioner that any part of the configuration names,
and those that `policies` adds or removes.
*/}}
{{- define "healthd.platformLabels" -}}
{{- $found := dict -}}
{{- range $row := include "healthd.configs" . | fromJsonArray -}}
{{- $hyperpod := ($row.provisioner | default dict).hyperpod | default dict -}}
{{- if eq (toString $hyperpod.how) "label" }}{{ $_ := set $found "sagemaker.amazonaws.com/node-health-status" true }}{{ end -}}
{{- end -}}
{{- range $key, $on := .Values.policies.platformLabels }}{{ $_ := set $found $key $on }}{{ end -}}
{{- toJson $found -}}
{{- end }}
{{- define "healthd.platformConditions" -}}
{{- $found := dict -}}
{{- range $row := include "healthd.configs" . | fromJsonArray -}}
{{- $provisioner := $row.provisioner | default dict -}}
{{- if eq (toString $provisioner.kind) "eks" }}{{ $_ := set $found "AcceleratedHardwareReady" true }}{{ end -}}
{{- end -}}
{{- range $key, $on := .Values.policies.platformConditions }}{{ $_ := set $found $key $on }}{{ end -}}
{{- toJson $found -}}
{{- end }}

{{/* The configuration and each row of its `match`, as a list. */}}
{{- define "healthd.configs" -}}
{{- $config := include "healthd.config" . | fromJson -}}
{{- $rows := list $config -}}
{{- range $_, $row := $config.match }}{{ if $row }}{{ $rows = append $rows $row }}{{ end }}{{ end -}}
{{- toJson $rows -}}
{{- end }}

{{/* The mode of the agents: their variable goes over all, and `config` over the value `mode`. A match may have another. */}}
{{- define "healthd.mode" -}}
{{- $set := ((include "healthd.config" . | fromJson).remediation | default dict).mode | default "observe" -}}
{{- (.Values.agent.env | default dict).HEALTHD_REMEDIATION_MODE | default $set -}}
{{- end }}

{{/* Not "" where healthd only observes, on each node. */}}
{{- define "healthd.observes" -}}
{{- $acts := ne "observe" (include "healthd.mode" .) -}}
{{- range $row := ternary list (include "healthd.configs" . | fromJsonArray) (hasKey (.Values.agent.env | default dict) "HEALTHD_REMEDIATION_MODE") -}}
{{- if ne "observe" (($row.remediation | default dict).mode | default "observe") }}{{ $acts = true }}{{ end -}}
{{- end -}}
{{- if not $acts }}true{{ end -}}
{{- end }}

{{/*
Not "" where [orchestrator.kubernetes] has this value on some nodes at least. Arguments: the root context, key, value.
*/}}
{{- define "healthd.onSomeNodes" -}}
{{- $key := index . 1 -}}
{{- $value := index . 2 -}}
{{- range $row := include "healthd.configs" (index . 0) | fromJsonArray -}}
{{- $section := ($row.orchestrator | default dict).kubernetes | default dict -}}
{{- if eq $value (toString (get $section $key)) }}{{ $value }}{{ end -}}
{{- end -}}
{{- end }}

{{/* The Leases of the budget, one line each: the scopes of `budget.scopes`, and those of any part of the configuration. */}}
{{- define "healthd.budgetLeases" -}}
{{- $scopes := deepCopy (.Values.budget.scopes | default dict) -}}
{{- $controllers := include "healthd.overlay" (list (include "healthd.config" . | fromJson) .Values.controller.config) | fromJson -}}
{{- range $row := append (include "healthd.configs" . | fromJsonArray) $controllers -}}
{{- range $name, $scope := ($row.budget | default dict).scope }}{{ if $scope }}{{ $_ := set $scopes $name $scope }}{{ end }}{{ end -}}
{{- end -}}
healthd-budget
{{- range $name, $_ := $scopes }}
healthd-budget-{{ $name }}
{{- end }}
{{- end }}

{{- define "healthd.quotedList" -}}
{{- range $index, $text := . }}{{ if $index }}, {{ end }}{{ $text | quote }}{{ end }}
{{- end }}

{{/*
The nodes that agents run on, as JSON: `selector` says them as a label selector, by which the controller counts; `problem`
is why none can.
*/}}
{{- define "healthd.nodes" -}}
{{- $parts := list -}}
{{- $problem := "" -}}
{{- range $key, $value := include "healthd.given" .Values.agent.nodeSelector | fromJson -}}
{{- $parts = append $parts (printf "%s=%s" $key $value) -}}
{{- end -}}
{{- $affinity := (.Values.agent.affinity | default dict).nodeAffinity | default dict -}}
{{- $terms := ($affinity.requiredDuringSchedulingIgnoredDuringExecution | default dict).nodeSelectorTerms | default list -}}
{{- if gt (len $terms) 1 }}{{ $problem = "it has several nodeSelectorTerms" }}{{ end -}}
{{- range $term := $terms -}}
{{- if $term.matchFields }}{{ $problem = "it has matchFields" }}{{ end -}}
{{- range $term.matchExpressions -}}
{{- $values := join "," .values -}}
{{- if eq .operator "In" }}{{ $parts = append $parts (printf "%s in (%s)" .key $values) }}
{{- else if eq .operator "NotIn" }}{{ $parts = append $parts (printf "%s notin (%s)" .key $values) }}
{{- else if eq .operator "Exists" }}{{ $parts = append $parts .key }}
{{- else if eq .operator "DoesNotExist" }}{{ $parts = append $parts (printf "!%s" .key) }}
{{- else }}{{ $problem = printf "it has the operator %s" .operator }}{{ end -}}
{{- end -}}
{{- end -}}
{{- dict "selector" (ternary (join "," $parts) "" (empty $problem)) "problem" $problem | toJson -}}
{{- end }}

{{/* Refuses invalid values before anything is installed. */}}
{{- define "healthd.refuse" -}}
{{- if semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version }}
{{- fail (printf "this is Kubernetes %s, and healthd needs 1.30 or newer: from there on the API server keeps each agent to its own node and the fleet to its budget, by admission policies, without which one agent's token could take every node out" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- $config := include "healthd.config" . | fromJson }}
{{- $all := include "healthd.overlay" (list $config .Values.controller.config) | fromJson }}
{{- range $name, $rule := ($all.controller | default dict).drain }}
{{- if and $rule (or (hasPrefix "evict" (toString $rule.mode)) $rule.after_s) }}
{{- if not $.Values.controller.enabled }}
{{- fail (printf "controller.drain.%s evicts, without controller.enabled: only healthd controller evicts pods" $name) }}
{{- end }}
{{- if not $.Values.controller.evict }}
{{- fail (printf "controller.drain.%s evicts, without controller.evict: the controller may not evict pods; set controller.evict: true, or mode: never" $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- $loopback := "^(127[.].*|localhost|\\[::1\\]):" }}
{{- range $row := include "healthd.configs" . | fromJsonArray }}
{{- $http := ($row.daemon | default dict).http }}
{{- if not (kindIs "invalid" $http) }}
{{- if or (not (hasSuffix (printf ":%d" (int64 $.Values.metrics.port)) $http)) (and (regexMatch $loopback $http) (not (include "healthd.hostNetwork" $))) }}
{{- fail (printf "daemon.http: %s is where the kubelet's probes do not ask, which would then end every agent again and again; set metrics.port, and metrics.enabled for requests from elsewhere" (quote $http)) }}
{{- end }}
{{- end }}
{{- end }}
{{- $http := toString (($all.controller | default dict).http) }}
{{- if and .Values.controller.enabled (or (not (hasSuffix (printf ":%d" (int64 .Values.metrics.controllerPort)) $http)) (regexMatch $loopback $http)) }}
{{- fail (printf "controller.http: %s is where the kubelet's probes do not ask, which would then end every controller again and again; set metrics.controllerPort" (quote $http)) }}
{{- end }}
{{- if not .Values.image.repository }}
{{- fail "image.repository is not set: there is no public image; name the registry to which yours was pushed, as in registry.example/healthd" }}
{{- end }}
{{- range $row := include "healthd.configs" . | fromJsonArray }}
{{- $mode := toString ($row.remediation | default dict).mode }}
{{- if and (eq $.Values.profile "restricted") (has $mode (list "approve" "repair")) }}
{{- fail (printf "mode: %s with profile: restricted: that profile can neither reset a GPU nor reboot; set mode: quarantine, or profile: full" $mode) }}
{{- end }}
{{- if and (has $mode (list "quarantine" "approve" "repair")) (not $.Values.controller.enabled) (not (and $.Values.budget.limit $.Values.budget.nodes)) }}
{{- fail (printf "mode: %s without a budget: set budget.limit and budget.nodes, or controller.enabled, which counts nodes itself" $mode) }}
{{- end }}
{{- if and (eq (toString ($row.provisioner | default dict).act_from) "controller") (not $.Values.controller.enabled) }}
{{- fail "provisioner.act_from: controller without controller.enabled: nodes would ask, and no controller acts" }}
{{- end }}
{{- if and (eq $.Values.profile "restricted") (eq (toString ($row.provisioner | default dict).kind) "local") }}
{{- fail "provisioner.kind: local with profile: restricted: that profile cannot ask systemd for a reboot; name another kind, or profile: full" }}
{{- end }}
{{- if and (($row.orchestrator | default dict).kubernetes | default dict).device_plugin (not $.Values.controller.enabled) }}
{{- fail "config.orchestrator.kubernetes.device_plugin without controller.enabled: agents would ask, and no controller restarts the plugin" }}
{{- end }}
{{- if and (eq (toString ($row.provisioner | default dict).kind) "karpenter") (not $.Values.controller.karpenter) }}
{{- fail "provisioner.kind: karpenter without controller.karpenter: the controller may not read or delete NodeClaims" }}
{{- end }}
{{- $kind := toString ($row.provisioner | default dict).kind }}
{{- $asks := eq (toString ($row.provisioner | default dict).act_from) "controller" }}
{{- if has $kind (list "parallelcluster" "pcs") }}
{{- fail (printf "provisioner.kind: %s needs Slurm, and this is Kubernetes: each agent would end at its start; name the kind of these nodes, as docs/how-to/kubernetes.md lists them" $kind) }}
{{- end }}
{{- if and (eq $kind "karpenter") (not $asks) }}
{{- fail "provisioner.kind: karpenter without provisioner.act_from: controller: a node may not delete NodeClaims, and each agent would end at its start" }}
{{- end }}
{{- if and (eq $kind "hyperpod") (has $mode (list "approve" "repair")) (not $asks) (ne (toString (($row.provisioner | default dict).hyperpod | default dict).how) "label") }}
{{- fail (printf "mode: %s with provisioner.kind: hyperpod: an agent on Kubernetes repairs nothing by itself; set provisioner.hyperpod.how: label, or provisioner.act_from: controller" $mode) }}
{{- end }}
{{- end }}
{{- range without (include "healthd.budgetLeases" . | splitList "\n") "healthd-budget" }}
{{- $scope := trimPrefix "healthd-budget-" . }}
{{- if not (or (hasKey ($.Values.budget.scopes | default dict) $scope) $.Values.controller.enabled (include "healthd.observes" $)) }}
{{- fail (printf "budget.scope.%s without its numbers: set budget.scopes.%s, with limit and nodes, or controller.enabled, which counts nodes itself" $scope $scope) }}
{{- end }}
{{- end }}
{{- $nodes := include "healthd.nodes" . | fromJson }}
{{- $given := ((include "healthd.overlay" (list .Values.config .Values.controller.config) | fromJson).controller | default dict).selector }}
{{- if and $.Values.controller.enabled $given (not $nodes.problem) }}
{{- fail (printf "controller.selector: %s is not yours to set here: nodes are counted where agents run, which agent.nodeSelector and agent.affinity say; set those" $given) }}
{{- end }}
{{- if and $.Values.controller.enabled $nodes.problem (not $given) }}
{{- fail (printf "agent.affinity: %s, which no label selector can say; the controller could not count the nodes that agents run on. Give the same nodes in config.controller.selector as well" $nodes.problem) }}
{{- end }}
{{- end }}
