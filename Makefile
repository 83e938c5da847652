# Pitcrew. `make demo` shows it, `make test` proves it; both set up what is missing.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

export GOFLAGS ?= -buildvcs=false -trimpath
CACHE   := $(or $(PITCREW_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/pitcrew)
TAGS    := grpcnotrace
SCRAPE  := accelerators,remove_all_sd
LDFLAGS := -s -w -X github.com/pitcrew/pitcrew/cmd/version.revision=$(shell git describe --always --dirty 2>/dev/null)
PY      := sandbox/python.sh
OUT     := bench/out

.PHONY: help build gateway accelerators image demo recording test test-full verify golden lint setup clean bench-recovery bench-storm bench-hook bench-latency bench-agent bench-detector gpu-check gpu-bundle fuzz

help: ## this list
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: bin/libdcgm.so.4 ## the three programs, and the stub of libdcgm that the sandbox uses
	go build -tags $(TAGS) -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

gateway: ## the collector with what gateways have beside it: alert rules, and the router before several of them
	go build -tags $(TAGS),gateway -ldflags '$(LDFLAGS)' -o bin/pitcrew-gateway ./cmd/pitcrew-collector

accelerators: ## the collector with the Prometheus receiver, for nodes with other makers' accelerators
	go build -tags $(TAGS),$(SCRAPE) -ldflags '$(LDFLAGS)' -o bin/pitcrew-accelerators ./cmd/pitcrew-collector

IMAGE   ?= localhost/pitcrew:0.1.0
BUILDER ?= $(or $(shell command -v buildah podman docker 2>/dev/null | head -1),docker)
BASE    ?=
image: build gateway ## the image that deploy/chart runs; IMAGE=registry.example/pitcrew:0.1.0 BUILDER="buildah" BASE=another
	$(BUILDER) build $(if $(BASE),--build-arg BASE=$(BASE)) $(if $(findstring docker,$(BUILDER)),,--ignorefile deploy/Containerfile.dockerignore) -f deploy/Containerfile -t $(IMAGE) .

bin/libdcgm.so.4: sandbox/libdcgm/*.c sandbox/libdcgm/nvml/*.c sandbox/libdcgm/build.sh go.mod
	sandbox/libdcgm/build.sh bin

setup: ## control plane of the sandbox, helm and a Python with torch, once, into the cache
	go run ./cmd/pitcrew sandbox setup

demo: build ## a real job loses a GPU and steps again; ARGS="--fault xid79 --keep"
	bin/pitcrew demo $(ARGS)

recording: build ## record the demo for the README
	tools/record.sh docs/img/demo.svg

TIMES := $(OUT)/test-times.tsv
TIMED := tools/timed.sh $(TIMES)
test: ## everything that must hold: vet, Go and Python tests, on a real control plane; ends with where the time went
	mkdir -p $(OUT) && : >$(TIMES)
	$(TIMED) build $(MAKE) --no-print-directory build
	$(TIMED) 'sandbox setup' bin/pitcrew sandbox setup
	$(TIMED) 'go vet' go vet -tags $(TAGS) ./...
	$(TIMED) 'Go tests' go test -tags $(TAGS) -p 2 -timeout 20m ./sandbox/e2e $$(go list ./... | grep -v sandbox/e2e) # the longest first: most of it is waiting
	$(TIMED) 'speed of ranks' go test -tags $(TAGS) ./sandbox/e2e/ranks # compares how fast ranks are: nothing else runs at the same time
	$(TIMED) 'Python tests' $(PY) -m pytest -q python/tests
	@$(TIMED)

# A current torch and training frameworks from PyPI beside the distribution's torch, about 3 GB, once.
TORCH := $(CACHE)/torch-current
$(TORCH)/complete:
	python3 -m venv --clear $(TORCH)
	$(TORCH)/bin/python3 -m pip install -q --disable-pip-version-check torch numpy pytest transformers accelerate lightning
	touch $@

test-full: test $(TORCH)/complete ## test, then the builds of gateways and of other makers' nodes, the hook's tests on a current torch, each fuzz target for FUZZTIME
	go test -tags $(TAGS),gateway,$(SCRAPE) ./collector
	PITCREW_TEST_FULL=1 go test -tags $(TAGS) -run 'Throttles|WholeIncident' ./sandbox/agentbench
	PITCREW_TEST_FULL=1 go test -tags $(TAGS) -run SlowRank ./sandbox/e2e/ranks
	PITCREW_TEST_FULL=1 go test -tags $(TAGS) -run RealRing ./receivers/xidreceiver # overwrites this machine's kernel log: nothing else beside it
	$(TORCH)/bin/python3 -c 'import torch; print("torch", torch.__version__)'
	$(TORCH)/bin/python3 -m pytest -q python/tests
	$(MAKE) fuzz

verify: | bin/pitcrew ## what a change must pass before review: format, vet, lint, language, generated files; changes nothing
	GO_TAGS=$(TAGS) tools/verify.sh

golden: ## rewrite every generated file: golden files, tables in docs/, the ratchet of the language check
	go test -tags $(TAGS) $$(grep -rl --include='*_test.go' 'flag.Bool("update"' . | xargs -n1 dirname | sort -u) -update
	go -C tools run ./language -root .. -update

bin/pitcrew: # the programs are there; only build decides whether they are current
	$(MAKE) build

lint: | bin/pitcrew ## staticcheck and ruff
	go tool -modfile=tools/go.mod staticcheck -tags $(TAGS) ./...
	$(PY) -m ruff check python sandbox/trainer

N ?= 30
LAUNCHER ?= pitcrew
bench-recovery: build ## faults, ranks and workloads in turn; N=30 LAUNCHER=pitcrew|torchrun
	bin/pitcrew sandbox setup
	bin/pitcrew demo bench --n $(N) --launcher $(LAUNCHER) --out $(OUT)/recovery.json

# NODES, GANGS and CASES scale a storm down; REMEDIATOR measures another build; PROFILES=DIR keeps profiles of the leader. A missed goal fails the target, unless ALLOW_MISS=1.
bench-storm: build ## hundreds of nodes fail at once on 5,000 kwok nodes; NODES=500 GANGS=30 CASES="nodes-500 rack" DURATION=30s for a trial
	bin/pitcrew sandbox setup
	go run -tags $(TAGS) ./sandbox/storm/stormbench --nodes $(or $(NODES),5000) --gangs $(or $(GANGS),300) --cases "$(CASES)" --duration $(if $(filter file,$(origin DURATION)),5m,$(DURATION)) \
	  --remediator $(or $(REMEDIATOR),bin/pitcrew-remediator) --out $(OUT)/storm.json $(if $(PROFILES),--profiles $(PROFILES)) $(if $(ALLOW_MISS),--allow-miss)

bench-latency: build ## kernel line → stored event → cordoned node, percentiles; into bench/out/latency.json
	bin/pitcrew sandbox setup
	{ go test -tags $(TAGS) -run '^$$' -bench KernelLineToStoredEvent -benchtime 2000x ./collector; \
	  go test -tags $(TAGS) -run '^$$' -bench AckedEventToAnsweredCordon -benchtime 120x ./remediator; } | go run ./sandbox/benchlatency --out $(OUT)/latency.json

bench-hook: ## microseconds a step on the training thread; STALLS=1 instead: the worst step() while a disk, a socket or the side thread stands still (frozen disks need root)
	$(PY) python/bench/$(if $(STALLS),stalls.py --out $(OUT)/stalls.json,bench_hook.py --out $(OUT)/hook.json)

DURATION ?= 10m
SEEDS ?= 20
bench-agent: bin/libdcgm.so.4 ## what agent and DCGM process cost, beside dcgm-exporter where it can be built; DURATION=60s for a trial (6 minutes), MISSED=ok to go on where a goal is missed; HOSTILE=1 SEEDS=20: among 64 hostile pods
	mkdir -p $(OUT)
ifdef HOSTILE
	HOSTILE=1 SEEDS=$(SEEDS) DURATION=$(if $(filter file,$(origin DURATION)),60s,$(DURATION)) OUT=$(abspath $(OUT))/agent-hostile.json go test -tags $(TAGS) -run '^$$' -bench '^BenchmarkAgentAmongHostilePods$$' -benchtime 1x -timeout 0 ./sandbox/agentbench
else
	DURATION=$(DURATION) MISSED=$(MISSED) OUT=$(abspath $(OUT))/agent.json go test -tags $(TAGS) -run '^$$' -bench '^BenchmarkAgent$$' -benchtime 1x -timeout 0 ./sandbox/agentbench
endif

bench-detector: ## quality of detection on recorded runs; DATA=folder with training-steps, stragglers, minibatch, nab
	@test -n "$(DATA)" || { echo "bench-detector: say where the recorded runs are: make bench-detector DATA=folder"; exit 1; }
	go run ./bench/cmd/detectorbench -data $(DATA)

# No prerequisite: a GPU host has neither Go nor a network. GPU_PYTHON is a Python whose torch sees the GPU.
GPU_PYTHON ?= python3
gpu-check: ## hook and agent on a real GPU (docs/gpu-check.md); a dry run on the CPU if there is none; ARGS="--only kill"
	PYTHONPATH=python$${PYTHONPATH:+:$$PYTHONPATH} $(GPU_PYTHON) -m gpucheck $(ARGS)

gpu-bundle: build ## what a GPU host needs for gpu-check, at most 60 MiB, into bench/out/gpu-check.tar.gz
	PYTHONPATH=python python3 -m gpucheck.bundle --out $(OUT)/gpu-check.tar.gz

# atheris from PyPI, for the fuzz target in Python.
FUZZ := $(CACHE)/fuzz
$(FUZZ)/ready:
	python3 -m venv --clear $(FUZZ)
	$(FUZZ)/bin/python3 -m pip install -q --disable-pip-version-check atheris
	touch $@

FUZZTIME ?= 60s
fuzz: $(FUZZ)/ready ## each fuzz target for FUZZTIME; FUZZFLAGS="-parallel 1" leaves processors to others
	FUZZ_PYTHON=$(FUZZ)/bin/python3 sandbox/fuzz.sh $(FUZZTIME) $(FUZZFLAGS)

clean: ## what builds and benchmarks left here; the cache stays
	rm -rf bin bench/out
