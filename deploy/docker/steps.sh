#!/usr/bin/env bash
# What the images' build stages do, as a script that needs no container engine.
#
#   steps.sh build KIND PREFIX    a virtual environment at PREFIX: the lock's distributions and this project
#   steps.sh check KIND PREFIX    starts it as user 10001 over a tree it cannot write, and asks its health
#
# KIND is edge, edge-jetson, verifier-cpu or verifier-cuda. PREFIX stays where it is made: a virtual environment
# knows its place. PYTHON is the interpreter (python3), PIP_OPTIONS go to pip (an index, a folder of wheels).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
locks=$root/deploy/locks
user=10001

stop() {
	echo "steps.sh: $1" >&2
	exit 1
}

# llama.cpp for machines that are not the one that builds. GGML_NATIVE=OFF leaves the builder's own instructions
# out, AMX among them, whose code GCC 12 gets wrong (deploy/README.md). What is left on x86-64 is AVX2, FMA, F16C and
# BMI2 (x86-64-v3). ARM_ARCH has dot products: every 64-bit ARM core since the Cortex-A76; armv8-a for older ones.
# Without OpenMP llama.cpp brings its own threads, and the image needs no libgomp. LLAVA_BUILD is pictures and
# sound, a quarter of what there is to compile, which nothing here reads; the file turns another quarter off.
cmake_arguments() {
	local arguments="-DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DLLAMA_CURL=OFF -DLLAVA_BUILD=OFF"
	arguments+=" -DCMAKE_PROJECT_llama_cpp_INCLUDE=$root/constraints/llama_cpp.cmake"
	if [[ $(uname -m) == aarch64 ]]; then
		arguments+=" -DGGML_CPU_ARM_ARCH=${ARM_ARCH:-armv8.2-a+dotprod}"
	fi
	if [[ $1 == edge-jetson ]]; then
		arguments+=" -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES:-87}"
	fi
	echo "$arguments"
}

lock_of() {
	case $1 in
	edge | edge-jetson) echo "$locks/edge.txt" ;;
	verifier-cpu | verifier-cuda) echo "$locks/$1.txt" ;;
	*) stop "'$1' is no kind of image; there are edge, edge-jetson, verifier-cpu and verifier-cuda" ;;
	esac
}

# Wheels of everything, held to the lock's hashes, in an environment that is thrown away; then those alone,
# without the network, into one that has no pip. pip's cache may have a wheel that was built here otherwise
# (for this machine's processor alone, say), so it is not asked.
build() {
	local kind=$1 prefix=$2 lock work python=${PYTHON:-python3}
	lock=$(lock_of "$kind")
	[[ ! -e $prefix ]] || stop "$prefix is there already; name a new folder"
	work=$(mktemp -d)
	# shellcheck disable=SC2064  # it is known now, and gone later
	trap "rm -rf '$work'" EXIT
	"$python" -m venv "$work/tools"
	local pip=("$work/tools/bin/python" -m pip --disable-pip-version-check --quiet)
	# shellcheck disable=SC2206  # several words
	local options=(--require-hashes --no-cache-dir ${PIP_OPTIONS:-})
	"${pip[@]}" install "${options[@]}" -r "$locks/build.txt"
	CMAKE_ARGS=$(cmake_arguments "$kind") PATH="$work/tools/bin:$PATH" \
		"${pip[@]}" wheel "${options[@]}" --no-build-isolation --no-deps -w "$work/wheels" -r "$lock"
	source_of "$work/source"
	"${pip[@]}" wheel --no-build-isolation --no-deps --no-index -w "$work/wheels" "$work/source"
	"$python" -m venv --without-pip "$prefix"
	"${pip[@]}" --python "$prefix/bin/python" install --no-index --no-deps --no-compile "$work"/wheels/*.whl
	slim "$prefix"
	# torch brings a file for a newer Python than this one may be; it cannot be compiled, and is never imported.
	"$prefix/bin/python" -m compileall -qq -j 0 --invalidation-mode unchecked-hash "$prefix/lib" || true
	chmod -R go-w "$prefix"
}

# The project's packages, out of a tree that stays as it is.
source_of() {
	mkdir -p "$1/lab/tools"
	(cd "$root" && cp -R pyproject.toml README.md LICENSE forerun edge_client cloud_verifier common schemes simulator \
		"$1" && cp lab/__init__.py "$1/lab" && cp lab/tools/{__init__,wheel}.py "$1/lab/tools")
}

# Without what only compilers and tests read. llama.cpp installs itself twice; `lib` is the copy that is not loaded.
# Of torch's programs one is used, by tensors that processes share.
slim() {
	local packages name
	packages=$(echo "$1"/lib/python3*/site-packages)
	rm -rf "${packages:?}"/{include,bin,lib} "${packages:?}"/torch/{include,share,test}
	find "$packages" -path '*/torch/bin/*' ! -name torch_shm_manager -delete
	find "$packages" -name '*.a' -delete
	for name in numpy sympy networkx; do
		[[ ! -d $packages/$name ]] || find "$packages/$name" -type d -name tests -prune -exec rm -rf {} +
	done
	one_of_each "$packages/llama_cpp/lib"
	if command -v strip >/dev/null; then
		find "$packages/llama_cpp" -name '*.so*' -type f -exec strip --strip-unneeded {} + 2>/dev/null || true
	fi
}

# A wheel cannot hold links, so libx.so, libx.so.0 and libx.so.0.1.2 come as three files, and two of them may be
# loaded. As links again they are one.
one_of_each() {
	local library name whole
	for library in "$1"/*.so; do
		[[ -f $library ]] || continue
		whole=$(printf '%s\n' "$library"* | sort | tail -n 1)
		for name in "$library"*; do
			if [[ $name != "$whole" ]] && cmp -s "$name" "$whole"; then ln -sf "${whole##*/}" "$name"; fi
		done
	done
}

# Exits with 0 if the page of a port answers 200.
ask="import http.client as h, sys
c = h.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=3)
c.request('GET', sys.argv[2])
raise SystemExit(c.getresponse().status != 200)"

# Becomes somebody who is nobody, with no writable folder but one below /tmp (TMPDIR, which all must be able to
# read). In a subshell, whose process it is.
as_user() {
	local home=$1
	shift
	local env=(env -i "PATH=$PATH" "HOME=$home" "TMPDIR=$home" "XDG_STATE_HOME=$home/state" "XDG_DATA_HOME=$home/data"
		"XDG_CONFIG_HOME=$home/config" "XDG_CACHE_HOME=$home/cache" HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1)
	if ((EUID == 0)); then
		exec setpriv --reuid="$user" --regid="$user" --clear-groups --no-new-privs --bounding-set=-all -- "${env[@]}" "$@"
	else
		exec "${env[@]}" "$@"
	fi
}

check() {
	local kind=$1 prefix=$2 home models
	lock_of "$kind" >/dev/null
	home=$(mktemp -d "${TMPDIR:-/tmp}/forerun-check.XXXXXX")
	# shellcheck disable=SC2064  # it is known now, and gone later
	trap "rm -rf '$home'" EXIT
	models=$home/models
	mkdir "$models" "$home/run"
	cp -R "$root/lab/demo_models/target" "$root/lab/demo_models/draft" "$models"
	chmod -R a+rX "$home"
	if ((EUID == 0)); then chown "$user:$user" "$home/run"; fi
	(cd / && serve "$kind" "$prefix" "$models" "$home")
	[[ -z $(find "$prefix" -newer "$home/began" -print -quit) ]] || stop "something was written below $prefix"
	echo "steps.sh: $kind at $prefix starts as user $user, is well, writes nothing but /tmp, and ends on SIGTERM"
}

serve() {
	local kind=$1 prefix=$2 models=$3 home=$4 port
	[[ -z $(as_user "$home/run" find "$prefix" -writable ! -type l -print -quit) ]] || ((EUID)) \
		|| stop "user $user can write below $prefix"
	port=$((20000 + RANDOM % 10000))
	local python=("$prefix/bin/python") page=/livez
	local words=("${python[@]}" -m forerun verify --model "$models/target" --listen 127.0.0.1:0
		--http "127.0.0.1:$port" --threads 1)
	if [[ $kind == edge* ]]; then
		page=/healthz
		words=("${python[@]}" -m forerun edge --draft "$models/draft/draft-q8_0.gguf" --verifier 127.0.0.1:1
			--listen "127.0.0.1:$port")
	fi
	touch "$home/began"
	(as_user "$home/run" "${words[@]}") &
	local server=$! left=240
	# shellcheck disable=SC2064  # it is known now; whatever ends this script ends it, too
	trap "kill -TERM $server 2>/dev/null || true" EXIT
	until (as_user "$home/run" "${python[@]}" -c "$ask" "$port" "$page" 2>/dev/null); do
		((left--)) || stop "it is not well after some minutes"
		kill -0 "$server" 2>/dev/null || stop "it ended by itself"
		sleep 0.5
	done
	kill -TERM "$server"
	wait "$server" || stop "it ended with code $?"
	! (as_user "$home/run" "${python[@]}" -c "$ask" "$port" "$page" 2>/dev/null) || stop "its health outlives it"
}

[[ ${BASH_SOURCE[0]} == "$0" ]] || return 0 # a test calls its functions
(($# == 3)) || stop "say steps.sh build KIND PREFIX, or steps.sh check KIND PREFIX"
case $1 in
build | check) "$1" "$2" "$3" ;;
*) stop "'$1' is no step; there are build and check" ;;
esac
