package berthd

import (
	"context"
	"log/slog"
	"net"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/aws"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/node/daemon"
	"github.com/berthnet/berth/internal/node/foreign"
	"github.com/berthnet/berth/internal/node/networkpolicy"
	"github.com/berthnet/berth/internal/node/podegress"
	"github.com/berthnet/berth/internal/node/uplinks"
)

// Dependencies are the daemon's external dependencies. Run uses the machine's; tests that run a
// daemon in their own process inject others. The state directory and the Kubernetes API server are settings.
type Dependencies struct {
	Clock clock.Clock
	// OpenDatapath opens the data path of the node.
	OpenDatapath func() (uplinks.Node, error)
	// InspectNetns identifies the network namespace at a path, as datapath.InspectNetns does.
	InspectNetns func(path string) (datapath.NetnsID, error)
	// OpenPluggers opens the pluggers of VPC ports.
	OpenPluggers func(cfg config.Config, log *slog.Logger) (Pluggers, error)
	// Listen opens the plugin's socket.
	Listen func(socket string) (net.Listener, error)
	// Metadata and Cloud are the clients of an instance's metadata service and of EC2.
	Metadata func(o aws.Options) cloud.Metadata
	Cloud    func(ctx context.Context, o aws.Options) (pace.Calls, error)
	// Egress programs the network namespaces of pods; sysctls is config.Config.SysctlDir.
	Egress func(sysctls string) podegress.Kernel
	// PolicyTable opens the table of network policies in the kernel; nil: the node has none.
	PolicyTable func() (PolicyTable, error)
	// Foreign observes other software on the node; nil: it is not looked at.
	Foreign func(o foreign.Options) daemon.Foreign
	// AskGateway asks a gateway whether it serves a pod.
	AskGateway podegress.Ask
}

// PolicyTable is the table of network policies. *policytable.Table implements it.
type PolicyTable interface {
	networkpolicy.Kernel
	There() (bool, error)
	Remove() error
	OpenLog() (*policytable.Log, error)
	OpenInside(path string, id datapath.NetnsID, links []string) (*policytable.Inside, error)
}

func machine() Dependencies {
	return Dependencies{
		Clock:        clock.Real{},
		OpenDatapath: func() (uplinks.Node, error) { return datapath.Open("") },
		InspectNetns: datapath.InspectNetns,
		OpenPluggers: openPluggers,
		Listen:       daemon.Listen,
		Metadata:     func(o aws.Options) cloud.Metadata { return aws.NewMetadata(o) },
		Cloud:        func(ctx context.Context, o aws.Options) (pace.Calls, error) { return aws.New(ctx, o) },
		Egress:       func(sysctls string) podegress.Kernel { return podegress.OfPods{Sysctls: sysctls} },
		PolicyTable:  openPolicyTable,
		Foreign:      func(o foreign.Options) daemon.Foreign { return foreign.NewObserver(o) },
		AskGateway:   podegress.AskByHTTP,
	}
}
