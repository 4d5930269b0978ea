package neutron

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

// maxBatch keeps requests below 114,688 bytes, the limit of oslo.middleware's filter sizelimit
// (max_request_body_size) in front of Neutron. A port takes about 600 bytes, and 1,700 with the longest
// names and 16 groups (TestLargestBatch).
const maxBatch = 64

// maxName is the maximum length of a port's name in bytes. Neutron allows as many characters.
const maxName = 255

// Traits implements vpcport.Provider.
func (p *Provider) Traits() vpcport.Traits {
	return vpcport.Traits{MaxBatch: maxBatch, MaxFilter: maxFilter, ChosenMAC: !p.settings.ProviderMAC, Revisions: true}
}

// Create implements vpcport.Provider with one request: ML2 makes all of its ports in one transaction. A
// second request reads the bound ports.
func (p *Provider) Create(ctx context.Context, ports []vpcport.NewPort) ([]vpcport.Port, error) {
	r := request{method: http.MethodPost, path: "ports", scope: scope{names: rest.NamesOf(ports)}}
	if len(ports) == 0 || len(ports) > maxBatch {
		return nil, &vpcport.Error{Class: vpcport.TooLarge, Op: r.op(), Message: fmt.Sprintf("a request for %d ports, expected 1 to %d", len(ports), maxBatch)}
	}
	body := struct {
		Ports []wireNew `json:"ports"`
	}{}
	for _, n := range ports {
		if !rest.ValidID(n.NetworkID) {
			return nil, rest.BadRequest(r.op(), "a port of network %q", n.NetworkID)
		}
		body.Ports = append(body.Ports, p.settings.wire(n))
	}
	r.body = body
	var reply struct {
		Ports []wirePort `json:"ports"`
	}
	if err := p.call(ctx, r, &reply); err != nil {
		return nil, p.networkGone(ctx, err, r.scope.names.Networks)
	}
	out, err := made(r.op(), ports, reply.Ports)
	if err != nil {
		return nil, err
	}
	return p.settled(ctx, out)
}

// noSubnets is in Neutron's message to an administrator who requests addresses of a network that has no
// subnets or does not exist.
const noSubnets = "IP allocation requires subnets for network"

// networkGone turns an error with noSubnets into NetworkGone if one of the networks does not exist.
func (p *Provider) networkGone(ctx context.Context, err error, networks []string) error {
	refused, ok := errors.AsType[*vpcport.Error](err)
	if !ok || refused.Class != vpcport.Invalid || !strings.Contains(refused.Message, noSubnets) {
		return err
	}
	for _, id := range networks {
		if found, lerr := p.networks(ctx, "id", id); lerr == nil && len(found) == 0 {
			out := *refused
			out.Class, out.About, out.Message = vpcport.NetworkGone, id, "no network has the ID "+id+": "+refused.Message
			return &out
		}
	}
	return err
}

// wire converts a request for a port.
func (s Settings) wire(n vpcport.NewPort) wireNew {
	w := wireNew{Network: n.NetworkID, Project: s.Project, Name: vpcport.Cut(n.Name, maxName), Device: n.Device, Owner: vpcport.Owner, Host: n.Host}
	if n.MAC != nil {
		w.MAC = n.MAC.String()
	}
	if n.Addresses != nil {
		ips := rest.IPs(n.Addresses)
		w.FixedIPs = &ips
	}
	if n.Groups != nil {
		w.Groups = &n.Groups
	}
	return w
}

// made decodes new ports in the order of their requests, and compares each with its request.
func made(op string, asked []vpcport.NewPort, got []wirePort) ([]vpcport.Port, error) {
	if len(got) != len(asked) {
		return nil, rest.BadReply(op, "requested %d ports, got %d", len(asked), len(got))
	}
	got = inOrder(asked, got)
	ids := map[string]bool{}
	out := make([]vpcport.Port, len(got))
	for i, w := range got {
		var err error
		if out[i], err = w.port(op); err != nil {
			return nil, err
		}
		if what := vpcport.Mismatch(asked[i], out[i]); what != "" || ids[w.ID] {
			return nil, rest.BadReply(op, "port %s for device %q has another %s", w.ID, asked[i].Device, what)
		}
		ids[w.ID] = true
	}
	return out, nil
}

// inOrder sorts ports like their requests if their devices are unique. Neutron keeps the order, but its
// API does not promise it.
func inOrder(asked []vpcport.NewPort, got []wirePort) []wirePort {
	by := map[string]int{}
	for i, w := range got {
		by[w.Device] = i
	}
	out := make([]wirePort, 0, len(got))
	for _, n := range asked {
		i, ok := by[n.Device]
		if !ok || len(by) != len(got) {
			return got
		}
		out = append(out, got[i])
	}
	return out
}
