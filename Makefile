# `make up` serves the models of this repository, `make test` runs every check and test.
# Needs the Rust toolchain, make, git and Python 3 with venv; everything else is fetched by cargo and pip.

PORT ?= 8000
MODEL ?= examples/laptop.yaml
# Seconds that each fuzz target runs.
FUZZ_SECONDS ?= 60

CARGO_TARGET_DIR ?= target
export CARGO_TARGET_DIR
VENV := $(CARGO_TARGET_DIR)/venv
# Where `make bench-peers` puts the other engines, and how many cores it measures on.
PEERS ?= $(CARGO_TARGET_DIR)/peers
THREADS ?= 1

.NOTPARALLEL:
.PHONY: up test tools format lint doc portable executable rust-build rust-test computing-test service-test \
	beside-cluster client-test script-test fuzz bench plots bench-peers \
	image cluster cluster-down cluster-test api-test telemetry-test api

up:
	cargo build --release --locked -p foretoken
	exec $(CARGO_TARGET_DIR)/release/foretoken up -f $(MODEL) --port $(PORT)

# Ends with the closing lines of the Rust tests.
test: format script-test telemetry-test client-test beside-cluster service-test

# The tests of the cluster mostly wait; meanwhile is done what they do not need and what does not mind to wait. Only
# when their own programs are built, which takes all processors, and they must not wait for it as a build of their
# own would.
beside-cluster: executable
	python3 tests/cluster prepare
	python3 tests/beside.py --behind '$(MAKE) rust-build lint doc portable computing-test' \
		'$(MAKE) -o executable api-test' '$(MAKE) -o executable -o api-test cluster-test'

# They belong to the toolchain, but not to every installation of it.
tools:
	@{ cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1 || rustup component add rustfmt clippy

format: tools
	cargo fmt --all --check

lint: tools
	cargo clippy --workspace --all-targets --locked -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
	cargo test --workspace --locked --doc

# Another processor and another system.
portable:
	sh tests/portable.sh

# The executable, with a test beside it: where no test is built, dependencies have fewer features and would
# be built twice.
executable:
	cargo build --workspace --bins --test dependencies --locked

# One build for everything, so that all of it shares its dependencies.
rust-build:
	cargo build --workspace --all-targets --locked

rust-test: computing-test service-test

# The tests of all crates from without, by name.
TESTS := $(notdir $(basename $(wildcard */tests/*.rs lib/*/tests/*.rs)) \
	$(patsubst %/main.rs,%,$(wildcard */tests/*/main.rs lib/*/tests/*/main.rs)))
# In these no time passes: however slowly they run, they find the same.
COMPUTING := allocation batching golden objects parity spoilt
# These mostly wait, for minutes.
WAITING := end_to_end server

computing-test: rust-build
	cargo test --workspace --locked $(addprefix --test ,$(COMPUTING))

# All others.
service-test: rust-build
	FORETOKEN_EXECUTABLE=$(abspath $(CARGO_TARGET_DIR))/debug/foretoken python3 tests/beside.py \
		'cargo test --workspace --locked --lib --bins $(addprefix --test ,$(filter-out $(COMPUTING) $(WAITING),$(TESTS)))' \
		$(foreach test,$(WAITING),'cargo test --workspace --locked --test $(test)')

# What can be checked of the cluster and the image without starting or building either, and of a script.
script-test:
	python3 -m unittest discover -s tests
	python3 -m unittest discover -s tests/cluster

# The official OpenAI client against `foretoken up`.
client-test: executable $(VENV)/clients
	$(VENV)/bin/python tests/clients/with_server.py $(CARGO_TARGET_DIR)/debug/foretoken \
		$(VENV)/bin/python tests/clients/openai_client.py

$(VENV)/clients: tests/clients/requirements.txt
	python3 -m venv $(VENV) || { apt-get install --yes --quiet=2 python3-venv >&2 && rm -rf $(VENV) && python3 -m venv $(VENV); } || { rm -rf $(VENV); \
		echo "the test of the OpenAI client needs Python with venv and pip: install python3-venv (Debian, Ubuntu)" >&2; exit 1; }
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

fuzz:
	FORETOKEN_FUZZ_SECONDS=$(FUZZ_SECONDS) cargo test --release --locked -p foretoken-tests --test fuzz -- --nocapture

bench:
	cargo build --release --locked -p foretoken
	for what in verify protocol decode ssd "ssd --dtype f32 --name ssd-f32" distant trees sharing batch router sim \
		"plots --plots bench/plots"; do \
		$(CARGO_TARGET_DIR)/release/foretoken bench $$what --results bench/results || exit 1; \
	done

# Draws what is in bench/results.
plots:
	cargo build --release --locked -p foretoken
	$(CARGO_TARGET_DIR)/release/foretoken bench plots --results bench/results --plots bench/plots

# See bench/peers/README.md; THREADS=2 measures on two cores.
bench-peers:
	cargo build --release --locked -p foretoken
	mkdir -p $(PEERS)
	sh bench/peers/setup.sh $(PEERS)
	sh bench/peers/run.sh $(PEERS) $(THREADS) --extra-ks 0,3,5,7 \
		--spawn 'bench/peers/foretoken.sh {port} {threads} {k} float32' --label foretoken:f32 \
		--spawn 'bench/peers/foretoken.sh {port} {threads} {k} bfloat16' --label foretoken:bf16 \
		--spawn 'bench/peers/foretoken.sh {port} {threads} {k} int8' --label foretoken:int8

# The image of foretoken and images of the shipped models, without Docker; image/Dockerfile makes the same with it.
image:
	cargo build --release --locked -p foretoken
	python3 image/image.py --executable $(CARGO_TARGET_DIR)/release/foretoken --output $(CARGO_TARGET_DIR)/image/foretoken.tar
	for model in target draft; do python3 image/image.py --model models/$$model --name story-$$model:dev \
		--output $(CARGO_TARGET_DIR)/image/story-$$model.tar || exit 1; done

# What is made from the types of the API; tests fail where it is not what they say.
api:
	cargo build --locked -p foretoken
	$(CARGO_TARGET_DIR)/debug/foretoken crd --dir charts/foretoken/definitions
	$(CARGO_TARGET_DIR)/debug/foretoken crd --reference > docs/api.md

# A real Kubernetes on this machine with foretoken on it, see docs/cluster.md.
cluster: image
	python3 tests/cluster serve --images $(CARGO_TARGET_DIR)/image

cluster-down:
	python3 tests/cluster down

# An API server alone, without root: its verdicts on objects of our kinds are those of `foretoken check`, and
# targets that span pods become groups with the real controller of such groups.
api-test: executable
	FORETOKEN_EXECUTABLE=$(abspath $(CARGO_TARGET_DIR))/debug/foretoken python3 tests/cluster test-api
	python3 tests/cluster/groups.py --operator $(CARGO_TARGET_DIR)/debug/foretoken

# Traces sent to the OpenTelemetry collector, and alert rules as Prometheus reads them.
telemetry-test: executable
	FORETOKEN_EXECUTABLE=$(abspath $(CARGO_TARGET_DIR))/debug/foretoken python3 tests/cluster test-telemetry

# Starts the cluster if need be; with KUBECONFIG and FORETOKEN_TEST_CLUSTER=existing, on that one.
cluster-test: api-test
	FORETOKEN_EXECUTABLE=$(abspath $(CARGO_TARGET_DIR))/debug/foretoken python3 tests/cluster test
