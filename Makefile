# What can be done here; `make` alone lists it.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
FUZZ_SECONDS ?= 600
FUZZ_TARGETS := $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
BINARY := $(or $(CARGO_TARGET_DIR),target)/release/slipstream
GATE := $(if $(wildcard bench/gate.py),gate)

# Packages are installed without byte code: where none may be kept, each of many short programs compiles them
# again.
unexport PYTHONDONTWRITEBYTECODE

# The compiler asks for huge pages under what it allocates, which saves a tenth of its time. It reads this on
# Linux; where there are no huge pages nothing changes.
export MALLOC_CONF ?= thp:always

# Tests that read captures fail without them, unless they are told that there are none.
ifeq ($(wildcard ../shared/traces),)
export SLIPSTREAM_TRACES ?= none
endif

.PHONY: help build wheels deb package dpdk dpdk-unit dpdk-suite install-c demo test check deps fmt clippy unit suite beside alone hardware synthesis hardware-deps docs deny deny-if-installed bench speed fuzz soak book doc clean $(GATE)

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 16

build: ## the release binary, target/release/slipstream
	$(CARGO) build --release --locked -p slipstream-cli

dpdk: ## the release binary with ports of DPDK (needs libdpdk-dev), target/dpdk/release/slipstream
	$(CARGO) build --release --locked -p slipstream-cli --features dpdk --target-dir $(or $(CARGO_TARGET_DIR),target)/dpdk

dpdk-unit: ## clippy and tests of the crate with the ports of DPDK
	$(CARGO) clippy -p slipstream-dpdk --features libdpdk --all-targets --locked -- -D warnings
	$(CARGO) test -p slipstream-dpdk --features libdpdk --locked

dpdk-suite: build ## the ports of DPDK over its virtual devices, beside other ports (builds `dpdk`; as root)
	"$$(ci/python.sh)" tests/check_dpdk.py $(BINARY)

wheels: ## the Python package as a wheel for CPython 3.9 and later, tried in a fresh environment, in target/wheels
	ci/wheels.sh $(or $(CARGO_TARGET_DIR),target)/wheels

deb: build ## a Debian package of the command, in target/
	ci/deb.sh $(BINARY) $(or $(CARGO_TARGET_DIR),target)

package: ## every crate as it would be published, built from its package
	$(CARGO) publish --dry-run --workspace --exclude slipstream-capi --exclude slipstream-py --locked

PREFIX ?= /usr/local

install-c: ## the C library, its header and its pkg-config file, in PREFIX (default /usr/local)
	$(CARGO) build --release --locked -p slipstream-capi
	ci/install_c.sh "$(dir $(BINARY))" "$(PREFIX)"

demo: build ## reframe the bundled trace: locality, trains, delay and futile wait, before and after
	@ci/demo.sh $(BINARY) traces/campus.pcap.gz

# Lanes, since neither compilers nor tests keep all cores busy all the time: crates are tested in target/debug
# while the binary is built in target/release and judged by others; what they need is fetched meanwhile, and
# who needs it waits for it. Simulations of the hardware take what time of cores the others leave. What takes
# times by the wall clock comes when all are done.
test: ## every test, with what it needs installed
	@MAKE="$(MAKE)" python3 ci/lanes.py "deps unit" "build beside" "deps hardware-deps hardware"
	@$(MAKE) --no-print-directory alone
	@echo "make test: everything passed"

check: fmt ## what is looked at without a test: form, warnings, licences, instruction counts, synthesis of hw/
	@MAKE="$(MAKE)" python3 ci/lanes.py "clippy doc deny-if-installed" "deps build $(GATE)" "deps hardware-deps synthesis"
	@echo "make check: everything passed"

deps: ## what the tests need, installed with apt-get where that is possible
	@ci/deps.sh

fmt: ## is the code formatted?
	$(CARGO) fmt --all --check

clippy: ## is it free of warnings?
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

unit: ## tests of the crates, those in their documentation and some inputs of fuzz targets included
	RUSTC_WRAPPER="$${RUSTC_WRAPPER:-$(CURDIR)/ci/rustc.sh}" $(CARGO) test --workspace --locked

suite: build ## tests of the binary: other readers check what it writes
	"$$(ci/python.sh)" tests/run_all.py $(BINARY)

hardware: build hardware-deps ## the block in hw/: lint, tests, proofs, co-simulation with the binary
	$(MAKE) --no-print-directory -C hw test BINARY=$(abspath $(BINARY))

synthesis: hardware-deps ## the block in hw/ as gates and as cells of an FPGA, with few entries
	$(MAKE) --no-print-directory -C hw synth-small

# The lock is that of ci/deps.sh: one of them installs at a time.
hardware-deps:
	@mkdir -p $(or $(CARGO_TARGET_DIR),target)
	@flock $(or $(CARGO_TARGET_DIR),target)/deps.lock $(MAKE) --no-print-directory -C hw deps

# What `test` makes of `suite` and `docs`: all of it, in another order.
beside: build deps
	python=$$(ci/python.sh); "$$python" tests/run_all.py --beside $(BINARY) --and "$$python ci/docs.py"

alone: build
	"$$(ci/python.sh)" tests/run_all.py --alone $(BINARY)

docs: build ## does the documentation say what is so? links, commands, their output
	"$$(ci/python.sh)" ci/docs.py $(BINARY)

ifneq ($(GATE),)
gate: build ## instructions and cache misses a packet, held against the record
	"$$(ci/python.sh)" bench/gate.py --binary $(BINARY)
endif

deny: ## licences, advisories and origin of dependencies (needs cargo-deny)
	$(CARGO) deny --workspace --all-features check

deny-if-installed:
	@if command -v cargo-deny > /dev/null; then $(MAKE) --no-print-directory deny; \
	else echo "cargo-deny is not installed: licences and advisories not checked"; fi

bench: ## Criterion benchmarks; they say how long, the gate says how many instructions
	$(CARGO) bench --workspace --locked

speed: build ## the speed tables of the book, measured on this machine
	"$$(ci/python.sh)" bench/speed.py --binary $(BINARY)

fuzz: ## every fuzz target for FUZZ_SECONDS (default 600) each; needs cargo-fuzz and a nightly toolchain
	python3 ci/fuzz_seeds.py
	for target in $(FUZZ_TARGETS); do \
	    echo "== $$target"; \
	    $(CARGO) +nightly fuzz run "$$target" -- -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048; \
	done

SOAK_SECONDS ?= 3600
HOST := $(shell rustc -vV 2> /dev/null | sed -n 's/^host: //p')
# Miri takes minutes for what takes a millisecond: the code with `unsafe` in it, and few cases of each
# property.
MIRI_TESTS := pool:: payload_table::
# Crates with `unsafe` in them, and those that others reach it by.
SANITIZED := $(addprefix -p slipstream-,core functions io reframe slice sketch) -p slipstream

soak: build ## a week's worth: fuzzing for SOAK_SECONDS (default 3600) a target, sanitizers, Miri (needs a nightly toolchain)
	SLIPSTREAM_LIVE_PACKETS=1000000 "$$(ci/python.sh)" tests/check_live.py $(BINARY) --only stream
	SLIPSTREAM_RELOADS=1800 "$$(ci/python.sh)" tests/check_live.py $(BINARY) --only reloads
	$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=$(SOAK_SECONDS)
	for sanitizer in address thread; do \
	    echo "== $$sanitizer sanitizer"; \
	    sanitized() { \
	        RUSTFLAGS="-Zsanitizer=$$sanitizer" $(CARGO) +nightly test -Zbuild-std --target $(HOST) \
	            --target-dir "target/$$sanitizer" "$$@"; \
	    }; \
	    sanitized $(SANITIZED) --lib; \
	    sanitized -p slipstream --test engine -- shm:: slice:: workers::; \
	done
	RUSTFLAGS="-Zsanitizer=address" $(CARGO) +nightly test -Zbuild-std --target $(HOST) \
	    --target-dir target/address -p slipstream-capi --lib --test calls
	PROPTEST_CASES=4 MIRIFLAGS="-Zmiri-disable-isolation" $(CARGO) +nightly miri test -p slipstream-core -p slipstream-slice --lib -- $(MIRI_TESTS)
	MIRIFLAGS="-Zmiri-disable-isolation" $(CARGO) +nightly miri test -p slipstream-capi --lib --test calls

book: ## the book, in book/book (needs mdbook)
	mdbook build book

doc: ## documentation of the crates
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --workspace --exclude slipstream-cli --no-deps --document-private-items --locked

clean: ## throws away what was built
	$(CARGO) clean
	rm -rf book/book
