{{- /* What values.schema.json cannot say: values that do not go together. Prints nothing. */ -}}
{{- define "forerun.check" -}}
{{- if and (eq .profile "cpu-demo") (has "mtls" .addons) -}}
{{- fail "addons: mtls makes certificates, and the profile cpu-demo speaks plain text; use the profile gpu" -}}
{{- end -}}
{{- if and (or (eq .profile "keda") (has "keda" .addons)) (not (kindIs "invalid" .replicas)) -}}
{{- fail "replicas: keda decides the number; leave it out, or override ScaledObject/forerun-verifier" -}}
{{- end -}}
{{- end -}}

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
{{- if eq $object.kind "Job" -}}
{{- include "forerun.job" (dict "object" $object "values" $values) -}}
{{- end -}}
{{- else if eq $object.kind "LeaderWorkerSet" -}}
{{- $group := $object.spec.leaderWorkerTemplate -}}
{{- range list $group.leaderTemplate $group.workerTemplate -}}
{{- include "forerun.pod" (dict "pod" .spec "values" $values "kind" $object.kind) -}}
{{- end -}}
{{- else if and (eq $object.kind "ScaledObject") (eq $values.profile "leaderworkerset") -}}
{{- $target := dict "apiVersion" "leaderworkerset.x-k8s.io/v1" "kind" "LeaderWorkerSet" "name" "forerun-group" -}}
{{- $_ := set $object.spec "scaleTargetRef" $target -}}
{{- else if eq $object.kind "PersistentVolumeClaim" -}}
{{- include "forerun.volume" (dict "spec" $object.spec "model" $values.model) -}}
{{- else if and (eq $object.kind "ConfigMap") (eq $object.metadata.name "forerun-model") -}}
{{- include "forerun.model" (dict "data" $object.data "model" $values.model) -}}
{{- end -}}
{{- end -}}

{{- /* A Job cannot be changed: another image or another model is another Job, and Helm removes the one before. */ -}}
{{- define "forerun.job" -}}
{{- $name := .object.metadata.name -}}
{{- $changes := get .values.overrides (printf "Job/%s" $name) -}}
{{- $parts := list .object.spec (pick .values.model "repository" "revision" "sha256sums" "endpoint") $changes -}}
{{- $_ := set .object.metadata "name" (printf "%s-%s" $name (sha256sum (toJson $parts) | trunc 8)) -}}
{{- end -}}

{{- define "forerun.model" -}}
{{- $_ := set .data "MODEL" .model.repository -}}
{{- $_ := set .data "REVISION" .model.revision -}}
{{- $_ := set .data "SHA256SUMS" .model.sha256sums -}}
{{- if .model.endpoint -}}
{{- $_ := set .data "HF_ENDPOINT" .model.endpoint -}}
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
