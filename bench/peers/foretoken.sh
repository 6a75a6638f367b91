#!/bin/sh
# foretoken.sh PORT THREADS K DTYPE : serves the shipped pair for one measurement, router, target and draft as processes of their own.
# DTYPE is float32, bfloat16 or int8; K = 0 is plain decoding. Cores are those it is started on.
set -eu
PORT=$1 THREADS=$2 K=$3 DTYPE=$4
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
BIN=${FORETOKEN:-${CARGO_TARGET_DIR:-$ROOT/target}/release/foretoken}
STATE=$(mktemp -d)
TYPE=Speculative
[ "$K" -gt 0 ] || { TYPE=Autoregressive; K=1; }
sed -e "s|\.\./models|$ROOT/models|; s|dtype: bfloat16|dtype: $DTYPE|; s|type: Speculative|type: $TYPE|; s|servedName: story-10m|servedName: foretoken|; s|lookahead: 8.*|lookahead: $K|; s|adaptive: true|adaptive: false|" \
    "$ROOT/examples/laptop.yaml" > "$STATE/pair.yaml"
[ "$TYPE" = Speculative ] || sed -i '/^      speculative:/,/adaptive:/d' "$STATE/pair.yaml"
exec "$BIN" up -f "$STATE/pair.yaml" --port "$PORT" --state-dir "$STATE" --target-threads "$THREADS" --draft-threads 1 --no-prefix-cache
