{{/* Name of everything of the operator's. */}}
{{- define "foretoken.operator" -}}
{{ printf "%s-operator" .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Name of everything that takes finalizers away when a release goes. */}}
{{- define "foretoken.retire" -}}
{{ printf "%s-retire" .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Labels by which the operator's pods are found. */}}
{{- define "foretoken.selector" -}}
app.kubernetes.io/component: operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Labels of everything. */}}
{{- define "foretoken.labels" -}}
app.kubernetes.io/name: foretoken
app.kubernetes.io/part-of: foretoken
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "foretoken.selector" . }}
{{- end }}

{{/* The image with foretoken in it. */}}
{{- define "foretoken.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end -}}
{{- end -}}
{{- end }}

{{/* What pods of the operator's image have in common. */}}
{{- define "foretoken.pod" -}}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- with .Values.pod.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.pod.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}

{{/* What its containers have in common. */}}
{{- define "foretoken.container" -}}
image: {{ include "foretoken.image" . }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
env:
  - name: RUST_LOG
    value: {{ .Values.log | quote }}
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  - name: POD_NAMESPACE
    valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
# Why it ended, where it is described.
terminationMessagePolicy: FallbackToLogsOnError
resources: {{ toJson .Values.resources }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}
