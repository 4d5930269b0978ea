// Command grpcgo is the plugin's ADD with grpc-go's client, as lean as that
// can be set up: what BenchmarkStart compares the plugin with.
package main

import (
	"context"
	"encoding/json"
	"net"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berthnet/berth/internal/cni"
	"github.com/berthnet/berth/internal/rpc"
)

func main() { skel.PluginMainFuncs(skel.CNIFuncs{Add: add}, cni.Versions, "grpcgo") }

func add(args *skel.CmdArgs) error {
	var conf struct {
		types.PluginConf
		Socket string `json:"socket"`
	}
	if err := json.Unmarshal(args.StdinData, &conf); err != nil {
		return err
	}
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", conf.Socket)
	}
	client, err := grpc.NewClient("passthrough:///berthd", grpc.WithContextDialer(dial), grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	reply, err := rpc.NewNodeClient(client).Add(context.Background(), &rpc.AddRequest{
		Attachment: &rpc.Attachment{Network: conf.Name, ContainerId: args.ContainerID, IfName: args.IfName}, Netns: args.Netns,
	})
	if err != nil {
		return err
	}
	result := &current.Result{CNIVersion: current.ImplementedSpecVersion, Interfaces: []*current.Interface{{Name: reply.GetHost().GetName()}, {Name: args.IfName, Sandbox: args.Netns}}}
	for _, a := range reply.GetAddresses() {
		ip, network, err := net.ParseCIDR(a)
		if err != nil {
			return err
		}
		result.IPs = append(result.IPs, &current.IPConfig{Interface: current.Int(1), Address: net.IPNet{IP: ip, Mask: network.Mask}})
	}
	return types.PrintResult(result, conf.CNIVersion)
}
