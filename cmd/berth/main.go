// Command berth is the CNI plugin, executed by a container runtime.
//
// Reading the control group to choose GOMAXPROCS, and again every second, costs more than it gains in a process that
// lives for milliseconds:
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"github.com/containernetworking/cni/pkg/skel"

	"github.com/berthnet/berth/internal/cni"
	"github.com/berthnet/berth/internal/version"
)

func main() {
	skel.PluginMainFuncs(cni.Funcs(), cni.Versions, "CNI plugin berth "+version.String())
}
