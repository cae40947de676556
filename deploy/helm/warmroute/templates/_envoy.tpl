{{- /* The Envoy of mode `envoy`: it asks the router beside it, over loopback, where each request goes. Profile thin: the
       router sees the first piece of an answer and no more, Envoy finds the usage in event streams and reports each end
       in its access log. Profile conforming: every piece passes through the router, as with any other gateway. */}}
{{- define "warmroute.envoyConfig" -}}
{{- $config := include "warmroute.config" . | fromYaml }}
{{- $thin := eq .Values.envoy.profile "thin" }}
{{- $usage := dict "prompt_tokens" "[{key: usage}, {key: prompt_tokens}]"
                   "completion_tokens" "[{key: usage}, {key: completion_tokens}]"
                   "cached_tokens" "[{key: usage}, {key: prompt_tokens_details}, {key: cached_tokens}]" }}
node: {id: warmroute, cluster: warmroute}
admin:
  address: {socket_address: {address: 127.0.0.1, port_value: {{ .Values.envoy.adminPort }}}}
overload_manager:
  resource_monitors:
    - name: envoy.resource_monitors.global_downstream_max_connections
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig
        max_active_downstream_connections: {{ mul 8 (($config.limits).concurrent | default 2048) }} # as the proxy's
static_resources:
  listeners:
    - name: inference
      address: {socket_address: {address: 0.0.0.0, port_value: {{ .Values.envoy.port }}}}
      per_connection_buffer_limit_bytes: 1048576
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: inference
                use_remote_address: true # x-forwarded-for ends with the address of who connected
                request_headers_timeout: {{ $config.listen.header_timeout_s | default 10 }}s
                stream_idle_timeout: 3600s
                # Only the router names these: an engine, a prefill engine, and whom a request is counted for.
                early_header_mutation_extensions:
                  - name: envoy.http.early_header_mutation.header_mutation
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation
                      mutations:
                        - {remove: x-gateway-destination-endpoint}
                        - {remove: x-prefiller-host-port}
                        - {remove: x-llm-d-inference-fairness-id}
                        - {remove: x-gateway-inference-fairness-id}
                {{- if $thin }}
                access_log:
                  - name: envoy.access_loggers.http_grpc
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig
                      common_config:
                        log_name: warmroute
                        transport_api_version: V3
                        buffer_flush_interval: 0.1s
                        buffer_size_bytes: 65536
                        grpc_service: {envoy_grpc: {cluster_name: picker}}
                {{- end }}
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes:
                        {{- range list "/health" "/ready" }}
                        - match: {path: {{ . }}}
                          route: {cluster: router}
                          typed_per_filter_config:
                            envoy.filters.http.ext_proc:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute
                              disabled: true
                        {{- end }}
                        - match: {prefix: /}
                          route: {cluster: engines, timeout: 0s, idle_timeout: 3600s}
                http_filters:
                  {{- if $thin }}
                  - name: envoy.filters.http.sse_to_metadata
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.sse_to_metadata.v3.SseToMetadata
                      response_rules:
                        max_event_size: 65536
                        content_parser:
                          name: envoy.content_parsers.json
                          typed_config:
                            "@type": type.googleapis.com/envoy.extensions.content_parsers.json.v3.JsonContentParser
                            rules:
                              {{- range $name, $path := $usage }}
                              - rule:
                                  selectors: {{ $path }}
                                  on_present: {metadata_namespace: warmroute, key: {{ $name }}, type: NUMBER}
                              {{- end }}
                  - name: envoy.filters.http.json_to_metadata # of answers that are no streams
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.json_to_metadata.v3.JsonToMetadata
                      response_rules:
                        rules:
                          {{- range $name, $path := $usage }}
                          - selectors: {{ $path }}
                            on_present: {metadata_namespace: warmroute, key: {{ $name }}, type: NUMBER}
                          {{- end }}
                  {{- end }}
                  - name: envoy.filters.http.ext_proc
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
                      failure_mode_allow: false
                      grpc_service: {envoy_grpc: {cluster_name: picker}, timeout: 0s}
                      # longer than a request may wait for admission
                      message_timeout: {{ add 300 (ceil (($config.admission).max_wait_s | default 300)) }}s
                      processing_mode:
                        request_header_mode: SEND
                        request_body_mode: FULL_DUPLEX_STREAMED
                        request_trailer_mode: SEND
                        response_header_mode: SEND
                        response_body_mode: {{ ternary "STREAMED" "FULL_DUPLEX_STREAMED" $thin }}
                        response_trailer_mode: {{ ternary "SKIP" "SEND" $thin }}
                      response_attributes: [upstream.address, response.code_details]
                      metadata_options:
                        forwarding_namespaces: {untyped: [envoy.lb, envoy.lb.subset_hint]}
                        receiving_namespaces: {untyped: [envoy.lb, warmroute]}
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
          {{- if .Values.secrets.tls.name }}
          transport_socket:
            name: envoy.transport_sockets.tls
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
              common_tls_context:
                alpn_protocols: [h2, http/1.1]
                tls_certificate_sds_secret_configs:
                  - name: front
                    sds_config:
                      resource_api_version: V3
                      path_config_source: {path: /etc/envoy/config/certificate.yaml}
          {{- end }}
  clusters:
    - name: engines # any address that the router names
      type: ORIGINAL_DST
      lb_policy: CLUSTER_PROVIDED
      connect_timeout: {{ ($config.limits).connect_timeout_s | default 2 }}s
      original_dst_lb_config: {use_http_header: true, http_header_name: x-gateway-destination-endpoint}
      circuit_breakers: {thresholds: [{max_connections: 40000, max_pending_requests: 40000, max_requests: 40000}]}
    - name: picker
      type: STATIC
      lb_policy: LEAST_REQUEST
      connect_timeout: 2s
      common_lb_config: {healthy_panic_threshold: {value: 0}}
      circuit_breakers: {thresholds: [{max_connections: 40000, max_pending_requests: 40000, max_requests: 40000}]}
      health_checks:
        - timeout: 1s
          interval: 1s
          no_traffic_interval: 1s
          unhealthy_threshold: 1
          healthy_threshold: 1
          grpc_health_check: {service_name: envoy.service.ext_proc.v3.ExternalProcessor}
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config:
            http2_protocol_options:
              initial_stream_window_size: 1048576
              initial_connection_window_size: 8388608
              max_concurrent_streams: 10000
      load_assignment: {{ include "warmroute.envoyEndpoint" (list "picker" $config.picker.port) }}
    - name: router # /health and /ready
      type: STATIC
      connect_timeout: 2s
      load_assignment: {{ include "warmroute.envoyEndpoint" (list "router" $config.listen.port) }}
{{- end }}

{{- define "warmroute.envoyEndpoint" -}}
{cluster_name: {{ index . 0 }}, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: {{ index . 1 }}}}}}]}]}
{{- end }}

{{- /* The certificate, read again when the Secret's files change. */}}
{{- define "warmroute.envoyCertificate" -}}
resources:
  - "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
    name: front
    tls_certificate:
      certificate_chain: {filename: /etc/envoy/tls/tls.crt}
      private_key: {filename: /etc/envoy/tls/tls.key}
      watched_directory: {path: /etc/envoy/tls}
{{- end }}

{{- /* Before SIGTERM, at which Envoy ends at once: no Service sends new connections, then no request is open. */}}
{{- define "warmroute.envoyDrain" -}}
ask() {
  exec 3<>/dev/tcp/127.0.0.1/{{ .Values.envoy.adminPort }} || exit 0
  printf '%s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n' "$1" >&3
  cat <&3
}
ask 'POST /healthcheck/fail' >/dev/null # answers say from now on that their connection closes
sleep 5
until ask 'GET /stats?filter=^http.inference.downstream_rq_active$' | grep -q 'rq_active: 0'; do sleep 0.5; done
{{- end }}

{{- define "warmroute.envoyContainer" -}}
{{- $probes := ternary "HTTPS" "HTTP" (ne .Values.secrets.tls.name "") -}}
- name: envoy
  image: {{ printf "%s:%s" .Values.envoy.image.repository .Values.envoy.image.tag | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [envoy, --config-path, /etc/envoy/config/envoy.yaml, --disable-hot-restart, --concurrency, "{{ .Values.envoy.workers }}", --log-level, warning]
  ports:
    - {name: http, containerPort: {{ .Values.envoy.port }}, protocol: TCP}
  startupProbe:
    httpGet: {path: /health, port: http, scheme: {{ $probes }}}
    periodSeconds: 2
    failureThreshold: 60
  livenessProbe:
    tcpSocket: {port: http}
    periodSeconds: 10
  readinessProbe:
    httpGet: {path: /ready, port: http, scheme: {{ $probes }}}
    periodSeconds: 2
    timeoutSeconds: 2
  lifecycle:
    preStop:
      exec: {command: [bash, /etc/envoy/config/drain.sh]}
  securityContext: {{- include "warmroute.containerSecurity" . | nindent 4 }}
  resources: {{- toYaml .Values.envoy.resources | nindent 4 }}
  volumeMounts:
    - {name: envoy, mountPath: /etc/envoy/config, readOnly: true}
    {{- if .Values.secrets.tls.name }}
    - {name: tls, mountPath: /etc/envoy/tls, readOnly: true}
    {{- end }}
{{- end }}
