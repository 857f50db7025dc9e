{{- /* Changes an object in place to what the values say. Prints nothing. */ -}}
{{- define "forerun.adjust" -}}
{{- $object := .object -}}
{{- $values := .values -}}
{{- if has $object.kind (list "Deployment" "LeaderWorkerSet") -}}
{{- if .scaled -}}
{{- $_ := unset $object.spec "replicas" -}}
{{- else if not (kindIs "invalid" $values.replicas) -}}
{{- $_ := set $object.spec "replicas" $values.replicas -}}
{{- end -}}
{{- end -}}
{{- if has $object.kind (list "Deployment" "Job") -}}
{{- include "forerun.pod" (dict "pod" $object.spec.template.spec "values" $values "kind" $object.kind) -}}
{{- else if eq $object.kind "LeaderWorkerSet" -}}
{{- $group := $object.spec.leaderWorkerTemplate -}}
{{- range list $group.leaderTemplate $group.workerTemplate -}}
{{- include "forerun.pod" (dict "pod" .spec "values" $values "kind" $object.kind) -}}
{{- end -}}
{{- else if eq $object.kind "PersistentVolumeClaim" -}}
{{- include "forerun.volume" (dict "spec" $object.spec "model" $values.model) -}}
{{- else if and (eq $object.kind "ConfigMap") (eq $object.metadata.name "forerun-model") $values.model.manifest -}}
{{- $_ := set $object.data "manifest.json" (printf "%s\n" (toJson $values.model.manifest)) -}}
{{- end -}}
{{- end -}}

{{- define "forerun.volume" -}}
{{- if .model.storageClassName -}}
{{- $_ := set .spec "storageClassName" .model.storageClassName -}}
{{- end -}}
{{- if .model.size -}}
{{- $_ := set .spec.resources.requests "storage" .model.size -}}
{{- end -}}
{{- if .model.accessModes -}}
{{- $_ := set .spec "accessModes" .model.accessModes -}}
{{- end -}}
{{- end -}}

{{- define "forerun.pod" -}}
{{- $pod := .pod -}}
{{- $values := .values -}}
{{- range concat (default list $pod.initContainers) $pod.containers -}}
{{- include "forerun.image" (dict "container" . "image" $values.image) -}}
{{- end -}}
{{- if $values.image.pullSecrets -}}
{{- $_ := set $pod "imagePullSecrets" $values.image.pullSecrets -}}
{{- end -}}
{{- if ne .kind "Job" -}}
{{- include "forerun.verifier" (dict "pod" $pod "values" $values) -}}
{{- end -}}
{{- end -}}

{{- define "forerun.verifier" -}}
{{- $pod := .pod -}}
{{- $values := .values -}}
{{- $container := first $pod.containers -}}
{{- $_ := set $container "args" (concat $container.args $values.extraArgs) -}}
{{- if $values.resources -}}
{{- $_ := set $container "resources" $values.resources -}}
{{- end -}}
{{- if $values.runtimeClassName -}}
{{- $_ := set $pod "runtimeClassName" $values.runtimeClassName -}}
{{- end -}}
{{- if $values.nodeSelector -}}
{{- $_ := set $pod "nodeSelector" $values.nodeSelector -}}
{{- end -}}
{{- if $values.tolerations -}}
{{- $_ := set $pod "tolerations" (concat (default list $pod.tolerations) $values.tolerations) -}}
{{- end -}}
{{- range $pod.volumes -}}
{{- if and (eq .name "tls") $values.tls.secretName -}}
{{- $_ := set .secret "secretName" $values.tls.secretName -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "forerun.image" -}}
{{- $parts := splitList ":" .container.image -}}
{{- $repository := default (first $parts) .image.repository -}}
{{- $tag := default (last $parts) .image.tag -}}
{{- if .image.digest -}}
{{- $_ := set .container "image" (printf "%s@%s" $repository .image.digest) -}}
{{- else -}}
{{- $_ := set .container "image" (printf "%s:%s" $repository $tag) -}}
{{- end -}}
{{- if .image.pullPolicy -}}
{{- $_ := set .container "imagePullPolicy" .image.pullPolicy -}}
{{- end -}}
{{- end -}}
