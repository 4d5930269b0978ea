# The README lists the usual commands; docs/contribute/contributing.md describes the build. All
# targets work from a fresh clone: hack/deps.sh installs missing Debian packages, and
# hack/tool.sh builds the pinned Go tools.

SHELL := bash
.SHELLFLAGS := -o errexit -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VERSION ?= $(shell git describe --tags --always --dirty --abbrev=12 2>/dev/null || echo dev)
MODULE  := github.com/berthnet/berth
LDFLAGS := -s -w -X $(MODULE)/internal/version.Version=$(VERSION)

# Programs, tests, linters and generators are built with the same flags and, except with
# -race, without cgo, so that every package is compiled only once, in any clone.
export CGO_ENABLED := 0
ifeq ($(MAKELEVEL),0)
export GOFLAGS := $(strip -trimpath -tags=grpcnotrace $(GOFLAGS))
endif

# make demo: MODE is the mode of the cluster. "node": each node's daemon calls EC2.
# "operator": one operator calls EC2 for all nodes. "pool": addresses come from address
# pools. "egress": like pool, with egress gateways. "port": ports of a real Neutron.
# "policy": like node, with network policies. "migrate": a node moves from the Amazon VPC
# CNI and back, or with FROM=coil a recorded node of Coil. All
# modes except node build a Kubernetes control plane on first use, unless a usable one
# is installed. "cluster" is a complete cluster with containerd, kubelet and kube-proxy
# on its nodes; CLUSTER_MODE is its mode, and CONTAINERD=2 uses containerd 2 instead of
# Debian's. KEEP=1 keeps the lab running. DEMO_FLAGS are additional flags for `vpclab
# demo`.
MODE       ?= node
CLUSTER_MODE ?= node
FROM       ?=
CONTAINERD ?=
KEEP       ?=
DEMO_FLAGS ?=

# make release: its version, the architectures of programs and images, and the operating
# systems besides Linux on which kubectl-berth runs.
RELEASE_VERSION := $(if $(filter file,$(origin VERSION)),v$(shell sed -n 's/^\#\# \[\([0-9][^]]*\)].*/\1/p' CHANGELOG.md | head -n 1),$(VERSION))
RELEASE_ARCHS   ?= amd64 arm64
RELEASE_CLIENTS ?= darwin

# make docs: the version that the pages name. Links to files of the tree lead to it if it is a release, else to main.
DOCS_VERSION ?= $(or $(filter $(VERSION),$(shell git tag --points-at HEAD 2>/dev/null)),dev)

# make images: the prefix of the images' names, and their tag (default: the version).
IMAGE_PREFIX ?=
IMAGE_TAG    ?=

# make test: PKG selects the packages, TEST_FLAGS are additional flags for `go test`.
# SAMPLE is the slice of the rotation (0 to 9, default: that of the commit), or "all".
# RACE=all also enables the race detector in labs, and ignores cached results.
PKG          ?= ./...
BENCH_FLAGS  ?=
TEST_FLAGS   ?=
SAMPLE       ?= $(shell hack/slice.sh)
RACE         ?= auto
TEST_TIMEOUT ?= 45m

# make e2e: the packages, each tested separately; only what they need is built, unless
# BERTH_RELEASE is the directory of a release to test. If E2E_PKG is not set, it also runs
# Egresses on a cluster in the virtual machine, all slices of the rotation, the IPv4
# tests of make test with other IP families, two short soaks, and some of Kubernetes'
# own tests.
E2E_PKG ?= ./test/e2e ./test/e2e/alerts ./test/e2e/neutron ./test/guest ./test/cluster ./web/planner ./web/docs

# make conformance: the modes, each tested on its own cluster, with the pods' IP
# families after a slash if they are not the default of the mode (docs/reference/conformance.md).
# CONFORMANCE_FLAGS are flags of test/upstream, such as -groups or -focus.
CONFORMANCE_MODES ?= node node/ipv6 operator pool
CONFORMANCE_FLAGS ?=

# make families: the IP families that make test does not cover.
FAMILIES ?= dual ipv6

# make soak: runs until SOAK_TIME has passed or each mode has done SOAK_OPS operations.
# SOAK_MODE selects one mode, SOAK_SEED is the seed of the first round.
SOAK_OPS  ?=
SOAK_TIME ?= $(if $(SOAK_OPS),0,1h)
SOAK_MODE ?=
SOAK_SEED ?=

# make build: the packages of the programs.
PACKAGES ?= ./cmd/...

# Commands that need root run directly as root. Other users run them in a sandbox of
# namespaces, or with sudo if the lab is to keep running on this machine.
ifneq ($(shell id -u),0)
AS_ROOT := $(if $(KEEP),sudo,hack/sandbox.sh)
endif

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the programs into bin/
	@mkdir -p bin
	@hack/slowly.sh "Downloading Go modules" go list -deps $(PACKAGES) >/dev/null
	@CGO_ENABLED=0 hack/slowly.sh "Building Berth's programs (the first time takes about three minutes on two cores)" \
		go build -trimpath -tags grpcnotrace -ldflags '$(LDFLAGS)' -o bin/ $(PACKAGES)
	@[ ! -e bin/berthctl ] || for name in kubectl-berth kubectl_complete-berth; do ln -sf berthctl bin/$$name; done

.PHONY: chart
chart: ## Package the Helm chart of this version into dist/
	@hack/slowly.sh "Packaging the chart" go run ./deploy/release -chart -version "$(VERSION)" -out dist

.PHONY: images
images: ## Pack the programs into OCI images below dist/images (IMAGE_PREFIX=registry.example/network, IMAGE_TAG=v1.2.3)
	@hack/images.sh -version $(VERSION) -- $(if $(IMAGE_PREFIX),-prefix $(IMAGE_PREFIX)) $(if $(IMAGE_TAG),-tag $(IMAGE_TAG))

.PHONY: release
release: ## Write all files of a release below dist/release (VERSION=v1.2.3, default: the newest in CHANGELOG.md; docs/contribute/releasing.md)
	@hack/images.sh -version $(RELEASE_VERSION) -archs "$(RELEASE_ARCHS)" -clients "$(RELEASE_CLIENTS)" -- -prefix $(or $(IMAGE_PREFIX),ghcr.io/berthnet) -formats layout,sbom >/dev/null
	@hack/slowly.sh "Writing the release" go run ./deploy/release -version $(RELEASE_VERSION) -archs "$(RELEASE_ARCHS)" -clients "$(RELEASE_CLIENTS)"

.PHONY: check-release
check-release: ## Check that a release depends on the sources only (RELEASE_ARCHS="amd64 arm64")
	@hack/check-release.sh $(if $(filter-out file,$(origin RELEASE_ARCHS)),$(RELEASE_ARCHS))

# Images for nodes of a lab: Berth's own, and those of hack/lab-images.sh for clusters.
.PHONY: lab-images
lab-images: ## Pack the images that `vpclab up --kubelets` needs and print their folders (LAB_IMAGES="pause coredns")
	@hack/images.sh -version $(VERSION) -archs "$$(go env GOARCH)" -out dist/lab-images -- -formats archive -compress=false -tag lab >/dev/null
	@echo dist/lab-images
	@hack/lab-images.sh $(LAB_IMAGES)

.PHONY: demo
demo: ## Create a VPC on this machine, run pods in it, and check their connectivity (also MODE=operator, MODE=branches, MODE=pool, MODE=egress, MODE=port, MODE=policy, MODE=migrate, MODE=migrate FROM=coil, MODE=cluster, KEEP=1)
ifeq ($(MODE),cluster)
	@CONTAINERD="$(CONTAINERD)" hack/cluster-demo.sh $(CLUSTER_MODE) $(if $(KEEP),--keep) $(DEMO_FLAGS)
else
	@hack/deps.sh demo $(if $(filter pool egress coil coil-v1,$(MODE) $(FROM)),pool) $(if $(filter egress branches,$(MODE)),vm) $(if $(filter port,$(MODE)),neutron)
	@$(MAKE) build
	@$(if $(filter operator branches pool port egress policy migrate,$(MODE)),KUBEBUILDER_ASSETS=$$(hack/kubebox.sh $(if $(filter operator pool port policy migrate,$(MODE)),--api));) \
	$(if $(filter migrate,$(MODE)$(FROM)),cni=$$(hack/tool.sh amazonvpccni aws-k8s-agent) && hack/tool.sh amazonvpccni routed-eni-cni-plugin >/dev/null;) \
	$(AS_ROOT) env KUBEBUILDER_ASSETS="$$KUBEBUILDER_ASSETS" $(if $(filter egress branches,$(MODE)),hack/vm.sh --control-plane --cpus 2 --memory 4096) bin/vpclab demo --mode $(MODE) $(if $(filter port,$(MODE)),--neutron=real) $(if $(filter migrate,$(MODE)$(FROM)),--amazon-vpc-cni="$${cni%/*}") $(if $(FROM),--from=$(FROM)) $(if $(KEEP),--keep) $(DEMO_FLAGS)
endif

.PHONY: test
test: web/node_modules/.package-lock.json ## Run the tests for each change, and one slice of the rotation (SAMPLE=7, SAMPLE=all)
	@hack/deps.sh test ovn vm browser
	@BERTH_SAMPLE="$(SAMPLE)" RACE=$(RACE) hack/test.sh "$(PKG)" -timeout $(TEST_TIMEOUT) $(TEST_FLAGS)

.PHONY: soak
soak: ## Kill programs at random for an hour, and write a report (SOAK_TIME=8h, SOAK_OPS=100000, SOAK_MODE=egress, SOAK_SEED=7)
	@hack/deps.sh test ovn vm
	@hack/soak.sh -soak.time=$(SOAK_TIME) $(if $(SOAK_OPS),-soak.ops=$(SOAK_OPS)) \
		$(if $(SOAK_MODE),-soak.mode=$(SOAK_MODE)) $(if $(SOAK_SEED),-soak.seed=$(SOAK_SEED))

# Tests of whole clusters get images and programs that need no network (see
# test/cluster). They need the whole machine, so packages run one after the other. Each
# mounts its own cgroups, so each has its own sandbox. Like other long recipes, it calls
# make by name, because make -n runs every line with the variable MAKE.
.PHONY: e2e
e2e: $(if $(filter ./web/%,$(E2E_PKG)),web/node_modules/.package-lock.json) ## Run the tests with real container runtimes and whole clusters (E2E_PKG=./test/cluster TEST_FLAGS='-run TestTrouble/pool')
	@$(if $(filter file,$(origin E2E_PKG)),echo "Tests that the gate (make test) does not run in full:"; hack/sampled.sh list)
	@environment=$$($(if $(filter file,$(origin E2E_PKG)),,RELEASE_ARCHS="$$(go env GOARCH)" RELEASE_CLIENTS=) hack/e2e-env.sh $(E2E_PKG)); eval "$$environment"; \
	GOFLAGS="$${GOFLAGS:+$$GOFLAGS }-tags=e2e,grpcnotrace"; export GOFLAGS; status=0; \
	for package in $(E2E_PKG); do RACE=none hack/test.sh "$$package" -timeout 120m $(TEST_FLAGS) || status=$$?; done; \
	$(if $(filter file,$(origin E2E_PKG)),hack/egress-cluster.sh || status=$$?; unset BERTH_RELEASE; make sampled || status=$$?; make families || status=$$?; make soak SOAK_MODE=egress SOAK_OPS=24 || status=$$?; make soak SOAK_MODE=operator+branches SOAK_OPS=24 || status=$$?; make conformance-short || status=$$?;) exit $$status

.PHONY: sampled
sampled: ## Run all tests that make test samples
	@hack/deps.sh test ovn
	@packages=$$(hack/sampled.sh packages); tests=$$(hack/sampled.sh tests); \
	BERTH_SAMPLE=all hack/test.sh "$$packages" -timeout 60m -run "$$tests" $(TEST_FLAGS)

.PHONY: families
families: ## Run the tests of labs with dual-stack and IPv6-only pods (FAMILIES=ipv6)
	@hack/deps.sh test
	@status=0; for families in $(FAMILIES); do echo "Pods' IP families: $$families"; \
		BERTH_SAMPLE=all BERTH_IP_FAMILIES=$$families hack/test.sh ./test/labs -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) || status=$$?; done; exit $$status

# A part of make e2e that takes minutes, for the gate's rotation: a real Neutron with
# OVN.
NEUTRON_TESTS ?= TestProviderWithNeutron/OVN|TestFlowsThroughNeutron/OVN
.PHONY: neutron-short
neutron-short:
	@hack/deps.sh test neutron
	@GOFLAGS="$${GOFLAGS:+$$GOFLAGS }-tags=e2e,grpcnotrace" RACE=none hack/test.sh ./test/e2e/neutron -timeout 20m -run '$(NEUTRON_TESTS)'

.PHONY: conformance
conformance: ## Run Kubernetes' own network tests on lab clusters (CONFORMANCE_MODES="node/ipv6 pool", CONFORMANCE_FLAGS="-focus DNS")
	@status=0; hack/conformance.sh "$(CONFORMANCE_MODES)" -record test/upstream/results $(CONFORMANCE_FLAGS) || status=$$?; \
	make conformance-page || status=$$?; exit $$status

.PHONY: conformance-page
conformance-page: ## Write the results of make conformance to docs/reference/conformance.md
	@hack/slowly.sh "Writing docs/reference/conformance.md" go run ./test/upstream -record test/upstream/results -page docs/reference/conformance.md

# A part of make conformance that takes minutes and records no results.
.PHONY: conformance-short
conformance-short:
	@hack/conformance.sh node -groups short -limit 10m -attempts 2

# Builds only what the selected groups need: the control plane alone takes minutes. The
# reference plugins are built like Berth, with the same toolchain.
.PHONY: bench
bench: ## Measure the performance budgets and write bench/results.json
	@hack/deps.sh test
	@mkdir -p bench bin
	@CGO_ENABLED=0 hack/slowly.sh "Building the bench" go build -trimpath -o bin/bench ./bench
	@needs=$$(bin/bench -needs $(BENCH_FLAGS)); packages= reference= cni= images= machine= kwok=; \
	for need in $$needs; do case $$need in \
		./*) packages+=" $$need" ;; \
		reference-plugins) reference=$$(hack/tool.sh cniplugins ptp); reference=$${reference%/*}; hack/tool.sh cniplugins host-local >/dev/null ;; \
		open-vswitch) hack/deps.sh ovn ;; \
		virtual-machine) hack/deps.sh vm; machine=hack/vm.sh ;; \
		amazon-vpc-cni) cni=$$(hack/tool.sh amazonvpccni aws-k8s-agent); cni=$${cni%/*}; hack/tool.sh amazonvpccni routed-eni-cni-plugin >/dev/null ;; \
		lab-images) $(AS_ROOT) hack/check-machine.sh; hack/deps.sh cluster; images=$$(make lab-images LAB_IMAGES="pause coredns" | paste -sd:) ;; \
		kwok) kwok=$$(hack/kwok.sh) ;; \
		control-plane) KUBEBUILDER_ASSETS=$$(hack/kubebox.sh); export KUBEBUILDER_ASSETS ;; \
	esac; done; \
	[ -z "$$packages" ] || make build PACKAGES="$$packages"; \
	$(AS_ROOT) bin/bench -reference-dir "$$reference" -amazon-vpc-cni-dir "$$cni" -lab-images "$$images" -kwok-dir "$$kwok" -virtual-machine "$$machine" -out bench/results.json $(BENCH_FLAGS)

# The source of the first columns of the comparison in README.md.
.PHONY: compare
compare: ## Measure Berth beside another CNI plugin, which runs unmodified (PEER=aws-vpc-cni)
	@case "$(PEER)" in \
		aws-vpc-cni) $(MAKE) bench BENCH_FLAGS="-only amazon-vpc-cni $(BENCH_FLAGS)" ;; \
		*) echo "PEER is \"$(PEER)\", expected aws-vpc-cni" >&2; exit 2 ;; \
	esac

.PHONY: lint
lint: check-format check-docs vet golangci ## Check formatting and documents, and run go vet, the linters and the import rules

.PHONY: check-docs
check-docs:
	@hack/slowly.sh "Checking documents" hack/check-docs.sh

# Without kubebox and coredns, which have one file each: vet would compile all of
# Kubernetes and CoreDNS.
.PHONY: vet
vet:
	@hack/slowly.sh "Vetting Berth" go vet -tags=e2e,fou,guest,grpcnotrace ./... # no file excludes any of these tags
	@GOOS=darwin GOARCH=amd64 hack/slowly.sh "Vetting berthctl for macOS" go vet ./cmd/berthctl
	@for module in $$(dirname tools/*/*.go | sort -u); do case $$module in tools/kubebox | tools/coredns) ;; \
		*) hack/slowly.sh "Vetting $$module" go -C "$$module" vet ./... ;; esac; done

.PHONY: golangci
golangci:
	@lint=$$(hack/tool.sh lint golangci-lint); \
	hack/slowly.sh "Checking the import rules" hack/check-import-rules.sh; \
	hack/slowly.sh --progress 'level=info|INFO' "Running golangci-lint" "$$lint" run -v ./...

.PHONY: format
format: ## Format the Go files
	"$$(hack/tool.sh lint golangci-lint)" fmt ./...

.PHONY: check-format
check-format:
	@unformatted=$$(git ls-files -z --cached --others --exclude-standard '*.go' | xargs -0 gofmt -l); \
	if [ -n "$$unformatted" ]; then echo "Not formatted (make format):" >&2; echo "$$unformatted" >&2; exit 1; fi

.PHONY: generate
generate: ## Generate all generated files
	@hack/deps.sh generate web
	@tools=$$(hack/tool.sh generate protoc-gen-go); tools=$${tools%/*}; \
	for tool in protoc-gen-go-grpc controller-gen; do hack/tool.sh generate "$$tool" >/dev/null; done; \
	PATH="$$tools:$$PATH" hack/slowly.sh --progress '^[^ ]*\.go$$' "Generating files" go generate -v ./...

# The pages' sources are npm workspaces, with one lock file. Nothing is installed again
# while the lock file stays the same.
web/node_modules/.package-lock.json: web/package-lock.json web/.npmrc
	@hack/deps.sh web
	@hack/slowly.sh "Installing npm packages" npm ci --prefix web --loglevel error >/dev/null
	@touch $@

.PHONY: web
web: web/node_modules/.package-lock.json ## Build the web page of the planner into web/planner/dist (committed)
	@hack/slowly.sh "Building the planner's page" npm run build --prefix web -w planner --silent

.PHONY: docs
docs: web/node_modules/.package-lock.json ## Build the documentation as static files into dist/docs (DOCS_VERSION=v1.2.3)
	@hack/docs.sh "$(DOCS_VERSION)"

.PHONY: check-site
check-site: docs ## Build the documentation, and look at it in a browser
	@hack/deps.sh browser
	@hack/slowly.sh "Looking at the documentation in a browser" go test -tags=e2e,grpcnotrace -run TestSite ./web/docs

.PHONY: docs-serve
docs-serve: web/node_modules/.package-lock.json ## Serve docs/ at http://localhost:5173, and reload pages as they change
	@DOCS_VERSION="$(DOCS_VERSION)" npm run serve --prefix web -w docs --silent

.PHONY: check-generated
check-generated: ## Check that generated files and module files are up to date
	@hack/check-generated.sh

.PHONY: clean
clean: ## Remove bin and dist
	rm -rf bin dist
