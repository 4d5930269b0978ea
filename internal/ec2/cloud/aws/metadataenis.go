package aws

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// AttachedENIs returns the ENIs of the instance that the metadata service lists. Errors are those of Identity.
func (m *Metadata) AttachedENIs(ctx context.Context) (list []cloud.AttachedENI, err error) {
	ctx, cancel := m.deadline(ctx)
	defer cancel()
	r := &metadataReading{m: m, ctx: ctx}
	const macs = "network/interfaces/macs/"
	for _, name := range strings.Fields(r.get(macs, required)) {
		mac, err := net.ParseMAC(strings.TrimSuffix(name, "/"))
		if err != nil || len(mac) != 6 {
			r.bad(macs, name, "a MAC address")
			break
		}
		list = append(list, r.eni(macs+mac.String()+"/", mac))
	}
	if r.err != nil {
		return nil, r.err
	}
	return list, nil
}

// eni reads one ENI. Paths of the other family, and that of the network card on most instance types, are absent.
func (r *metadataReading) eni(at string, mac net.HardwareAddr) cloud.AttachedENI {
	e := cloud.AttachedENI{ID: r.text(at + "interface-id"), MAC: mac, DeviceIndex: r.number(at+"device-number", required), NetworkCard: r.number(at+"network-card", optional)}
	if own := strings.Fields(r.get(at+"local-ipv4s", optional)); len(own) > 0 {
		e.Primary = r.parsed(ipv4, at+"local-ipv4s", own[0])
		for _, a := range own[1:] {
			e.Held = append(e.Held, cloud.HostPrefix(r.parsed(ipv4, at+"local-ipv4s", a)))
		}
		e.Subnet = r.prefix(at+"subnet-ipv4-cidr-block", r.get(at+"subnet-ipv4-cidr-block", required))
	}
	for _, a := range strings.Fields(r.get(at+"ipv6s", optional)) {
		e.Held = append(e.Held, cloud.HostPrefix(r.parsed(ipv6, at+"ipv6s", a)))
	}
	for _, path := range []string{at + "ipv4-prefix", at + "ipv6-prefix"} {
		for _, p := range strings.Fields(r.get(path, optional)) {
			e.Held = append(e.Held, r.prefix(path, p))
		}
	}
	return e
}

func (r *metadataReading) number(path string, need presence) int {
	s := r.get(path, need)
	if s == "" && need == optional {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		r.bad(path, s, "a number")
	}
	return n
}

func (r *metadataReading) parsed(f family, path, s string) netip.Addr {
	a, ok := f.addr(s)
	if !ok {
		r.bad(path, s, "an "+f.name+" address")
		return netip.IPv4Unspecified()
	}
	return a
}

func (r *metadataReading) prefix(path, s string) netip.Prefix {
	p, err := netip.ParsePrefix(s)
	if err != nil || p != p.Masked() || p.Addr().Is4In6() {
		r.bad(path, s, "a prefix without host bits")
	}
	return p
}
