{{/* The entry of the mode in files/modes.yaml. */}}
{{- define "berth.mode" -}}
{{- get (.Files.Get "files/modes.yaml" | fromYaml) .Values.mode | toYaml -}}
{{- end -}}

{{/* Not empty if pods may have NICs that are ports of VPCs. */}}
{{- define "berth.ports" -}}
{{- if or .Values.ports.enabled (eq .Values.mode "port") }}true{{ end -}}
{{- end -}}

{{/* Not empty if the operator's webhook validates pods that ask for NICs. */}}
{{- define "berth.webhook" -}}
{{- if and (include "berth.ports" .) .Values.ports.webhook.enabled }}true{{ end -}}
{{- end -}}

{{/* Not empty if NICs may be EC2 branch interfaces, on trunks that the operator creates. */}}
{{- define "berth.branches" -}}
{{- if and .Values.ports.enabled (eq .Values.mode "operator") }}true{{ end -}}
{{- end -}}

{{/* Not empty if Egresses are enabled. */}}
{{- define "berth.egress" -}}
{{- if or .Values.egress.enabled (eq .Values.mode "egress") }}true{{ end -}}
{{- end -}}

{{/* Not empty if network policies are enforced. */}}
{{- define "berth.policies" -}}
{{- if .Values.networkPolicies.enabled }}true{{ end -}}
{{- end -}}

{{/* Not empty if berthd itself applies NodeNetworkTemplates. */}}
{{- define "berth.nodeTemplates" -}}
{{- if and .Values.nodeNetworkTemplates.enabled (eq .Values.mode "node") }}true{{ end -}}
{{- end -}}

{{/* Not empty if there is an operator. */}}
{{- define "berth.hasOperator" -}}
{{- if or (hasKey (include "berth.mode" . | fromYaml) "operator") (include "berth.ports" .) (include "berth.egress" .) (include "berth.policies" .) }}true{{ end -}}
{{- end -}}

{{/* The kinds about which the operator writes Events, as a YAML list. */}}
{{- define "berth.eventsOf" -}}
{{- $mode := include "berth.mode" . | fromYaml -}}
{{- $kinds := $mode.eventsOf | default list -}}
{{- if include "berth.ports" . }}{{ $kinds = concat $kinds (get (.Files.Get "files/modes.yaml" | fromYaml) "port").eventsOf }}{{ end -}}
{{- if include "berth.egress" . }}{{ $kinds = concat $kinds (list "Egress" "Pod") }}{{ end -}}
{{- if include "berth.policies" . }}{{ $kinds = concat $kinds (list "NetworkPolicy" "ClusterNetworkPolicy") }}{{ end -}}
{{- $kinds | uniq | toYaml -}}
{{- end -}}

{{/*
Not empty if berthd uses the Kubernetes API: in node mode for NodeNetworkTemplates,
and for Events of Pods, if these are enabled and the token names its node.
*/}}
{{- define "berth.daemonUsesAPI" -}}
{{- $tells := index .Values.daemon.settings "pod-events" | default "auto" -}}
{{- if or (include "berth.hasOperator" .) (include "berth.nodeTemplates" .) -}}
true
{{- else if eq $tells "never" -}}
{{- else if semverCompare ">=1.32.0-0" .Capabilities.KubeVersion.Version -}}
true
{{- else if eq $tells "always" -}}
{{- fail (printf "daemon.settings.pod-events: always needs Kubernetes 1.32 or later, whose tokens name the node of their pod, and this is %s" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end -}}

{{/* Selector of the nodes of berthd. During a migration only nodes that have been moved. */}}
{{- define "berth.nodeSelector" -}}
{{- $selector := deepCopy .Values.daemon.nodeSelector -}}
{{- if .Values.migration.from }}{{ $_ := set $selector "berth.dev/network" "berth" }}{{ end -}}
{{- toYaml $selector -}}
{{- end -}}

{{/* Labels of an object, or of a program's object if NAME is given: list ROOT [NAME]. */}}
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

{{/* The user name of a program in admission requests: list ROOT PROGRAM. */}}
{{- define "berth.user" -}}
{{- $root := index . 0 -}}
system:serviceaccount:{{ $root.Release.Namespace }}:{{ (index $root.Values (index . 1)).serviceAccount.name }}
{{- end -}}

{{/*
All settings of a program, by name: list ROOT PROGRAM PORT, where PORT is the default
port of its metrics. Values override the defaults of the mode; the schema does not
allow values for settings that define the mode.
*/}}
{{- define "berth.settings" -}}
{{- $root := index . 0 -}}{{- $program := index . 1 -}}
{{- $mode := include "berth.mode" $root | fromYaml -}}
{{- if not (semverCompare (printf ">=%s" $mode.kubernetes) $root.Capabilities.KubeVersion.Version) -}}
{{- fail (printf "mode %s needs Kubernetes %s or later, and this is %s" $root.Values.mode ($mode.kubernetes | trimSuffix ".0-0") $root.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and $root.Values.ports.enabled (not (semverCompare ">=1.32.0-0" $root.Capabilities.KubeVersion.Version)) -}}
{{- fail (printf "ports.enabled needs Kubernetes 1.32 or later, and this is %s" $root.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and $root.Values.egress.enabled (not (semverCompare ">=1.32.0-0" $root.Capabilities.KubeVersion.Version)) -}}
{{- fail (printf "egress.enabled needs Kubernetes 1.32 or later, and this is %s" $root.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and (include "berth.policies" $root) (not (semverCompare ">=1.32.0-0" $root.Capabilities.KubeVersion.Version)) -}}
{{- fail (printf "networkPolicies.enabled needs Kubernetes 1.32 or later, and this is %s" $root.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and (include "berth.policies" $root) (eq $root.Values.mode "egress") -}}
{{- fail "networkPolicies.enabled is of no use in mode egress: pods' interfaces are another network's, which enforces policies" -}}
{{- end -}}
{{- if and (include "berth.nodeTemplates" $root) (not (semverCompare ">=1.32.0-0" $root.Capabilities.KubeVersion.Version)) -}}
{{- fail (printf "nodeNetworkTemplates.enabled needs Kubernetes 1.32 or later, and this is %s" $root.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and (eq $root.Values.mode "egress") $root.Values.ports.enabled -}}
{{- fail "ports.enabled is of no use in mode egress: pods' interfaces are another network's" -}}
{{- end -}}
{{- $settings := deepCopy (index $root.Values $program).settings -}}
{{- if $mode.ec2 -}}
{{- $_ := set $settings "cluster-name" (required "clusterName is empty: name the cluster, as its IAM policy does; clusters that share a VPC need names that differ" $root.Values.clusterName) -}}
{{- else if and (include "berth.ports" $root) (eq $program "operator") -}}
{{- $_ := set $settings "cluster-name" (required "clusterName is empty: name the cluster; clusters whose ports are in the same VPC need names that differ" $root.Values.clusterName) -}}
{{- end -}}
{{- if not (hasKey $settings "metrics-address") -}}
{{- $_ := set $settings "metrics-address" (printf "%s:%v" (ternary "[$(HOST_IP)]" "127.0.0.1" (eq (include "berth.onNodeAddress" $root) "true")) (index . 2)) -}}
{{- else if and $root.Values.monitoring.podMonitor.enabled (regexMatch `^$|^127\.|^\[::1\]|^localhost:` (index $settings "metrics-address")) -}}
{{- fail (printf "%s.settings.metrics-address is %s, where no PodMonitor reaches it: leave it out, or give one that is not a loopback address" $program (index $settings "metrics-address" | default "empty")) -}}
{{- end -}}
{{- $ofMode := deepCopy (get $mode $program | default dict) -}}
{{- if and (include "berth.ports" $root) (ne $root.Values.mode "port") -}}
{{- if eq $program "daemon" -}}
{{- $_ := set $ofMode "vpc-ports" true -}}
{{- else -}}
{{- $_ := set $ofMode "ipam" (append ($ofMode.ipam | default list) "port") -}}
{{- $_ := set $ofMode "first-interface-is-port" false -}}
{{- end -}}
{{- end -}}
{{- if and (eq $program "daemon") (include "berth.nodeTemplates" $root) -}}
{{- $_ := set $ofMode "node-network-templates" true -}}
{{- end -}}
{{- if include "berth.egress" $root -}}
{{- $_ := set $ofMode "egress" true -}}
{{- $_ := set $ofMode "egress-port" $root.Values.egress.port -}}
{{- if eq $program "operator" -}}
{{- $_ := set $ofMode "ipam" ($ofMode.ipam | default list) -}}
{{- $_ := set $ofMode "egress-image" (include "berth.image" (list $root $root.Values.egress.image)) -}}
{{- end -}}
{{- end -}}
{{- if include "berth.policies" $root -}}
{{- $_ := set $ofMode "network-policies" true -}}
{{- if eq $program "operator" -}}
{{- $_ := set $ofMode "ipam" ($ofMode.ipam | default list) -}}
{{- $_ := set $ofMode "network-policy-address" "[$(HOST_IP)]:61683" -}}
{{- $_ := set $ofMode "network-policy-daemons" (include "berth.user" (list $root "daemon")) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $program "operator") (include "berth.webhook" $root) -}}
{{- $_ := set $ofMode "webhook-address" ":61682" -}}
{{- end -}}
{{- merge $settings $ofMode | toYaml -}}
{{- end -}}

{{/*
Converts settings in YAML to environment variables. An empty variable counts as unset,
so settings with an empty text are arguments (berth.args).
*/}}
{{- define "berth.env" -}}
{{- range $name, $value := fromYaml . }}
{{- with include "berth.text" $value }}
- name: BERTH_{{ $name | upper | replace "-" "_" }}
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "berth.args" -}}
{{- range $name, $value := fromYaml . }}
{{- if not (include "berth.text" $value) }}
- --{{ $name }}=
{{- end }}
{{- end }}
{{- end -}}

{{/* The variables of berthd: list ROOT SETTINGS. */}}
{{- define "berth.daemonEnv" -}}
{{- $root := index . 0 -}}
{{- include "berth.extraEnv" (list $root $root.Values.daemon.extraEnv) }}
- name: BERTH_NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- if not $root.Values.daemon.privileged }}
- name: BERTH_SYSCTL_DIR
  value: /host/proc/sys
{{- end }}
{{- include "berth.env" (index . 1) }}
{{- end -}}

{{/* The variables of berth-operator: list ROOT SETTINGS. */}}
{{- define "berth.operatorEnv" -}}
{{- $root := index . 0 -}}
{{- include "berth.extraEnv" (list $root $root.Values.operator.extraEnv) }}
- name: POD_NAME # identity of the leader in the Lease
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- include "berth.env" (index . 1) }}
{{- end -}}

{{/*
What daemons may request when they create the NodeNetwork of their node: the value "allowed",
and the values in daemon.settings. Empty if nothing restricts them. Entries are separated by
commas or newlines.
*/}}
{{- define "berth.allowed" -}}
{{- if and .Values.admissionPolicies.create (eq .Values.mode "operator") }}
{{- $root := . }}
{{- $asked := .Values.daemon.settings }}
{{- range $list, $setting := dict "securityGroups" "security-groups" "securityGroupTags" "security-group-tags" "subnetIDs" "subnets" "subnetTags" "subnet-tags" }}
{{ $list }}: {{ list (include "berth.text" (index $root.Values.allowed $list)) (include "berth.text" (get $asked $setting)) | compact | join "," | quote }}
{{- end }}
{{- $settings := .Values.allowed.settings }}
{{- if eq (get $asked "first-interface-index" | toString) "0" }}{{ $settings = append $settings "firstInterfaceIndex=0" }}{{ end }}
{{- if eq (get $asked "delete-on-termination" | toString) "false" }}{{ $settings = append $settings "deleteOnTermination=false" }}{{ end }}
{{- if eq (get $asked "use-primary-address" | toString) "true" }}{{ $settings = append $settings "usePrimaryAddress=true" }}{{ end }}
{{- if eq (get $asked "trunk-eni" | toString) "true" }}{{ $settings = append $settings "trunk=true" }}{{ end }}
settings: {{ $settings | uniq | join "," | quote }}
{{- $addresses := int64 .Values.allowed.addresses }}
{{- range $setting, $each := dict "min-allocate" 1 "pre-allocate" 1 "max-above-watermark" 1 "warm-ip-target" 1 "minimum-ip-target" 1 "warm-prefix-target" 16 "warm-eni-target" 50 }}
{{- $addresses = max $addresses (mul $each (get $asked $setting | default 0 | int64)) }}
{{- end }}
addresses: {{ $addresses | quote }}
{{- end }}
{{- end -}}

{{/*
The variable in which a program finds what the chart gave to it, for its condition
SettingsAsInstalled: list ENV ARGS ALLOWED. It is the last one, so that Kubernetes replaces
$(HOST_IP) in it as in the others. Of variables with other references only the names are
recorded: any text may take their place, which could end the JSON or be secret. Kubernetes
replaces nothing in a ConfigMap, so its data is recorded with the dollar signs escaped.
*/}}
{{- define "berth.installed" -}}
{{- $env := dict }}
{{- range index . 0 | fromYamlArray }}{{ $_ := set $env .name (contains "$(" (replace "$(HOST_IP)" "" (toString .value)) | ternary nil .value) }}{{ end }}
{{- $installed := dict "env" $env }}
{{- with index . 1 }}{{ $_ := set $installed "args" (fromYamlArray .) }}{{ end }}
{{- with index . 2 }}{{ $_ := set $installed "allowed" (fromYaml (replace "$" "$$" .)) }}{{ end }}
- name: BERTH_INSTALLED
  value: {{ toJson $installed | quote }}
{{- end -}}

{{/* A value as text, with lists and tags in the programs' syntax. */}}
{{- define "berth.text" -}}
{{- if kindIs "slice" . }}{{ join "," . }}
{{- else if kindIs "map" . }}{{ $pairs := list }}{{ range $key, $value := . }}{{ $pairs = append $pairs (printf "%s=%v" $key $value) }}{{ end }}{{ join "," $pairs }}
{{- else if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}
{{- else }}{{ . }}{{ end -}}
{{- end -}}

{{/* An update strategy. Parameters of RollingUpdate are dropped for other types. */}}
{{- define "berth.updateStrategy" -}}
{{- if eq (.type | default "RollingUpdate") "RollingUpdate" }}{{ toYaml . }}{{ else }}{{ toYaml (omit . "rollingUpdate") }}{{ end -}}
{{- end -}}

{{/* The port at the end of an address. */}}
{{- define "berth.port" -}}{{- regexFind "[0-9]+$" . -}}{{- end -}}

{{/* The host of an address, or 127.0.0.1 if it has none. */}}
{{- define "berth.host" -}}{{- regexReplaceAll ":[0-9]+$" . "" | trimAll "[]" | default "127.0.0.1" -}}{{- end -}}

{{/* Labels of the pods, without labels that every upgrade would change. */}}
{{- define "berth.podLabels" -}}
{{- $root := index . 0 -}}
{{- merge (dict "app.kubernetes.io/name" (index . 1) "app.kubernetes.io/part-of" "berth" "app.kubernetes.io/instance" $root.Release.Name) (index . 2) $root.Values.commonLabels | toYaml -}}
{{- end -}}

{{/* Environment variables before those of the settings: list ROOT EXTRA. */}}
{{- define "berth.extraEnv" -}}
{{- $root := index . 0 -}}
{{- with index . 1 }}
{{ toYaml . }}
{{- end }}
{{- if or (include "berth.onNodeAddress" $root) (include "berth.policies" $root) }}
- name: HOST_IP
  valueFrom: {fieldRef: {fieldPath: status.hostIP}}
{{- end }}
{{- with include "berth.apiServer" $root }}
{{- . }}
{{- end }}
{{- end -}}

{{/* Not empty if metrics are served on the node's own address, which PodMonitors need. */}}
{{- define "berth.onNodeAddress" -}}
{{- if or .Values.metrics.onNodeAddress .Values.monitoring.podMonitor.enabled }}true{{ end -}}
{{- end -}}

{{/* The address of the API server, unless the Service is used. */}}
{{- define "berth.apiServer" -}}
{{- with .Values.apiServer }}
{{- if .host }}
- name: KUBERNETES_SERVICE_HOST # read by client-go; the kubelet's default is the Service
  value: {{ .host | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ include "berth.text" .port | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
Fails if the cluster runs a version of Berth that is neither of the same minor version nor of a neighbouring one, because
a release reads only what its neighbours have stored. Major versions are neighbours if the later one is its first minor
version. It says nothing about versions without numbers, and without a cluster to look at.
*/}}
{{- define "berth.checkUpgrade" -}}
{{- $number := "^v?[0-9]+[.][0-9]+[.][0-9]+" -}}
{{- $daemons := lookup "apps/v1" "DaemonSet" .Release.Namespace "berthd" | default dict -}}
{{- $runs := dig "metadata" "labels" "app.kubernetes.io/version" "" $daemons -}}
{{- if and (not .Values.upgrade.skipMinorVersions) (regexMatch $number $runs) (regexMatch $number .Chart.AppVersion) -}}
{{- $from := semver (regexFind $number $runs) -}}
{{- $to := semver (regexFind $number .Chart.AppVersion) -}}
{{- $first := ternary $to $from (ge $to.Major $from.Major) -}}
{{- $majors := sub (max $from.Major $to.Major) (min $from.Major $to.Major) -}}
{{- $minors := sub (max $from.Minor $to.Minor) (min $from.Minor $to.Minor) -}}
{{- if not (or (and (eq $majors 0) (le $minors 1)) (and (eq $majors 1) (eq $first.Minor 0))) -}}
{{- fail (printf "this chart is of version %s, and Berth %s runs in the namespace %s: a change of version must not skip a minor version. Install the versions between them one after the other, or set upgrade.skipMinorVersions=true" .Chart.AppVersion $runs .Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
