{{/* Settings of the mode, as in files/modes.yaml. */}}
{{- define "berth.mode" -}}
{{- get (.Files.Get "files/modes.yaml" | fromYaml) .Values.mode | toYaml -}}
{{- end -}}

{{/* Not empty where there is an operator. */}}
{{- define "berth.hasOperator" -}}
{{- if hasKey (include "berth.mode" . | fromYaml) "operator" }}true{{ end -}}
{{- end -}}

{{/* Labels of an object; of a program's if a name is given: list ROOT [NAME]. */}}
{{- define "berth.labels" -}}
{{- $root := index . 0 -}}
{{- $labels := dict "app.kubernetes.io/part-of" "berth" "app.kubernetes.io/instance" $root.Release.Name "app.kubernetes.io/managed-by" $root.Release.Service "app.kubernetes.io/version" ($root.Chart.AppVersion | trunc 63) "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63) -}}
{{- if gt (len .) 1 }}{{ $_ := set $labels "app.kubernetes.io/name" (index . 1) }}{{ end -}}
{{- merge $labels $root.Values.commonLabels | toYaml -}}
{{- end -}}

{{/* The name of an image: list ROOT IMAGE. */}}
{{- define "berth.image" -}}
{{- $root := index . 0 -}}{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The name by which admission knows a program: list ROOT PROGRAM. */}}
{{- define "berth.user" -}}
{{- $root := index . 0 -}}
system:serviceaccount:{{ $root.Release.Namespace }}:{{ (index $root.Values (index . 1)).serviceAccount.name }}
{{- end -}}

{{/* All settings of a program, by name: list ROOT PROGRAM. */}}
{{- define "berth.settings" -}}
{{- $root := index . 0 -}}{{- $program := index . 1 -}}
{{- $mode := include "berth.mode" $root | fromYaml -}}
{{- $settings := deepCopy (get $mode $program) -}}
{{- if $mode.ec2 -}}
{{- $_ := set $settings "cluster-name" (required "clusterName is empty: name the cluster, as its IAM policy does; clusters that share a VPC need names that differ" $root.Values.clusterName) -}}
{{- end -}}
{{- $settings = merge $settings (index $root.Values $program).settings -}}
{{- if and $root.Values.monitoring.podMonitor.enabled (not (hasKey $settings "metrics-address")) -}}
{{- $_ := set $settings "metrics-address" (printf "$(HOST_IP):%d" (ternary 61678 61680 (eq $program "daemon"))) -}}
{{- end -}}
{{- $settings | toYaml -}}
{{- end -}}

{{/*
Settings as environment variables: the settings as YAML. Numbers of values are
floats: what is whole is written so. An empty text counts as not set in a
variable, so it is an argument (berth.args).
*/}}
{{- define "berth.env" -}}
{{- range $name, $value := fromYaml . }}
{{- if ne (toString $value) "" }}
- name: BERTH_{{ $name | upper | replace "-" "_" }}
  value: {{ include "berth.text" $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "berth.args" -}}
{{- range $name, $value := fromYaml . }}
{{- if eq (toString $value) "" }}
- --{{ $name }}=
{{- end }}
{{- end }}
{{- end -}}

{{- define "berth.text" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{/* What the settings may refer to as $(HOST_IP), where metrics are scraped. */}}
{{- define "berth.hostIP" -}}
{{- if .Values.monitoring.podMonitor.enabled }}
- name: HOST_IP
  valueFrom: {fieldRef: {fieldPath: status.hostIP}}
{{- end }}
{{- end -}}

{{/* Where the API server is, if that is not left to the Service. */}}
{{- define "berth.apiServer" -}}
{{- with .Values.apiServer }}
{{- if .host }}
- name: KUBERNETES_SERVICE_HOST # the API server itself, not the Service
  value: {{ .host | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ include "berth.text" .port | quote }}
{{- end }}
{{- end }}
{{- end -}}
