#!/bin/sh
# setup.sh WORKDIR : prepares all peers in WORKDIR from nothing, with the models and prompts of this repository.
# Needs: Debian with apt (any release; nothing is installed system-wide), python3 with venv, a C compiler for bw.  About a minute, about 1 GB.
# GGML_CPU=name picks another CPU backend (default: the first of sapphirerapids, cooperlake, icelake, cascadelake, skylakex, haswell that fits).
# WITHOUT="mistralrs nncf" leaves parts out.
set -eu
[ $# -eq 1 ] || { echo "usage: setup.sh WORKDIR" >&2; exit 2; }
HERE=$(cd "$(dirname "$0")" && pwd); mkdir -p "$1"; W=$(cd "$1" && pwd); ROOT=$(cd "$HERE/../.." && pwd)
without() { case " ${WITHOUT:-} " in *" $1 "*) return 0;; esac; return 1; }

echo "== python packages"
[ -x "$W/venv/bin/python" ] || python3 -m venv "$W/venv"
PIP="$W/venv/bin/pip -q --disable-pip-version-check install"
$PIP "openvino-genai==2026.4.1.*" "openvino==2026.4.1" gguf
$PIP --no-deps tokenizers          # its hub client is not needed to read a local tokenizer.json
without nncf || $PIP nncf
rm -f "$W/have-mistralrs"
without mistralrs || { $PIP --no-deps mistralrs && touch "$W/have-mistralrs"; }

echo "== llama.cpp, Debian sid packages unpacked beside the system"
A="$W/sid/apt"; mkdir -p "$A/lists/partial" "$A/archives/partial" "$W/sid/debs" "$W/sid/root"
MIRROR=$(cat /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null | sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\) .*/\2/p' | grep -m1 debian)
KEY=$(ls /usr/share/keyrings/debian-archive-keyring.* | head -1)
printf 'Types: deb\nURIs: %s\nSuites: sid\nComponents: main\nSigned-By: %s\n' "$MIRROR" "$KEY" > "$A/sid.sources"
cat > "$A/apt.conf" <<C
Dir::Etc::sourcelist "$A/sid.sources";
Dir::Etc::sourceparts "$A/none";
Dir::State::lists "$A/lists";
Dir::Cache "$A";
Dir::Cache::archives "$A/archives";
APT::Get::List-Cleanup "0";
C
APT_CONFIG="$A/apt.conf"; export APT_CONFIG
if [ ! -e "$W/sid/root/usr/bin/llama-server" ]; then
  apt-get -qq update
  ( cd "$W/sid/debs" && apt-get -qq download llama.cpp-tools libllama0 libggml0 libc6 libstdc++6 libgcc-s1 libgomp1 libssl3t64 )
  for d in "$W"/sid/debs/*.deb; do dpkg -x "$d" "$W/sid/root"; done
fi
unset APT_CONFIG
has() { grep -qw "$1" /proc/cpuinfo; }
if [ -z "${GGML_CPU:-}" ]; then
  if has amx_int8 && has avx512_fp16 && has avx512_bf16; then GGML_CPU=sapphirerapids
  elif has avx512_bf16 && has avx512_vnni; then GGML_CPU=cooperlake
  elif has avx512_vbmi && has avx512_vnni; then GGML_CPU=icelake
  elif has avx512_vnni; then GGML_CPU=cascadelake
  elif has avx512f; then GGML_CPU=skylakex
  else GGML_CPU=haswell; fi
fi
cat > "$W/llama.sh" <<C
#!/bin/sh
# llama.sh TOOL ARGS.. : a llama.cpp tool through the loader and C library of its own packages
R=\$(cd "\$(dirname "\$0")/sid/root" && pwd); L=\$(dirname "\$(find "\$R/usr/lib" -name libllama.so.0 | head -1)")
unset LD_LIBRARY_PATH
export GGML_BACKEND_PATH="\${GGML_BACKEND_PATH:-\$L/ggml/backends0/libggml-cpu-\${GGML_CPU:-$GGML_CPU}.so}"
t=\$1; shift
exec "\$L/ld-linux-x86-64.so.2" --library-path "\$L:\$L/llama:\$L/ggml/backends0" "\$R/usr/bin/\$t" "\$@"
C
chmod +x "$W/llama.sh"

echo "== models (ggml backend: $GGML_CPU)"
PY="$W/venv/bin/python"; mkdir -p "$W/gguf" "$W/ir" "$W/hf"
for m in target draft; do
  ln -sfn "$ROOT/models/$m" "$W/hf/$m"
  $PY "$HERE/convert.py" "$ROOT/models/$m" "$W/gguf/$m" >/dev/null
  for k in f16 q8_0; do $PY "$HERE/to_ir.py" "$W/gguf/$m-$k.gguf" "$W/ir/$m-$k" >/dev/null; done
  without nncf || $PY "$HERE/to_int8.py" "$W/ir/$m-f16" "$W/ir/$m-int8" >/dev/null
done
$PY "$HERE/make_prompts.py" "$ROOT/models/target/tokenizer.json" "$ROOT/bench/data/gsm8k_test.jsonl" "$W/prompts.json"
cc -O3 -march=native -pthread "$HERE/bw.c" -o "$W/bw" || echo "no bandwidth program (no C compiler?)"
echo "== versions" | tee "$W/versions.txt"
{ $PY -m pip list 2>/dev/null | grep -i -E '^(openvino|nncf|mistralrs|gguf|tokenizers|numpy)'; ls "$W/sid/debs" | sed 's/_amd64.deb//'; echo "ggml backend $GGML_CPU"; } | tee -a "$W/versions.txt"
du -sh "$W" | cut -f1
