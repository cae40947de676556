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
{{- $_ := set $config "metrics" (dict "host" "0.0.0.0" "port" 9090) }}
{{- $_ := set $config "policies_dir" "../policies" }}
{{- with $secrets.tls.name }}
{{- $_ := set $config.listen "tls" (dict "cert_file" "../tls/tls.crt" "key_file" "../tls/tls.key") }}
{{- end }}
{{- with $secrets.clientKeys.name }}
{{- $_ := set $config "clients" (dict "keys_file" "../client-keys/client-keys") }}
{{- end }}
{{- with $secrets.indexKey.name }}
{{- $_ := set $config "index" (dict "key_secret_env" "WARMROUTE_INDEX_KEY") }}
{{- end }}
{{- if .Values.engines.labels }}
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
{{- toYaml $config }}
{{- end }}

{{- define "warmroute.engines" -}}
namespace: {{ .Values.engines.namespace | default .Release.Namespace }}
selector: {{ include "warmroute.labelSelector" .Values.engines.labels | quote }}
ports: {{ toJson .Values.engines.ports }}
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
