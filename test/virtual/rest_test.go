package virtual

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/source/enisource"
	"github.com/berthnet/berth/internal/statefile"
)

// settle waits until all views agree, and fails the test with their differences.
func (n *node) settle(also ...func() error) {
	n.t.Helper()
	await(n.t, func() error {
		if err := n.agree(); err != nil {
			return err
		}
		for _, check := range also {
			if err := check(); err != nil {
				return err
			}
		}
		return nil
	})
}

// await waits until check returns nil.
func await(t *testing.T, check func() error) {
	t.Helper()
	var err error
	for begun := time.Now(); time.Since(begun) < patience; time.Sleep(3 * time.Second) { //nolint:forbidigo // virtual time
		if err = check(); err == nil {
			return
		}
	}
	t.Errorf("still not at rest after %v: %v", patience, err)
}

// agree compares records, kernel, cloud and replies to pods.
func (n *node) agree() error {
	w, _ := n.daemon()
	dir := n.dir(w.number)
	records, err := records(dir)
	if err == nil {
		err = n.podsAgree(records)
	}
	if err == nil && n.cloud != nil {
		err = n.cloudAgrees(dir, records)
	}
	if err != nil {
		return err
	}
	return n.pods.call(func(ctx context.Context, client rpc.NodeClient) error {
		_, err := client.Status(ctx, &rpc.StatusRequest{})
		return err
	})
}

// podsAgree compares records and kernel with the replies to pods.
func (n *node) podsAgree(records []attachment.Record) error {
	n.pods.mu.Lock()
	defer n.pods.mu.Unlock()
	var errs []error
	var wantLinks, wantRoutes []string
	for name, s := range n.pods.live {
		link := datapath.HostLinkName("berth", s.container, "eth0")
		wantLinks = append(wantLinks, link)
		for _, a := range s.addresses {
			wantRoutes = append(wantRoutes, a.String()+" "+link)
		}
		for _, f := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
			if slices.ContainsFunc(s.addresses, func(a netip.Addr) bool { return ipfamily.Of(a) == f }) != n.families.Has(f) {
				errs = append(errs, fmt.Errorf("addresses of pod %s = %v, want %s", name, s.addresses, n.families))
			}
		}
		i := slices.IndexFunc(records, func(r attachment.Record) bool { return r.Key.ContainerID == s.container })
		if i < 0 {
			errs = append(errs, fmt.Errorf("pod %s has no record", name))
			continue
		}
		if r := records[i]; r.State != attachment.Ready || !slices.Equal(r.Lease.Addrs(), s.addresses) {
			errs = append(errs, fmt.Errorf("record of pod %s is %s with %v, want ready with %v", name, r.State, r.Lease.Addrs(), s.addresses))
		}
	}
	if len(records) != len(n.pods.live) {
		errs = append(errs, fmt.Errorf("%d records for %d pods", len(records), len(n.pods.live)))
	}
	slices.Sort(wantLinks)
	slices.Sort(wantRoutes)
	links, routes := n.kernel.State()
	errs = append(errs, same("links", links, wantLinks), same("routes", routes, wantRoutes))
	return errors.Join(errs...)
}

func same(what string, got, want []string) error {
	if !slices.Equal(got, want) {
		return fmt.Errorf("%s = %v, want %v", what, got, want)
	}
	return nil
}

// records reads the records in a state directory, which must all be intact.
func records(dir string) (out []attachment.Record, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "attachments", "attachment-*"))
	if err != nil {
		return nil, err
	}
	for _, path := range files {
		data, err := statefile.Read(path)
		if err != nil {
			return nil, err
		}
		rec, err := attachment.DecodeRecord(data)
		if err != nil || filepath.Ext(path) != ".json" {
			return nil, fmt.Errorf("%s: damaged: %w", path, err)
		}
		out = append(out, rec)
	}
	return out, nil
}

// cloudAgrees compares the addresses assigned in EC2 with the daemon's inventory, data path and leases.
func (n *node) cloudAgrees(dir string, records []attachment.Record) error {
	var errs []error
	inv, ok, err := enisource.Files{Dir: dir}.Load()
	if err != nil || !ok {
		return fmt.Errorf("no inventory: %w", err)
	}
	assigned, uplinks := map[netip.Prefix]string{}, n.kernel.Uplinks()
	var attached []string
	for _, e := range n.cloud.State.Truth() {
		switch {
		case e.Attachment == nil:
			errs = append(errs, fmt.Errorf("%s is left detached", e.ID))
			continue
		case e.Attachment.Status != "attached":
			errs = append(errs, fmt.Errorf("%s is %s", e.ID, e.Attachment.Status))
		case !e.Attachment.DeleteOnTermination:
			errs = append(errs, fmt.Errorf("DeleteOnTermination is not set on %s", e.ID))
		}
		index := e.Attachment.DeviceIndex
		if up, ok := uplinks[index]; index > 0 && (!ok || up.ID != e.ID) {
			errs = append(errs, fmt.Errorf("uplink in the data path = %q, want the ENI %s", up.ID, e.ID))
		}
		delete(uplinks, index)
		attached = append(attached, e.ID)
		things := slices.Concat(cloud.HostPrefixes(e.Addresses), e.Prefixes, e.IPv6Prefixes)
		if index > 0 {
			things = append(things, cloud.HostPrefixes(e.IPv6)...)
		}
		for _, p := range things {
			assigned[p] = e.ID
		}
	}
	for number, up := range uplinks {
		errs = append(errs, fmt.Errorf("uplink %d in the data path belongs to %s, which is not attached", number, up.ID))
	}
	var known []string
	held := map[netip.Prefix]string{}
	for _, e := range inv.ENIs {
		known = append(known, e.ID)
		for _, p := range slices.Concat(cloud.HostPrefixes(e.Addresses), e.Prefixes, cloud.HostPrefixes(e.IPv6), e.IPv6Prefixes) {
			held[p] = e.ID
		}
	}
	slices.Sort(attached)
	slices.Sort(known)
	errs = append(errs, same("ENIs in the inventory", known, attached))
	for p, id := range assigned {
		if held[p] != id {
			errs = append(errs, fmt.Errorf("%v is assigned to %s, but the inventory has it on %q", p, id, held[p]))
		}
	}
	for p, id := range held {
		if assigned[p] != id {
			errs = append(errs, fmt.Errorf("the inventory has %v on %s, but it is assigned to %q", p, id, assigned[p]))
		}
	}
	for _, r := range records {
		for _, a := range r.Lease.Addrs() {
			if !slices.ContainsFunc(r.Lease.Held(), func(h netip.Addr) bool { return h == a }) {
				continue // node-local address
			}
			on := ""
			for p, id := range assigned {
				if p.Contains(a) {
					on = id
				}
			}
			if on != r.Lease.ENI {
				errs = append(errs, fmt.Errorf("pod %s has %s on %s according to its lease, but on %q in EC2", r.Pod.Name, a, r.Lease.ENI, on))
			}
		}
	}
	return errors.Join(errs...)
}

// primaryAlone returns an error unless the node is back to its primary ENI.
func (n *node) primaryAlone() error {
	if list := n.cloud.State.Truth(); len(list) != 1 {
		return fmt.Errorf("%d ENIs, want only the primary one", len(list))
	}
	return nil
}

// oneFurther returns an error unless the node is back to one secondary ENI with one address.
func (n *node) oneFurther() error {
	list := n.cloud.State.Truth()
	addresses := 0
	for _, e := range list {
		addresses += len(e.Addresses)
	}
	if len(list) != 2 || addresses != 1 {
		return fmt.Errorf("%d ENIs with %d addresses, want 2 with one warm address", len(list), addresses)
	}
	return nil
}
