#!/bin/sh
# Rewrites go.mod and go.sum of this module for a Kubernetes version:
#
#   cd tools/kubee2e && K8S=1.37.1 ./gen.sh
#
# Kubernetes asks for its staging modules at v0.0.0 and finds them by replace
# lines that count only in its own repository. Requiring the published v0.X.Y
# of each is enough here.
set -eu
version=${K8S:-1.37.1}
rm -f go.mod go.sum
go mod init github.com/berthnet/berth/tools/kubee2e
upstream=$(go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
set --
for module in $(awk '$1 ~ /^k8s.io\// && $2 == "v0.0.0" { print $1 }' "$upstream" | sort -u); do
	set -- "$@" "-require=$module@v0.${version#*.}"
done
go mod edit -require="k8s.io/kubernetes@v$version" "$@" \
	-tool=k8s.io/kubernetes/test/e2e -tool=k8s.io/kubernetes/test/images/agnhost \
	-tool=k8s.io/kubernetes/test/images/regression-issue-74839 \
	-tool=github.com/onsi/ginkgo/v2/ginkgo
go mod tidy

# What the programs say of their version.
package=k8s.io/component-base/version
minor=${version#*.}
echo "-X $package.gitVersion=v$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%.*} -X $package.gitTreeState=clean" > ldflags
