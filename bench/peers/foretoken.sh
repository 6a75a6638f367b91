#!/bin/sh
# foretoken.sh PORT THREADS K DTYPE : serves the shipped pair for one measurement; K = 0 is plain decoding.
set -eu
PORT=$1 THREADS=$2 K=$3 DTYPE=$4
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
BIN=${FORETOKEN:-${CARGO_TARGET_DIR:-$ROOT/target}/release/foretoken}
DIR=$(mktemp -d)
echo "$BIN $PORT $THREADS $K $DTYPE $DIR"
