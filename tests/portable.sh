#!/bin/sh
# Compiles everything for another processor and another system, as far as types: what is left out of builds
# for this one (`cfg`) is compiled nowhere else. Libraries in C are taken for compiled, since nothing is
# linked. What is to be pure is compiled for a processor without a system, for which there is no `std`.
set -eu
target=aarch64-apple-darwin
variable=aarch64_apple_darwin
bare=x86_64-unknown-none

if ! rustup target add "$target" "$bare"; then
    echo "NOT RUN: rustup cannot install $target and $bare" >&2
    exit 0
fi
cargo check -p foretoken-speculation --locked --target "$bare"
# Always the same place: what depends on a compiler is compiled again if that has moved.
mkdir -p "${CARGO_TARGET_DIR:-target}/portable"
tools=$(cd "${CARGO_TARGET_DIR:-target}/portable" && pwd)
cat >"$tools/cc" <<'END'
#!/bin/sh
while [ $# -gt 1 ]; do
    [ "$1" = -o ] && : >"$2"
    shift
done
END
cat >"$tools/ar" <<'END'
#!/bin/sh
for argument; do
    case $argument in *.a) : >"$argument" ;; esac
done
END
chmod +x "$tools/cc" "$tools/ar"
env "CC_$variable=$tools/cc" "CXX_$variable=$tools/cc" "AR_$variable=$tools/ar" RUSTFLAGS="-D warnings" \
    cargo check --workspace --all-targets --locked --target "$target"
