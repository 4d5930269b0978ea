// Kubebox is Kubernetes in one program, for tests and demos: the control plane (etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler), the programs of nodes (kubelet, kube-proxy), and kubectl, as their projects
// publish them in Go modules. The name under which it is started, or else its first argument, selects the program.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata" // CronJobs use time zones, and the machine may have no database of them

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of the API client
	_ "k8s.io/component-base/metrics/prometheus/version"  // metric of the build
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

const usage = "usage: kubebox etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubelet|kube-proxy|kubectl [argument ...]"

func main() {
	if name := filepath.Base(os.Args[0]); !program(name) {
		if len(os.Args) < 2 || !program(os.Args[1]) {
			fmt.Fprintln(os.Stderr, usage)
			os.Exit(2)
		}
		os.Args = os.Args[1:]
	}
	os.Exit(run(filepath.Base(os.Args[0])))
}

// commands make the command line of each program except etcd, which has its own.
var commands = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kube-proxy":              proxy.NewProxyCommand,
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
}

func program(name string) bool { return name == "etcd" || commands[name] != nil }

// run runs a program until it ends and returns its exit code. Etcd exits by itself.
func run(name string) int {
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return 0
	}
	return cli.Run(commands[name]())
}
