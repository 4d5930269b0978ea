#!/usr/bin/env bash
# Proves that the import rules of .golangci.yml bite: plants imports in a copy
# of the layout and compares what depguard says with the table below. A rule
# whose paths match nothing any more would otherwise pass for ever.
set -euo pipefail
cd "$(dirname "$0")/.."
lint=$(hack/tool.sh lint golangci-lint)
berth=github.com/berthnet/berth

# FILE IMPORT RULE, the rule that must refuse it or "-".
table="
internal/ipam/a.go                  os                                  pure
internal/ipam/b.go                  net/http                            pure
internal/ipam/c.go                  net/netip                           -
internal/ipam/d.go                  $berth/internal/cloud/aws           pure
internal/ipam/a_test.go             os                                  -
internal/ipam/block/a.go            os                                  pure
internal/source/pool/b.go           os                                  -
internal/operator/pool/a.go         os                                  -
internal/eni/plan/a.go              log/slog                            plan
internal/eni/plan/b.go              $berth/internal/clock               plan
internal/eni/plan/c.go              $berth/internal/cloud/aws           plan
internal/eni/plan/d.go              $berth/internal/cloud               -
internal/eni/plan/a_test.go         os                                  -
internal/operator/vpcport/plan/a.go os                                  plan-of-nics
internal/operator/vpcport/plan/b.go $berth/internal/vpcport             -
internal/eni/act.go                 os                                  -
internal/datapath/a.go              k8s.io/cri-api/pkg/apis             no-kubernetes
internal/cloud/a.go                 sigs.k8s.io/yaml                    no-kubernetes
internal/vpcport/neutron/a.go       k8s.io/api/core/v1                  no-kubernetes
internal/vpcport/neutron/b.go       github.com/gophercloud/gophercloud/v2 -
internal/operator/vpcport/a.go      github.com/gophercloud/gophercloud/v2 neutron
internal/lab/cloud/neutron/a.go     $berth/internal/vpcport             lab-is-independent
internal/lab/cloud/alcor/a.go       $berth/internal/vpcport             lab-is-independent
internal/lab/cloud/neutron/b.go     github.com/gophercloud/gophercloud/v2 neutron
internal/lab/cloud/neutron/c_test.go $berth/internal/vpcport            -
internal/plug/ovs/a.go              k8s.io/api/core/v1                  no-kubernetes
internal/plug/ovs/b.go              github.com/ovn-kubernetes/libovsdb/client ovsdb
internal/plug/ovsdb/a.go            github.com/ovn-kubernetes/libovsdb/client -
internal/plug/ovs/c.go              $berth/internal/lab/network/ns      lab
internal/egress/gateway/a.go        k8s.io/api/core/v1                  no-kubernetes
internal/egress/client/a.go         $berth/api/v1alpha1                 no-kubernetes
internal/berthegress/a.go           sigs.k8s.io/controller-runtime/pkg/client berth-egress
internal/berthegress/b.go           $berth/internal/operator/egress/plan berth-egress
internal/berthegress/b_test.go      $berth/internal/operator/egress/plan -
internal/berthegress/c.go           $berth/internal/kubeapi             -
internal/plug/plugtest/a.go         $berth/internal/lab/network/ns      -
internal/eni/b.go                   k8s.io/apimachinery/pkg/types       no-kubernetes
internal/eni/fleet/a.go             $berth/api/v1alpha1                 no-kubernetes
internal/daemon/a.go                sigs.k8s.io/controller-runtime      kubernetes-clients
internal/berthd/b.go                k8s.io/client-go/rest               kubernetes-clients
cmd/berth-operator/a.go             sigs.k8s.io/controller-runtime      -
internal/operator/x/a.go            sigs.k8s.io/controller-runtime      -
internal/kubeapi/a.go               k8s.io/client-go/rest               -
internal/ctl/bundle/x/a.go          k8s.io/client-go/rest               -
internal/ctl/x.go                   k8s.io/client-go/rest               kubernetes-clients
internal/source/nodenetwork/a.go    k8s.io/client-go/rest               -
internal/ctl/a.go                   k8s.io/client-go/rest               kubernetes-clients
internal/ctl/cluster/a.go           k8s.io/client-go/rest               -
internal/ctl/cluster/b.go           sigs.k8s.io/controller-runtime      kubectl-berth
internal/source/pool/a.go           k8s.io/client-go/rest               -
internal/lab/run/kube/a.go           k8s.io/client-go/rest               -
internal/lab/run/node/a.go           k8s.io/client-go/rest               kubernetes-clients
internal/source/eni/a.go            k8s.io/client-go/rest               source-eni
internal/daemon/b.go                github.com/aws/aws-sdk-go-v2/aws    aws
internal/eni/observe.go             github.com/aws/aws-sdk-go-v2/aws    aws
internal/cloud/aws/a.go             github.com/aws/aws-sdk-go-v2/aws    -
internal/lab/cloud/ec2/a.go            github.com/aws/aws-sdk-go-v2/aws    aws
internal/lab/cloud/ec2/a_test.go       github.com/aws/aws-sdk-go-v2/aws    -
internal/lab/cloud/ec2/b.go            $berth/internal/ipam                lab-is-independent
internal/lab/cloud/imds/a.go           $berth/internal/cloud/aws           lab-is-independent
internal/daemon/c.go                $berth/internal/lab/cloud/spec         lab
internal/daemon/c_test.go           $berth/internal/lab/cloud/spec         -
cmd/berthd/a.go                     $berth/internal/lab                 lab
cmd/vpclab/a.go                     $berth/internal/lab                 -
cmd/berth/a.go                      github.com/vishvananda/netlink      plugin
internal/cni/a.go                   $berth/internal/daemon              plugin
deploy/a.go                         helm.sh/helm/v4/pkg/engine          -
internal/lab/a.go                   helm.sh/helm/v4/pkg/engine          helm
internal/lab/b.go                   $berth/deploy                       -
internal/daemon/d.go                $berth/deploy                       chart
internal/daemon/d_test.go           $berth/deploy                       -
internal/daemon/e.go                $berth/internal/source              -
internal/daemon/f.go                $berth/internal/source/pool         daemon
internal/daemon/g.go                $berth/internal/eni                 daemon
internal/daemon/h.go                $berth/internal/carrier             daemon
internal/daemon/h_test.go           $berth/internal/carrier             -
cmd/berthctl/a.go                   $berth/deploy                       chart
internal/clock/a.go                 math/rand                           one-way
internal/clock/b.go                 math/rand/v2                        -
internal/clock/c.go                 log                                 one-way
internal/clock/d.go                 log/slog                            -
"

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
trap 'exit 130' INT TERM HUP
cp .golangci.yml "$copy"
printf 'module %s\n\ngo 1.26.0\n' "$berth" >"$copy/go.mod"
while read -r file import rule; do
	[ -n "$file" ] || continue
	mkdir -p "$copy/$(dirname "$file")"
	printf 'package p\n\nimport _ "%s"\n' "$import" >"$copy/$file"
	[ "$rule" = - ] || echo "$file $import $rule"
done <<<"$table" | sort >"$copy/want"

(cd "$copy" && GOFLAGS=-mod=mod GOPROXY=off "$lint" run --enable-only depguard --output.text.print-issued-lines=false ./... 2>&1 || true) |
	sed -nE "s/^([^:]+):[0-9:]+ import '([^']+)' is not allowed from list '([^']+)'.*/\1 \2 \3/p" | sort >"$copy/got"
if ! diff -u --label "refused as it should be" --label "refused" "$copy/want" "$copy/got" >&2; then
	echo ".golangci.yml does not enforce the import rules as hack/check-import-rules.sh expects them." >&2
	exit 1
fi
