package alcor

import (
	"slices"

	"github.com/berthnet/berth/internal/vpcport"
)

// Unbound is the tag of a port whose host Alcor still tells, and which is bound to none.
const Unbound = "berth:unbound"

// bind tells to which host a port is bound, and what came of it. The agents of the host put
// it into the namespace of the VPC; a failed status is theirs.
func (p *Provider) bind(out *vpcport.Port, w wirePort) {
	if w.Host == "" || slices.Contains(w.Tags, Unbound) {
		if out.Status != vpcport.StatusError {
			out.Status = vpcport.StatusDown // it was that of the host
		}
		return
	}
	out.Host = w.Host
	if out.Status == vpcport.StatusError {
		out.Binding = vpcport.Binding{Result: vpcport.BindingFailed}
		return
	}
	out.Binding = vpcport.Binding{Result: vpcport.Bound, Plug: vpcport.Plug{Kind: vpcport.Netns, Netns: p.settings.NetnsPrefix + w.Network}}
}

// nowhere is a port as it is after a host was asked for that Alcor does not have.
func nowhere(port vpcport.Port, host string) vpcport.Port {
	port.Host, port.Binding, port.Status = host, vpcport.Binding{Result: vpcport.BindingFailed}, vpcport.StatusDown
	return port
}

// rehosted are the changes that bind a port to a host, or to none.
func rehosted(now wirePort, host string) (to *string, tags *[]string) {
	marked := slices.Contains(now.Tags, Unbound)
	others := slices.DeleteFunc(slices.Clone(now.Tags), func(t string) bool { return t == Unbound })
	switch {
	case host == "" && (marked || now.Host == ""):
		return nil, nil
	case host == "":
		others = append(others, Unbound)
		return nil, &others
	case marked:
		if others == nil {
			others = []string{}
		}
		return &host, &others
	}
	return &host, nil
}
