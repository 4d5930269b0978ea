#!/usr/bin/env bash
# Checks that the import rules of .golangci.yml are effective: adds forbidden imports to a
# copy of the layout and compares depguard's findings with the table below. Otherwise a rule
# whose paths no longer match anything would go unnoticed. Also checks what kubectl berth
# links, since depguard reads direct imports only.
set -euo pipefail
cd "$(dirname "$0")/.."
lint=$(hack/tool.sh lint golangci-lint)
berth=github.com/berthnet/berth

# FILE IMPORT RULE: the rule that must reject the import, or "-".
table="
internal/ipam/a.go                  os                                  pure
internal/ipam/b.go                  net/http                            pure
internal/ipam/c.go                  net/netip                           -
internal/ipam/d.go                  $berth/internal/ec2/cloud/aws           pure
internal/ipam/a_test.go             os                                  -
internal/ipam/block/a.go            os                                  pure
internal/source/pool/b.go           os                                  -
internal/operator/pool/a.go         os                                  -
internal/ec2/eni/plan/a.go              log/slog                            plan
internal/ec2/eni/plan/b.go              $berth/internal/clock               plan
internal/ec2/eni/plan/c.go              $berth/internal/ec2/cloud/aws           plan
internal/ec2/eni/plan/d.go              $berth/internal/ec2/cloud               -
internal/ec2/eni/plan/a_test.go         os                                  -
internal/operator/podnics/nicplan/a.go os                                  plan-of-nics
internal/operator/podnics/nicplan/b.go $berth/internal/vpcport             -
internal/ec2/eni/act.go                 os                                  -
internal/kernel/datapath/a.go              k8s.io/cri-api/pkg/apis             no-kubernetes
internal/ec2/cloud/a.go                 sigs.k8s.io/yaml                    no-kubernetes
internal/vpcport/neutron/a.go       k8s.io/api/core/v1                  no-kubernetes
internal/vpcport/neutron/b.go       github.com/gophercloud/gophercloud/v2 -
internal/operator/podnics/a.go      github.com/gophercloud/gophercloud/v2 neutron
lab/cloud/neutronfake/a.go     $berth/internal/vpcport             lab-is-independent
lab/cloud/alcorfake/a.go       $berth/internal/vpcport             lab-is-independent
lab/cloud/neutronfake/b.go     github.com/gophercloud/gophercloud/v2 neutron
lab/cloud/neutronfake/c_test.go $berth/internal/vpcport            -
internal/kernel/plug/ovs/a.go              k8s.io/api/core/v1                  no-kubernetes
internal/kernel/plug/ovs/b.go              github.com/ovn-kubernetes/libovsdb/client ovsdb
internal/kernel/plug/ovsdb/a.go            github.com/ovn-kubernetes/libovsdb/client -
internal/kernel/plug/ovs/c.go              $berth/lab/network/echo      lab
internal/kernel/plug/ovs/d.go              $berth/internal/kernel/ns    lab
internal/kernel/plug/ovs/d_test.go         $berth/internal/kernel/ns    -
internal/kernel/egressgateway/a.go        k8s.io/api/core/v1                  no-kubernetes
internal/kernel/egressclient/a.go         $berth/api/v1alpha1                 no-kubernetes
internal/berthegress/a.go           sigs.k8s.io/controller-runtime/pkg/client berth-egress
internal/berthegress/b.go           $berth/internal/operator/egress/gatewayplan berth-egress
internal/berthegress/b_test.go      $berth/internal/operator/egress/gatewayplan -
internal/berthegress/c.go           $berth/internal/kubeapi             -
internal/kernel/plug/plugtest/a.go         $berth/internal/kernel/ns    -
internal/kernel/ns/nstest/a.go              $berth/internal/kernel/ns    -
internal/kernel/plug/plugtest/b.go         $berth/lab/network/openvswitch -
internal/kernel/plug/plugtest/c.go         $berth/lab/network/echo      plugtest
internal/ec2/eni/b.go                   k8s.io/apimachinery/pkg/types       no-kubernetes
internal/ec2/eni/fleet/a.go             $berth/api/v1alpha1                 no-kubernetes
internal/node/daemon/a.go                sigs.k8s.io/controller-runtime      kubernetes-clients
internal/node/berthd/b.go                k8s.io/client-go/rest               kubernetes-clients
cmd/berth-operator/a.go             sigs.k8s.io/controller-runtime      -
internal/operator/x/a.go            sigs.k8s.io/controller-runtime      -
internal/kubeapi/a.go               k8s.io/client-go/rest               -
internal/ctl/bundle/x/a.go          k8s.io/client-go/rest               -
internal/ctl/x.go                   k8s.io/client-go/rest               kubernetes-clients
internal/source/nodenetworksupplier/a.go    k8s.io/client-go/rest               -
internal/ctl/a.go                   k8s.io/client-go/rest               kubernetes-clients
internal/ctl/kubectl/a.go           k8s.io/client-go/rest               -
internal/ctl/kubectl/b.go           sigs.k8s.io/controller-runtime      kubectl-berth
internal/source/pool/a.go           k8s.io/client-go/rest               -
lab/run/kube/a.go           k8s.io/client-go/rest               -
lab/run/node/a.go           k8s.io/client-go/rest               kubernetes-clients
internal/source/enisource/a.go            k8s.io/client-go/rest               source-eni
internal/node/daemon/b.go                github.com/aws/aws-sdk-go-v2/aws    aws
internal/ec2/eni/observe.go             github.com/aws/aws-sdk-go-v2/aws    aws
internal/ec2/cloud/aws/a.go             github.com/aws/aws-sdk-go-v2/aws    -
lab/cloud/ec2api/a.go            github.com/aws/aws-sdk-go-v2/aws    aws
lab/cloud/ec2api/a_test.go       github.com/aws/aws-sdk-go-v2/aws    -
lab/cloud/ec2api/b.go            $berth/internal/ipam                lab-is-independent
lab/cloud/imds/a.go           $berth/internal/ec2/cloud/aws           lab-is-independent
internal/node/daemon/c.go                $berth/lab/cloud/spec         lab
internal/node/daemon/c_test.go           $berth/lab/cloud/spec         -
cmd/berthd/a.go                     $berth/lab                 lab
cmd/vpclab/a.go                     $berth/lab                 -
cmd/berth/a.go                      github.com/vishvananda/netlink      plugin
internal/cni/a.go                   $berth/internal/node/daemon              plugin
deploy/a.go                         helm.sh/helm/v4/pkg/engine          -
lab/a.go                   helm.sh/helm/v4/pkg/engine          helm
lab/b.go                   $berth/deploy                       -
internal/node/daemon/d.go                $berth/deploy                       chart
internal/node/daemon/d_test.go           $berth/deploy                       -
internal/node/daemon/e.go                $berth/internal/source              -
internal/node/daemon/f.go                $berth/internal/source/pool         daemon
internal/node/daemon/g.go                $berth/internal/ec2/eni                 daemon
internal/node/daemon/h.go                $berth/internal/node/uplinks             daemon
internal/node/daemon/h_test.go           $berth/internal/node/uplinks             -
cmd/berthctl/a.go                   $berth/deploy                       chart
internal/clock/a.go                 math/rand                           one-way
internal/clock/b.go                 math/rand/v2                        -
internal/clock/c.go                 log                                 one-way
internal/clock/d.go                 log/slog                            -
"

# kubectl berth runs on laptops: neither it nor berthctl on macOS links anything of the kernel.
kernel="$berth/internal/(kernel|node/daemon|ctl/bundle/local)|github.com/(vishvananda|google/nftables)"
links=$(go list -deps ./internal/ctl/kubectl) || exit 1
links+=$'\n'$(GOOS=darwin go list -deps ./cmd/berthctl) || exit 1
if found=$(grep -E "^($kernel)" <<<"$links" | sort -u); then
	printf 'kubectl berth links packages that need Linux; find the imports with "go list -deps -f":\n%s\n' "$found" >&2
	exit 1
fi

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
if ! diff -u --label "expected rejections" --label "actual rejections" "$copy/want" "$copy/got" >&2; then
	echo ".golangci.yml does not enforce the import rules that hack/check-import-rules.sh expects." >&2
	exit 1
fi
