#!/usr/bin/env bash
# Runs a command as root in a virtual machine with Debian's kernel, which has Foo-over-UDP,
# and this machine's files (vpclab vm). Files that it writes are lost with the machine,
# except in directories of --share. The exit code is that of the command.
#
#   hack/vm.sh [--share DIR] [--cpus N] [--memory MIB] COMMAND [ARGUMENT...]
#   hack/vm.sh --prepare      prepares the kernel, and prints its directory
#
# Programs are built on the host, which is ten times as fast, and run in the virtual machine.
# To run the tests of packages, each in a separate machine:
#
#   go test -tags guest -exec "$PWD/hack/vm.sh" -run X ./internal/kernel/egressclient
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

"$root/hack/deps.sh" vm
cache=${XDG_CACHE_HOME:-$HOME/.cache}/berth/vm
vpclab=$cache/vpclab-$(sha256sum <<<"$root" | cut -c1-12)
mkdir -p "$cache"
CGO_ENABLED=0 GOFLAGS='' "$root/hack/slowly.sh" "Building vpclab" flock "$vpclab.lock" \
	go build -C "$root" -trimpath -tags grpcnotrace -o "$vpclab" ./cmd/vpclab
exec "$vpclab" vm "$@"
