#!/usr/bin/env bash
# Writes the digests of all base images into bases.env: deploy/docker/pin.sh
# Needs docker with buildx, and a network that reaches the registries.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

digest_of() {
	docker buildx imagetools inspect "$1" --format '{{.Manifest.Digest}}'
}

new=$(mktemp)
trap 'rm -f "$new"' EXIT
while IFS= read -r line; do
	case $line in
	'' | '#'*) printf '%s\n' "$line" ;;
	*)
		image=${line#*=}
		image=${image%% *}
		digest=$(digest_of "$image")
		if [[ ! $digest =~ ^sha256:[0-9a-f]{64}$ ]]; then
			echo "pin.sh: the registry has no digest of $image (it says: $digest)" >&2
			exit 1
		fi
		printf '%s=%s %s\n' "${line%%=*}" "$image" "$digest"
		;;
	esac
done <bases.env >"$new"
cat "$new" >bases.env
