package enisource

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/source"
)

// New returns a source for node mode, supplied by a reconciler created with c. It is ready for Restore.
// A stored inventory of this instance is loaded. The source sets InstanceID, Node, Clock and Logger
// of c.
func New(o Options, c eni.Config) (*Source, error) {
	s, err := newSource(o)
	if err != nil {
		return nil, err
	}
	c.InstanceID, c.Node, c.Clock, c.Logger = o.InstanceID, (*reconcilerNode)(s), s.clock, s.log
	rec, err := eni.New(c)
	if err != nil {
		return nil, err
	}
	s.supply = &reconciled{Reconciler: rec, log: s.log, counts: Desired{Template: o.Template, Settings: c.Settings}}
	s.file.load()
	return s, nil
}

// Desired are the desired settings of the ENIs.
type Desired struct {
	Template string // the object that they come from; empty: the daemon's configuration
	Settings eni.Settings
	Err      error                      // why they are invalid, so that the previous ones stay; nil: valid
	Fits     func(*eni.Inventory) error // checks them against this instance; nil: always possible
	Applied  func()                     // called once they are applied; may be nil
}

// Configure applies other settings to a source created with New. Invalid settings change nothing; the log
// and LastError describe them.
func (s *Source) Configure(w Desired) {
	if r, ok := s.supply.(*reconciled); ok {
		r.configure(w)
	}
}

// reconciled is a reconciler in the role of a Supplier.
type reconciled struct {
	*eni.Reconciler
	log *slog.Logger

	mu      sync.Mutex // guards the fields below
	counts  Desired    // the settings that the reconciler applies
	refused error      // why the newest settings are not applied
}

func (r *reconciled) configure(w Desired) {
	if w.Err != nil {
		r.taken(w, w.Err)
		return
	}
	r.Reconfigure(eni.Change{Settings: w.Settings, Fits: w.Fits, Taken: func(err error) { r.taken(w, err) }})
}

// taken records whether settings were applied.
func (r *reconciled) taken(w Desired, err error) {
	before := r.note(w, err)
	if err == nil && w.Applied != nil {
		w.Applied()
	}
	switch {
	case err != nil:
		r.log.Error("settings of a template not applied, the previous ones stay", "template", w.Template, "err", err)
	case before != w.Template:
		r.log.Info("settings of another template applied", "template", w.Template, "before", before)
	}
}

func (r *reconciled) note(w Desired, err error) (before string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before = r.counts.Template
	if err == nil {
		r.counts, r.refused = w, nil
	} else {
		r.refused = fmt.Errorf("%s is not applied: %w", w.Template, err)
	}
	return before
}

// PrefixDelegation implements Supplier.
func (r *reconciled) PrefixDelegation() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts.Settings.Policy.PrefixDelegation
}

// Template implements Supplier.
func (r *reconciled) Template() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts.Template
}

// LastError implements Supplier.
func (r *reconciled) LastError() string {
	text := r.Status().LastError
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.refused == nil:
		return text
	case text == "":
		return r.refused.Error()
	}
	return text + "; " + r.refused.Error()
}

// OtherGroups implements Supplier.
func (r *reconciled) OtherGroups() (enis []string, followed, compared bool) {
	enis = r.Status().OtherGroups
	r.mu.Lock()
	defer r.mu.Unlock()
	return enis, r.counts.Settings.FollowGroups, true
}

// reasons are the reasons of waiting pods, by class of the cloud's error.
var reasons = map[cloud.Class]string{
	cloud.Throttled: "throttled", cloud.SubnetFull: plan.ReasonSubnetFull, cloud.LimitReached: plan.ReasonENILimit,
	cloud.Permission: "permission", cloud.Bug: "refused", cloud.Gone: "refused",
}

// Why implements Supplier.
func (r *reconciled) Why(served bool) *source.Exhausted { return Why(r.Status(), served) }

// Why returns the reason why waiting pods get no address, according to a reconciler's status. Served means that there is an
// inventory.
func Why(st eni.Status, served bool) *source.Exhausted {
	switch {
	case st.Err != nil && (st.Grows || !st.Confirmed):
		reason, ok := reasons[st.Class]
		if !ok {
			reason = "unreachable"
		}
		return &source.Exhausted{Reason: reason, Message: "no address is free: " + st.LastError, Err: st.Err}
	case !st.Confirmed && !served:
		return &source.Exhausted{Reason: "starting", Message: "no address is free: waiting for EC2 to list the addresses of this node"}
	case st.Shortage != "":
		return &source.Exhausted{Reason: st.Shortage, Message: "no address is free: " + st.Explanation}
	}
	return &source.Exhausted{Reason: Growing, Message: "no address is free yet: EC2 was asked for more, which has not arrived"}
}

// reconcilerNode is the Source in the role of the reconciler's Node.
type reconcilerNode Source

var _ eni.Node = (*reconcilerNode)(nil)

// NodeOf returns a source in the role of a reconciler's Node, for a source that was created with NewSupplied and whose
// reconciler runs elsewhere in the process.
func NodeOf(s *Source) eni.Node { return (*reconcilerNode)(s) }

// Usage implements eni.Node. Withheld addresses count as used, so that replacements are requested and
// their ENI stays.
func (s *reconcilerNode) Usage() eni.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := eni.Usage{ENIs: map[string]eni.ENIUsage{}, Waiting: s.addresses.waiters.Len(), MissingLinks: s.addresses.enis.missingLinks()}
	for _, g := range s.addresses.alloc.Groups() {
		of := eni.ENIUsage{Used: g.Used() + g.Withheld(), Cooling: g.Cooling(), Assignable: g.Assignable(s.addresses.inv.Families)}
		for f, c := range g.Of {
			of.Free = of.Free.Plus(cloud.AmountIn(ipfamily.Family(f), c.FreeSingles, c.FreePrefixes))
		}
		u.ENIs[g.ID] = of
	}
	for _, l := range s.addresses.leases {
		if _, ok := s.addresses.enis.published[l.ENI]; !ok && l.ENI != "" { // for example of an ENI that is no longer attached
			of := u.ENIs[l.ENI]
			of.Used++
			u.ENIs[l.ENI] = of
		}
	}
	return u
}

// Publish implements eni.Node. It writes the file first, then the memory.
func (s *reconcilerNode) Publish(_ context.Context, inv eni.Inventory) error {
	err := (*Source)(s).file.save(func() { s.addresses.inv = inv })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addresses.confirm(inv)
	s.addresses.serve(s.clock.Now())
	s.program.Set()
	return err
}

// ObserveFailed implements eni.Node.
func (s *reconcilerNode) ObserveFailed(error) { (*Source)(s).ServeUnconfirmed() }

// Withdraw implements eni.Node.
func (s *reconcilerNode) Withdraw(id string, want cloud.Amount) (withdrawn []netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range ipfamily.Dual.Families() {
		addresses, prefixes := want.Of(f)
		withdrawn = append(withdrawn, s.addresses.alloc.Withdraw(id, f, addresses, prefixes)...)
	}
	return withdrawn
}

// RestoreWithdrawn implements eni.Node.
func (s *reconcilerNode) RestoreWithdrawn(withdrawn []netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addresses.alloc.Restore(withdrawn)
	s.addresses.serve(s.clock.Now())
}

// WithdrawENI implements eni.Node.
func (s *reconcilerNode) WithdrawENI(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.addresses.holds(id) { // even if the cloud does not list it for the node
		return false
	}
	if _, ok := s.addresses.enis.published[id]; !ok {
		return true
	}
	return s.addresses.alloc.WithdrawGroup(id) == nil
}
