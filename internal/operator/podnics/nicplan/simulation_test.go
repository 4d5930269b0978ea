package nicplan_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/portfake"
)

// The PodNIC's content, which outlives operators, and when it was last written.
type recorded struct {
	kept    bool
	port    string
	version int
}

// operator works for one NIC: what it knows of the PodNIC, and what it has observed.
type operator struct {
	saw recorded
	h   nicplan.Observed
	try byte // number of the MAC address in use
}

// simulation is the life of one NIC with operators that may end at any moment, two of which may believe that they lead, and with
// a provider whose calls fail before or after taking effect.
type simulation struct {
	t        *testing.T
	random   *rand.Rand
	provider *portfake.Provider
	w        nicplan.Desired
	object   recorded
	leaders  [2]operator
	trouble  bool
	warm     bool // whether there are warm ports
	lasts    bool // the first operator is the only one, until the end
	log      []string
}

const cluster, uid = "blue", "uid-1"

func newSimulation(t *testing.T, seed uint64) *simulation {
	s := &simulation{t: t, random: rand.New(rand.NewPCG(seed, 13)), trouble: true, lasts: seed%7 == 3}
	traits := vpcport.Traits{MaxBatch: 64, MaxFilter: 100, ChosenMAC: true, Revisions: true}
	traits.ChosenMAC = seed%3 != 0
	s.provider = portfake.New(portfake.Options{Traits: traits})
	s.provider.AddNetwork(vpcport.Network{ID: "n", MTU: 1500, Subnets: []vpcport.Subnet{{ID: "s", CIDR: netip.MustParsePrefix("10.0.0.0/24"), Gateway: netip.MustParseAddr("10.0.0.1")}}})
	for _, host := range []string{"node-a", "node-b"} {
		s.provider.AddHost(host, vpcport.Plug{Kind: vpcport.OVS, Bridge: "br-int"})
	}
	s.w = nicplan.Desired{Cluster: cluster, Port: vpcport.NewPort{Device: vpcport.Device(cluster, uid), Name: "default/web-0-eth0", NetworkID: "n"}}
	if seed%5 == 0 {
		s.w.Tag = vpcport.NamespaceTag(cluster, "default")
		s.w.Given = s.provider.AddPort(vpcport.Port{NetworkID: "n", Tags: []string{s.w.Tag}}).ID
	}
	if s.warm = seed%6 == 1 && s.w.Given == ""; s.warm {
		for i := range 4 {
			s.provider.AddPort(vpcport.Port{NetworkID: "n", Device: vpcport.WarmDevice(cluster, "vpc-1", fmt.Sprint(i)), Owner: vpcport.Owner})
		}
	}
	if seed%4 == 0 { // a foreign port with the same MAC address
		s.provider.AddPort(vpcport.Port{NetworkID: "n", MAC: vpcport.DerivedMAC(cluster, uid, 0), Device: "somebody"})
	}
	return s
}

// want returns the desired state as seen by an operator, which tries MAC addresses one by one.
func (s *simulation) want(o *operator) nicplan.Desired {
	w := s.w
	if s.provider.Traits().ChosenMAC && w.Given == "" {
		w.Port.MAC = vpcport.DerivedMAC(cluster, uid, o.try)
	}
	return w
}

// begin resets an operator, as after a restart or after another writer changed the PodNIC.
func (s *simulation) begin(o *operator) {
	*o = operator{saw: s.object, h: nicplan.Restored(s.object.kept, s.object.port)}
}

// step lets an operator perform its next step, and reports whether it had one.
func (s *simulation) step(i int) bool {
	o := &s.leaders[i]
	w := s.want(o)
	next := nicplan.Next(w, o.h, nicplan.Constraints{Warm: s.warm && s.random.IntN(2) == 0}, nicplan.Attempts{})
	if next.Kind == nicplan.Take && !s.take(o) {
		next = nicplan.Next(w, o.h, nicplan.Constraints{}, nicplan.Attempts{})
	}
	s.log = append(s.log, fmt.Sprintf("operator %d: %v %s (%s)", i, next.Kind, next.Port, next.Why))
	switch next.Kind {
	case nicplan.Take: // already done
	case nicplan.Rest, nicplan.Poll:
		return false
	case nicplan.Impossible:
		s.t.Fatalf("%s", next.Why)
	case nicplan.Keep:
		s.write(o, func(r *recorded) { r.kept = true })
	case nicplan.Record:
		s.write(o, func(r *recorded) { r.port = next.Port })
	case nicplan.Forget:
		s.write(o, func(r *recorded) { *r = recorded{version: r.version} })
	case nicplan.Rename:
		o.try++
		o.h = o.h.Renamed()
	case nicplan.Look:
		s.look(o, w)
	default:
		s.call(o, w, next)
	}
	return true
}

// take lets an operator take a warm port for the NIC, if there is one.
func (s *simulation) take(o *operator) bool {
	for _, p := range s.provider.All() {
		if isWarm(p) && p.ID != s.object.port {
			o.h = o.h.Took(p)
			return true
		}
	}
	return false
}

// write changes the PodNIC unless somebody else did.
func (s *simulation) write(o *operator, edit func(*recorded)) {
	if o.saw.version != s.object.version {
		s.begin(o)
		return
	}
	edit(&s.object)
	s.object.version++
	h := o.h
	h.Kept, h.Recorded = s.object.kept, s.object.port
	o.saw, o.h = s.object, h
}

// look lists ports by device and, if it was rejected, by MAC address.
func (s *simulation) look(o *operator, w nicplan.Desired) {
	f := vpcport.Filter{Devices: []string{w.Port.Device}}
	known := o.h.Recorded
	if w.Given != "" {
		f = vpcport.Filter{IDs: []string{w.Given}}
	}
	ports, err := s.provider.Ports(s.t.Context(), f)
	if err == nil && o.h.Collided {
		var others []vpcport.Port
		others, err = s.provider.Ports(s.t.Context(), vpcport.Filter{NetworkID: "n", MACs: []mac.Addr{w.Port.MAC}})
		for _, p := range others {
			if p.Device != w.Port.Device {
				ports = append(ports, p)
			}
		}
	}
	if err == nil && known != "" && !slices.ContainsFunc(ports, func(p vpcport.Port) bool { return p.ID == known }) {
		if p, err := s.provider.Get(s.t.Context(), known); err == nil {
			ports = append(ports, p)
		}
	}
	if err == nil {
		o.h = o.h.After(w, nicplan.Step{Kind: nicplan.Look}, nicplan.Reply{Ports: ports}, true) // no calls are in flight here
	}
}

func (s *simulation) call(o *operator, w nicplan.Desired, next nicplan.Step) {
	if s.trouble && s.random.IntN(3) == 0 {
		s.provider.Front.Inject(portfake.Fault{Times: 1, Err: portfake.Err(vpcport.Transient), After: s.random.IntN(2) == 0})
	}
	var port *vpcport.Port
	var err error
	switch next.Kind {
	case nicplan.Create:
		var made []vpcport.Port
		if made, err = s.provider.Create(s.t.Context(), []vpcport.NewPort{w.Port}); err == nil {
			port = &made[0]
		}
	case nicplan.Change:
		var changed vpcport.Port
		if changed, err = s.provider.Update(s.t.Context(), next.Port, o.h.Port.Revision, next.Change); err == nil {
			port = &changed
		}
	case nicplan.Delete:
		err = s.provider.Delete(s.t.Context(), next.Port)
	default:
		s.t.Fatalf("unknown step: %v", next.Kind)
	}
	s.provider.Front.ClearFaults()
	if s.trouble && !s.lasts && s.random.IntN(5) == 0 {
		s.log = append(s.log, "... and ends before the reply")
		s.begin(o)
		return
	}
	o.h = o.h.After(w, next, nicplan.Reply{Port: port, Err: err}, true)
}

// happens simulates an event caused by the user, the scheduler or another client.
func (s *simulation) happens() {
	switch s.random.IntN(6) {
	case 0:
		s.w.Port.Host = "node-a"
	case 1:
		s.w.Port.Host = "node-b"
	case 2:
		s.w.Held = !s.w.Held
	case 3:
		if !s.lasts {
			s.begin(&s.leaders[s.random.IntN(2)])
		}
	case 4:
		if ports := s.mine(); len(ports) > 0 && s.w.Given == "" {
			s.provider.Remove(ports[0].ID)
			for i := range s.leaders { // which a later listing shows
				s.leaders[i].h.Looked = false
			}
		}
	}
}

// leader returns the index of the operator whose turn it is.
func (s *simulation) leader() int {
	if s.lasts {
		return 0
	}
	return s.random.IntN(2)
}

// mine returns the ports with the NIC's mark.
func (s *simulation) mine() (out []vpcport.Port) {
	for _, p := range s.provider.All() {
		if _, ok := p.NIC(cluster); ok && !isWarm(p) {
			out = append(out, p)
		}
	}
	return out
}

func isWarm(p vpcport.Port) bool {
	_, is := p.WarmVPC(cluster)
	return is
}

// others counts the ports that are not Berth's.
func (s *simulation) others() (n int) {
	for _, p := range s.provider.All() {
		if _, ok := p.NIC(cluster); !ok {
			n++
		}
	}
	return n
}

// settle lets the operators work without failures until neither has anything to do: the current leader, and then one started
// after it.
func (s *simulation) settle() {
	s.trouble = false
	s.w.Held = false
	for i := range s.leaders {
		if !s.lasts {
			s.begin(&s.leaders[i])
		}
		if s.lasts && i > 0 {
			return
		}
		for n := 0; s.step(i); n++ {
			if n > 100 {
				s.t.Fatalf("operator does not come to rest; last steps: %v", s.log[len(s.log)-20:])
			}
		}
	}
}

// Whenever operators end and whichever believe that they lead, a needed NIC ends up with exactly one port, which is recorded and
// bound where the pod is, and an ended NIC leaves nothing. Users' and foreign ports are unchanged at the end.
func TestSimulation(t *testing.T) {
	for seed := range uint64(600) {
		s := newSimulation(t, seed)
		others := s.others()
		for i := range s.leaders {
			s.begin(&s.leaders[i])
		}
		for range 40 {
			s.step(s.leader())
			if s.random.IntN(4) == 0 {
				s.happens()
			}
		}
		s.settle()
		mine := s.mine()
		if len(mine) != 1 || mine[0].ID != s.object.port || mine[0].Host != s.w.Port.Host {
			t.Errorf("seed %d: want one port at host %q, recorded as %q, got %+v; steps:\n%v", seed, s.w.Port.Host, s.object.port, mine, s.log)
		}
		s.w.Over, s.trouble = true, true
		for range 20 {
			s.step(s.leader())
		}
		s.settle()
		if left := s.provider.All(); len(s.mine()) > 0 || s.others() != others || s.object.kept {
			t.Errorf("seed %d: after the end, ports left = %+v, finalizer kept = %t; steps:\n%v", seed, left, s.object.kept, s.log)
		}
		if t.Failed() {
			return
		}
	}
}
