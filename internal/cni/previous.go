package cni

import (
	"encoding/json"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

// previousAddresses returns, in CIDR form, the addresses that the previous
// result, which CHECK must come with, gives to the pod's interface.
func previousAddresses(args *skel.CmdArgs, cniVersion string) ([]string, error) {
	result, err := previousResult(args.StdinData, cniVersion)
	if err != nil {
		return nil, err
	}
	index := podInterfaceIn(result, args)
	if index < 0 {
		return nil, failf(types.ErrInvalidNetworkConfig, "prevResult has no interface %s in %s", args.IfName, args.Netns)
	}
	var out []string
	for _, ip := range result.IPs {
		if ip.Interface == nil || *ip.Interface == index {
			out = append(out, ip.Address.String())
		}
	}
	if len(out) == 0 {
		return nil, failf(types.ErrInvalidNetworkConfig, "prevResult has no address of interface %s", args.IfName)
	}
	return out, nil
}

func podInterfaceIn(result *current.Result, args *skel.CmdArgs) int {
	for i, iface := range result.Interfaces {
		if iface.Name == args.IfName && iface.Sandbox == args.Netns {
			return i
		}
	}
	return -1
}

func previousResult(stdin []byte, cniVersion string) (*current.Result, error) {
	var conf struct {
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := decode(stdin, &conf); err != nil {
		return nil, err
	}
	if !isSet(conf.PrevResult) {
		return nil, failf(types.ErrInvalidNetworkConfig, "prevResult: missing, expected the result of ADD")
	}
	if err := refuseNulls(conf.PrevResult); err != nil {
		return nil, err
	}
	old, err := version.NewResult(cniVersion, conf.PrevResult)
	if err != nil {
		return nil, failf(types.ErrInvalidNetworkConfig, "prevResult is not a result of version %s: %s", cniVersion, err)
	}
	result, err := current.NewResultFromResult(old)
	if err != nil {
		return nil, failf(types.ErrInvalidNetworkConfig, "prevResult is not a result of version %s: %s", cniVersion, err)
	}
	return result, nil
}

// refuseNulls refuses lists with null in them, which the conversion between
// versions does not expect.
func refuseNulls(prevResult []byte) error {
	var lists struct {
		Interfaces []json.RawMessage `json:"interfaces"`
		IPs        []json.RawMessage `json:"ips"`
		Routes     []json.RawMessage `json:"routes"`
	}
	if err := decode(prevResult, &lists); err != nil {
		return failf(types.ErrInvalidNetworkConfig, "prevResult: %s", err)
	}
	for name, list := range map[string][]json.RawMessage{"interfaces": lists.Interfaces, "ips": lists.IPs, "routes": lists.Routes} {
		for i, entry := range list {
			if !isSet(entry) {
				return failf(types.ErrInvalidNetworkConfig, "prevResult.%s[%d] is null, expected an object", name, i)
			}
		}
	}
	return nil
}
