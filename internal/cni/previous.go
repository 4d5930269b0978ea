package cni

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berthnet/berth/internal/rpc/wire"
)

// addressesIn returns the addresses of the pod's interface in a previous result, as CIDRs, and the
// other interfaces of the sandbox with theirs, including those of other plugins.
func addressesIn(result *current.Result, args *skel.CmdArgs) ([]string, []wire.Link, error) {
	index := podInterfaceIn(result, args)
	if index < 0 {
		return nil, nil, failf(types.ErrInvalidNetworkConfig, "prevResult has no interface %s in %s", args.IfName, args.Netns)
	}
	var own []string
	others := map[int]*wire.Link{}
	for _, ip := range result.IPs {
		switch {
		case ip.Interface == nil || *ip.Interface == index:
			own = append(own, ip.Address.String())
		case *ip.Interface >= 0 && *ip.Interface < len(result.Interfaces) && result.Interfaces[*ip.Interface].Sandbox == args.Netns:
			link := others[*ip.Interface]
			if link == nil {
				link = &wire.Link{Sandbox: wire.Interface{Name: result.Interfaces[*ip.Interface].Name}}
				others[*ip.Interface] = link
			}
			link.Addresses = append(link.Addresses, wire.Address{CIDR: ip.Address.String()})
		}
	}
	if len(own) == 0 {
		return nil, nil, failf(types.ErrInvalidNetworkConfig, "prevResult has no address of interface %s", args.IfName)
	}
	var links []wire.Link
	for _, i := range slices.Sorted(maps.Keys(others)) {
		links = append(links, *others[i])
	}
	return own, links, nil
}

func podInterfaceIn(result *current.Result, args *skel.CmdArgs) int {
	for i, iface := range result.Interfaces {
		if iface.Name == args.IfName && iface.Sandbox == args.Netns {
			return i
		}
	}
	return -1
}

// previousResult reads the prevResult of a CHECK from the configuration.
func (n network) previousResult(stdin []byte) (*current.Result, error) {
	var conf struct {
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := decode(stdin, &conf); err != nil {
		return nil, err
	}
	if !isSet(conf.PrevResult) {
		return nil, failf(types.ErrInvalidNetworkConfig, "prevResult: missing, expected the result of ADD")
	}
	return n.resultIn(conf.PrevResult)
}

// resultIn parses a previous result in the version of the configuration.
func (n network) resultIn(prevResult []byte) (*current.Result, error) {
	if err := refuseNulls(prevResult); err != nil {
		return nil, err
	}
	old, err := version.NewResult(n.CNIVersion, prevResult)
	if err != nil {
		return nil, failf(types.ErrInvalidNetworkConfig, "prevResult is not a result of version %s: %s", n.CNIVersion, err)
	}
	result, err := current.NewResultFromResult(old)
	if err != nil {
		return nil, failf(types.ErrInvalidNetworkConfig, "prevResult is not a result of version %s: %s", n.CNIVersion, err)
	}
	return result, nil
}

// refuseNulls rejects null in lists, which the conversion between versions does not handle.
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
