# What to run is in the README; how it is built is in docs/contributing.md.
# Everything below works from a fresh clone: missing Debian packages are
# installed by hack/deps.sh, pinned Go tools are built by hack/tool.sh.

SHELL := bash
.SHELLFLAGS := -o errexit -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VERSION ?= $(shell git describe --tags --always --dirty --abbrev=12 2>/dev/null || echo dev)
MODULE  := github.com/berthnet/berth
LDFLAGS := -s -w -X $(MODULE)/internal/version.Version=$(VERSION)

# Programs, tests, linters and generators are built with the same flags and, but
# for -race, without cgo, so that every package is compiled once for all of them,
# in whichever folder the clone is.
export CGO_ENABLED := 0
ifeq ($(MAKELEVEL),0)
export GOFLAGS := $(strip -trimpath -tags=grpcnotrace $(GOFLAGS))
endif

# make demo: MODE is who calls EC2 for a node, "node" (its own daemon) or
# "operator" (one for the cluster), "pool": addresses of pools in place of
# EC2's, "egress": the same with gateways to the outside, or "port": ports of a real
# Neutron. All but the first build a Kubernetes control plane the first time, unless one is
# installed that they can use. "cluster" is a whole
# cluster with containerd, kubelet and kube-proxy on its nodes, CLUSTER_MODE is
# where its addresses come from, and CONTAINERD=2 takes containerd 2 in place of
# Debian's. KEEP=1 leaves the lab up, DEMO_FLAGS are further flags of `vpclab demo`.
MODE       ?= node
CLUSTER_MODE ?= node
CONTAINERD ?=
KEEP       ?=
DEMO_FLAGS ?=

# make images: what comes before the images' names, and their tag, by default
# the version.
IMAGE_PREFIX ?=
IMAGE_TAG    ?=

# make test: PKG narrows the packages, TEST_FLAGS are further flags of `go test`; SAMPLE is
# the slice of the rotation (0 to 9, by default the commit's), or "all"; RACE=all looks for
# data races in labs too, and takes no result from the cache;
# make bench: BENCH_FLAGS are flags of the bench program, such as -only.
PKG          ?= ./...
BENCH_FLAGS  ?=
TEST_FLAGS   ?=
SAMPLE       ?= $(shell hack/slice.sh)
RACE         ?= auto
TEST_TIMEOUT ?= 45m

# make e2e: packages, each of which is tested alone. Without any named, Egresses on a
# cluster in the virtual machine, all slices of the rotation, what make test runs with
# IPv4 only, two short soaks, and some of Kubernetes' own tests come last.
E2E_PKG ?= ./test/e2e ./test/e2e/alerts ./test/e2e/neutron ./test/guest ./test/cluster

# make conformance: one cluster after the other in each of these modes, with the IP
# families of pods behind a slash where they are not the mode's (docs/conformance.md);
# CONFORMANCE_FLAGS are flags of test/upstream, such as -groups or -focus.
CONFORMANCE_MODES ?= node node/ipv6 operator pool
CONFORMANCE_FLAGS ?=

# make families: those of pods' IP families that make test does not have.
FAMILIES ?= dual ipv6

# make soak: until SOAK_TIME is over or each mode has SOAK_OPS operations;
# SOAK_MODE is the only mode, SOAK_SEED that of the first round.
SOAK_OPS  ?=
SOAK_TIME ?= $(if $(SOAK_OPS),0,1h)
SOAK_MODE ?=
SOAK_SEED ?=

# make build: the programs.
PACKAGES ?= ./cmd/...

# What needs root runs as it is for root; for others in namespaces of their
# own, except that a lab which is to stay up needs the machine's.
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
	@mkdir -p dist
	@version=$(VERSION:v%=%); [[ $$version =~ ^[0-9]+\.[0-9]+\.[0-9]+ ]] || version=0.0.0-g$$version; \
	"$$(hack/tool.sh helm helm)" package deploy/chart --version "$$version" --app-version "$(VERSION)" --destination dist

.PHONY: images
images: ## Pack the programs into OCI images below dist/images (IMAGE_PREFIX=registry.example/network, IMAGE_TAG=v1.2.3)
	@hack/images.sh -version $(VERSION) -- $(if $(IMAGE_PREFIX),-prefix $(IMAGE_PREFIX)) $(if $(IMAGE_TAG),-tag $(IMAGE_TAG))

# For nodes of a lab: Berth's own, and those that hack/lab-images.sh has for clusters.
.PHONY: lab-images
lab-images: ## Pack the images that `vpclab up --kubelets` needs and print their folders (LAB_IMAGES="pause coredns")
	@hack/images.sh -version $(VERSION) -archs "$$(go env GOARCH)" -out dist/lab-images -- -formats archive -compress=false -tag lab >/dev/null
	@echo dist/lab-images
	@hack/lab-images.sh $(LAB_IMAGES)

.PHONY: check-images
check-images: ## Fail when the images depend on anything but the sources
	@hack/check-images.sh

.PHONY: demo
demo: ## Raise a VPC on this machine, run pods in it, and show that they reach each other (also MODE=operator, MODE=branches, MODE=pool, MODE=egress, MODE=port, MODE=cluster, KEEP=1)
ifeq ($(MODE),cluster)
	@CONTAINERD="$(CONTAINERD)" hack/cluster-demo.sh $(CLUSTER_MODE) $(if $(KEEP),--keep) $(DEMO_FLAGS)
else
	@hack/deps.sh demo $(if $(filter pool egress,$(MODE)),pool) $(if $(filter egress branches,$(MODE)),vm) $(if $(filter port,$(MODE)),neutron)
	@$(MAKE) build
	@$(if $(filter operator branches pool port egress,$(MODE)),KUBEBUILDER_ASSETS=$$(hack/kubebox.sh $(if $(filter operator pool port,$(MODE)),--api));) \
	$(AS_ROOT) env KUBEBUILDER_ASSETS="$$KUBEBUILDER_ASSETS" $(if $(filter egress branches,$(MODE)),hack/vm.sh --control-plane --cpus 2 --memory 4096) bin/vpclab demo --mode $(MODE) $(if $(filter port,$(MODE)),--neutron=real) $(if $(KEEP),--keep) $(DEMO_FLAGS)
endif

.PHONY: test
test: ## Run the tests of every change, and one slice of the rotation (SAMPLE=7, SAMPLE=all)
	@hack/deps.sh test ovn vm
	@BERTH_SAMPLE="$(SAMPLE)" RACE=$(RACE) hack/test.sh "$(PKG)" -timeout $(TEST_TIMEOUT) $(TEST_FLAGS)

.PHONY: soak
soak: ## Kill programs at random for an hour, with a report (SOAK_TIME=8h, SOAK_OPS=100000, SOAK_MODE=egress, SOAK_SEED=7)
	@hack/deps.sh test ovn vm
	@hack/soak.sh -soak.time=$(SOAK_TIME) $(if $(SOAK_OPS),-soak.ops=$(SOAK_OPS)) \
		$(if $(SOAK_MODE),-soak.mode=$(SOAK_MODE)) $(if $(SOAK_SEED),-soak.seed=$(SOAK_SEED))

# Tests of whole clusters are given what takes no network to be had (see
# test/cluster). They want the machine for themselves, so they go one after the other.
# Both mount cgroups for themselves, so each has a sandbox of its own.
.PHONY: e2e
e2e: ## Run the tests against real container runtimes, and those of whole clusters (E2E_PKG=./test/cluster TEST_FLAGS='-run TestTrouble/pool')
	@$(if $(filter file,$(origin E2E_PKG)),echo "What the gate (make test) leaves to others:"; hack/sampled.sh list)
	@hack/deps.sh test e2e cluster neutron vm
	@hack/tool.sh multuscni multus >/dev/null
	@helm=$$(hack/tool.sh helm helm); containerd=$$(hack/tool.sh containerd containerd); \
	for program in containerd-shim-runc-v2 ctr; do hack/tool.sh containerd "$$program" >/dev/null; done; \
	images=$$($(MAKE) lab-images | xargs -d '\n' realpath | paste -sd:); \
	for other in "next $$(go env GOARCH)" "foreign $$([ "$$(go env GOARCH)" = arm64 ] && echo amd64 || echo arm64)"; do set -- $$other; \
		hack/images.sh -version "0.0.0-$$1" -archs "$$2" -out "dist/lab-images-$$1" -- -formats archive -compress=false -tag "lab-$$1" >/dev/null; done; \
	export BERTH_LAB_IMAGES="$$images" BERTH_LAB_IMAGES_NEXT="$$PWD/dist/lab-images-next" BERTH_LAB_IMAGES_FOREIGN="$$PWD/dist/lab-images-foreign" \
		BERTH_HELM="$$helm" BERTH_CONTAINERD2="$${containerd%/*}"; \
	GOFLAGS="$${GOFLAGS:+$$GOFLAGS }-tags=e2e,grpcnotrace"; export GOFLAGS; status=0; \
	for package in $(E2E_PKG); do RACE=none hack/test.sh "$$package" -timeout 60m $(TEST_FLAGS) || status=$$?; done; \
	$(if $(filter file,$(origin E2E_PKG)),hack/egress-cluster.sh || status=$$?; $(MAKE) sampled || status=$$?; $(MAKE) families || status=$$?; $(MAKE) soak SOAK_MODE=egress SOAK_OPS=24 || status=$$?; $(MAKE) soak SOAK_MODE=operator+branches SOAK_OPS=24 || status=$$?; $(MAKE) conformance-short || status=$$?;) exit $$status

.PHONY: sampled
sampled: ## Run all of what make test has a sample of
	@hack/deps.sh test ovn
	@packages=$$(hack/sampled.sh packages); tests=$$(hack/sampled.sh tests); \
	BERTH_SAMPLE=all hack/test.sh "$$packages" -timeout 60m -run "$$tests" $(TEST_FLAGS)

.PHONY: families
families: ## Run conformance and trouble tests with pods of both IP families, and of IPv6 alone (FAMILIES=ipv6)
	@hack/deps.sh test
	@status=0; for families in $(FAMILIES); do echo "Pods' IP families: $$families"; \
		BERTH_SAMPLE=all BERTH_IP_FAMILIES=$$families hack/test.sh "./test/conformance ./test/trouble" -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) || status=$$?; done; exit $$status

# A part of make e2e that is bounded to minutes, for the gate's rotation: a real Neutron with OVN.
NEUTRON_TESTS ?= TestContract|TestLabAnswersAsNeutron|TestPlugsWithOVN|TestFlowsWithOVN
.PHONY: neutron-short
neutron-short:
	@hack/deps.sh test neutron
	@GOFLAGS="$${GOFLAGS:+$$GOFLAGS }-tags=e2e,grpcnotrace" RACE=none hack/test.sh ./test/e2e/neutron -timeout 20m -run '^($(NEUTRON_TESTS))$$'

.PHONY: conformance
conformance: ## Run Kubernetes' own tests of networking on clusters of the lab (CONFORMANCE_MODES="node/ipv6 pool", CONFORMANCE_FLAGS="-focus DNS")
	@status=0; hack/conformance.sh "$(CONFORMANCE_MODES)" -record test/upstream/results $(CONFORMANCE_FLAGS) || status=$$?; \
	$(MAKE) conformance-page || status=$$?; exit $$status

.PHONY: conformance-page
conformance-page: ## Write what make conformance recorded into docs/conformance.md
	@hack/slowly.sh "Writing docs/conformance.md" go run ./test/upstream -record test/upstream/results -page docs/conformance.md

# A part of it that is bounded to minutes, and records nothing.
.PHONY: conformance-short
conformance-short:
	@hack/conformance.sh node -groups short -limit 10m -attempts 2

# Only what the chosen groups need is built: the control plane alone takes
# minutes. The reference plugins are built like Berth, by the same toolchain.
.PHONY: bench
bench: ## Measure the budgets into bench/results.json
	@hack/deps.sh test
	@mkdir -p bench bin
	@CGO_ENABLED=0 hack/slowly.sh "Building the bench" go build -trimpath -o bin/bench ./bench
	@needs=$$(bin/bench -needs $(BENCH_FLAGS)); packages= reference= cni= images= machine=; \
	for need in $$needs; do case $$need in \
		./*) packages+=" $$need" ;; \
		reference-plugins) reference=$$(hack/tool.sh cniplugins ptp); reference=$${reference%/*}; hack/tool.sh cniplugins host-local >/dev/null ;; \
		open-vswitch) hack/deps.sh ovn ;; \
		virtual-machine) hack/deps.sh vm; machine=hack/vm.sh ;; \
		amazon-vpc-cni) cni=$$(hack/tool.sh amazonvpccni aws-k8s-agent); cni=$${cni%/*}; hack/tool.sh amazonvpccni routed-eni-cni-plugin >/dev/null ;; \
		lab-images) $(AS_ROOT) hack/check-machine.sh; hack/deps.sh cluster; images=$$($(MAKE) lab-images LAB_IMAGES="pause coredns" | paste -sd:) ;; \
		control-plane) KUBEBUILDER_ASSETS=$$(hack/kubebox.sh); export KUBEBUILDER_ASSETS ;; \
	esac; done; \
	[ -z "$$packages" ] || $(MAKE) build PACKAGES="$$packages"; \
	$(AS_ROOT) bin/bench -reference-dir "$$reference" -amazon-vpc-cni-dir "$$cni" -lab-images "$$images" -virtual-machine "$$machine" -out bench/results.json $(BENCH_FLAGS)

.PHONY: lint
lint: check-format check-docs vet golangci ## Check formatting, documents, go vet, and the linters with the import rules

.PHONY: check-docs
check-docs:
	@hack/slowly.sh "Checking documents" hack/check-docs.sh

# Not kubebox and coredns, which are one file each: vet would compile all of
# Kubernetes and CoreDNS for them.
.PHONY: vet
vet:
	@hack/slowly.sh "Vetting Berth" go vet -tags=e2e,fou,guest,grpcnotrace ./... # no file asks for one of them to be unset
	@for module in $$(dirname tools/*/*.go | sort -u); do case $$module in tools/kubebox | tools/coredns) ;; \
		*) hack/slowly.sh "Vetting $$module" go -C "$$module" vet ./... ;; esac; done

.PHONY: golangci
golangci:
	@lint=$$(hack/tool.sh lint golangci-lint); \
	hack/slowly.sh "Checking the import rules" hack/check-import-rules.sh; \
	hack/slowly.sh --progress 'level=info|INFO' "Running golangci-lint" "$$lint" run -v ./...

.PHONY: format
format: ## Rewrite the Go files in the project's format
	"$$(hack/tool.sh lint golangci-lint)" fmt ./...

.PHONY: check-format
check-format:
	@unformatted=$$(git ls-files -z --cached --others --exclude-standard '*.go' | xargs -0 gofmt -l); \
	if [ -n "$$unformatted" ]; then echo "Not formatted (make format):" >&2; echo "$$unformatted" >&2; exit 1; fi

.PHONY: generate
generate: ## Rewrite everything that is generated
	@hack/deps.sh generate
	@tools=$$(hack/tool.sh generate protoc-gen-go); tools=$${tools%/*}; \
	for tool in protoc-gen-go-grpc controller-gen; do hack/tool.sh generate "$$tool" >/dev/null; done; \
	PATH="$$tools:$$PATH" hack/slowly.sh --progress '^[^ ]*\.go$$' "Generating files" go generate -v ./...

.PHONY: check-generated
check-generated: ## Fail when generated files or module files are not current
	@hack/check-generated.sh

.PHONY: clean
clean: ## Remove what was built here
	rm -rf bin dist
