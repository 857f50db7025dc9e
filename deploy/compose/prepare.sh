#!/bin/sh
# What deploy/compose.yaml needs before its first start: certificates of a month, the edge's token, and who is to run
# it all. Run from a clone with `forerun` installed (or FORERUN=/path/to/forerun); a second run changes nothing.
set -eu
cd "$(dirname "$0")"

if [ ! -d certs ]; then
	# One certificate for the three that are asked for by name: verifier, broker and the edge's API.
	${FORERUN:-forerun} certs dev --out certs --days 30 --tenant demo --device edge \
		--name verifier,broker,edge,localhost,127.0.0.1
fi
if [ ! -s certs/edge-token ]; then
	(umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >certs/edge-token)
fi
who="$(id -u):$(id -g)"
if [ "$(id -u)" = 0 ]; then
	# Nothing runs as root, not even for root.
	who=10001:10001
	chown -R "$who" certs
fi
echo "FORERUN_USER=$who" >../.env
echo "deploy/compose/certs and deploy/.env are there: docker compose -f deploy/compose.yaml up -d"
