package fabric

import (
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Cause is the reason why the fabric dropped a packet.
type Cause string

// Causes of drops.
const (
	Source      Cause = "source"      // source not assigned to the ENI that sent it
	Destination Cause = "destination" // destination in the VPC that no ENI owns
	Gateway     Cause = "gateway"     // no public address at the internet gateway
	Egress      Cause = "egress"      // not allowed by an egress rule of the sender's groups
	Ingress     Cause = "ingress"     // not allowed by an ingress rule of the receiver's groups
)

var eniCauses = [...]Cause{Source, Destination, Gateway, Egress, Ingress}

// gatewayCounter replaces an ENI ID for packets that came from no ENI.
const gatewayCounter = "igw"

// Drops counts dropped packets since an ENI was attached, by cause, without causes that are zero. Ingress drops
// count for the receiver, all others for the sender.
type Drops map[Cause]uint64

// Drops returns the drops of every attached ENI by its ID, and those of packets from the internet or to the EC2
// API under "igw".
func (f *Fabric) Drops() (map[string]Drops, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, fmt.Errorf("read drop counters: the fabric is closed")
	}
	objs, err := f.nft.GetObjects(f.rules.table)
	if err != nil {
		return nil, fmt.Errorf("read drop counters: %w", err)
	}
	out := map[string]Drops{}
	for _, o := range objs {
		name, packets, ok := readCounter(o)
		id, cause, cut := strings.Cut(name, "/")
		if !ok || !cut {
			continue
		}
		if out[id] == nil {
			out[id] = Drops{}
		}
		if packets > 0 {
			out[id][Cause(cause)] = packets
		}
	}
	return out, nil
}

func readCounter(o nftables.Obj) (name string, packets uint64, ok bool) {
	switch o := o.(type) {
	case *nftables.NamedObj:
		if c, isCounter := o.Obj.(*expr.Counter); isCounter {
			return o.Name, c.Packets, true
		}
	case *nftables.CounterObj:
		return o.Name, o.Packets, true
	}
	return "", 0, false
}

func counterName(id string, cause Cause) string { return id + "/" + string(cause) }

func (r *ruleset) counter(id string, cause Cause) nftables.Obj {
	return &nftables.NamedObj{
		Table: r.table, Name: counterName(id, cause), Type: nftables.ObjTypeCounter, Obj: &expr.Counter{},
	}
}

// counter name "id/cause"
func (r *ruleset) count(id string, cause Cause) expr.Any {
	return &expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: counterName(id, cause)}
}
