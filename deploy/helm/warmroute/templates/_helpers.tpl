{{- define "warmroute.name" -}}
{{- if contains "warmroute" .Release.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-warmroute" .Release.Name }}{{ end }}
{{- end }}

{{- define "warmroute.selector" -}}
app.kubernetes.io/name: warmroute
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "warmroute.labels" -}}
{{ include "warmroute.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "warmroute.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "warmroute.name" .) }}
{{- end }}

{{- define "warmroute.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The router's configuration as YAML: what the chart knows, and config merged over it. Paths count from the folder
       of the file, /etc/warmroute/config. */}}
{{- define "warmroute.config" -}}
{{- $secrets := .Values.secrets }}
{{- $config := dict "listen" (dict "host" "0.0.0.0" "port" 8000) }}
{{- if eq .Values.mode "envoy" }}
{{- $_ := set $config.listen "port" 8002 }}
{{- $_ := set $config "picker" (dict "host" "127.0.0.1" "port" 9002 "tls" "off") }}
{{- else if eq .Values.mode "gateway" }}
{{- $_ := set $config "picker" (dict "host" "0.0.0.0" "port" 9002 "health_port" 9003 "tls" "self-signed") }}
{{- end }}
{{- $_ := set $config "metrics" (dict "host" "0.0.0.0" "port" 9090) }}
{{- $_ := set $config "policies_dir" "../policies" }}
{{- if $secrets.tls.name }}
{{- $files := dict "cert_file" "../tls/tls.crt" "key_file" "../tls/tls.key" }}
{{- if eq .Values.mode "proxy" }}
{{- $_ := set $config.listen "tls" $files }}
{{- else if eq .Values.mode "gateway" }}
{{- $_ := set $config.picker "tls" $files }}
{{- end }}
{{- end }}
{{- with $secrets.clientKeys.name }}
{{- $_ := set $config "clients" (dict "keys_file" "../client-keys/client-keys") }}
{{- end }}
{{- with $secrets.indexKey.name }}
{{- $_ := set $config "index" (dict "key_secret_env" "WARMROUTE_INDEX_KEY") }}
{{- end }}
{{- if $secrets.replicas.name }}
{{- $service := printf "%s-replicas.%s.svc" (include "warmroute.name" .) .Release.Namespace }}
{{- $_ := set $config "replicas" (dict "dns" $service "secret_env" "WARMROUTE_REPLICAS_SECRET" "port" 9004) }}
{{- end }}
{{- if eq .Values.engineAutoscaling.by "keda" }}
{{- $_ := set $config "keda" (dict "host" "0.0.0.0" "port" 9005) }}
{{- end }}
{{- if or .Values.engines.labels (include "warmroute.pool" .) }}
{{- $_ := set $config "fleet" (dict "kubernetes" (include "warmroute.engines" . | fromYaml)) }}
{{- end }}
{{- $tokenizers := dict }}
{{- range $i, $tokenizer := .Values.tokenizers }}
{{- $_ := set $tokenizers $tokenizer.model (dict "path" ($tokenizer.path | default (printf "../tokenizers/%d" $i))) }}
{{- end }}
{{- with $tokenizers }}
{{- $_ := set $config "tokenizers" . }}
{{- end }}
{{- $config := mergeOverwrite $config (deepCopy .Values.config) }}
{{- if not $config.fleet }}
{{- fail "engines.labels: which pods are engines? For example: --set engines.labels.app=vllm" }}
{{- end }}
{{- if and (eq .Values.mode "envoy") (eq ((($config.fleet).kubernetes).scheme | default "http") "https") }}
{{- fail "config.fleet.kubernetes.scheme: mode envoy reaches engines by http only" }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{- /* Name of the InferencePool of mode `gateway`; empty in other modes. */}}
{{- define "warmroute.pool" -}}
{{- if eq .Values.mode "gateway" }}
{{- $pool := .Values.inferencePool }}
{{- if and $pool.create (not .Values.engines.labels) }}
{{- fail "engines.labels: which pods are engines? Or name a pool that exists: inferencePool.create=false, inferencePool.name" }}
{{- else if not (or $pool.create $pool.name) }}
{{- fail "inferencePool.name: which pool is it? Or let the chart make one: inferencePool.create=true, engines.labels" }}
{{- end }}
{{- if and .Values.engines.namespace (ne .Values.engines.namespace .Release.Namespace) }}
{{- fail "engines.namespace: an InferencePool, its picker and its pods are in one namespace, that of the release" }}
{{- end }}
{{- $pool.name | default (include "warmroute.name" .) }}
{{- end }}
{{- end }}

{{- define "warmroute.engines" -}}
namespace: {{ .Values.engines.namespace | default .Release.Namespace }}
{{- with include "warmroute.pool" . }}
inference_pool: {{ . }}
{{- else }}
selector: {{ include "warmroute.labelSelector" .Values.engines.labels | quote }}
ports: {{ toJson .Values.engines.ports }}
{{- end }}
{{- if .Values.secrets.engineApiKey.name }}
api_key_env: WARMROUTE_ENGINE_API_KEY
{{- end }}
{{- end }}

{{- define "warmroute.labelSelector" -}}
{{- $terms := list }}
{{- range $name, $value := . }}{{ $terms = append $terms (printf "%s=%s" $name $value) }}{{ end }}
{{- join "," $terms }}
{{- end }}

{{- define "warmroute.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
