package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
)

// watermark is how many addresses a node has to spare in operator mode.
const watermark = 2

// Settings of operator mode under which the story is short: addresses cool for
// less long, excess and orphans go back sooner, and a dead leader is missed sooner.
var (
	operatorModeArgs = []string{fmt.Sprintf("--pre-allocate=%d", watermark), "--cooling-period=" + coolingPeriods[lab.OperatorMode].String()}
	operatorArgs     = []string{"--shrink-delay=1s", "--listing-interval=3s", "--node-gone-grace=2s", "--orphan-age=20s", "--orphan-interval=10s", "--lease-duration=4s", "--renew-deadline=3s", "--retry-period=500ms"}
)

// smallSubnet has 11 addresses; spareSubnet is in the same zone, where no other
// is.
const (
	smallSubnet = "small"
	spareSubnet = "spare"
)

func labSpec(nodes int, instanceType string) spec.Spec {
	s := lab.DefaultSpec(nodes, instanceType)
	s.VPCs[0].Subnets = append(slices.Clone(s.VPCs[0].Subnets),
		spec.Subnet{Name: smallSubnet, Zone: "lab-1c", CIDR: netip.MustParsePrefix("10.0.8.0/28")},
		spec.Subnet{Name: spareSubnet, Zone: "lab-1c", CIDR: netip.MustParsePrefix("10.0.9.0/24")},
	)
	return s
}

// until tries until is returns nil, or ctx ends: what it looks at are other
// processes, which tell nobody.
func until(ctx context.Context, what string, is func() error) error {
	if err := poll.Until(ctx, is); err != nil {
		return fmt.Errorf("%s: %w: %w", what, context.Cause(ctx), err)
	}
	return nil
}

// join looks at who calls EC2: the operator, and no node, which may not.
func join(ctx context.Context, s *stage) (string, error) {
	for _, n := range s.nodes {
		o, err := s.lab.Kube.NodeNetwork(ctx, n.Name)
		if err != nil {
			return "", err
		}
		if o.Spec.InstanceID != n.InstanceID {
			return "", fmt.Errorf("NodeNetwork %s is of %s, want %s", o.Name, o.Spec.InstanceID, n.InstanceID)
		}
	}
	cloud := s.lab.Cloud
	calls := cloud.API.CallLog()
	for _, c := range calls {
		if c.Principal != calls[0].Principal {
			return "", fmt.Errorf("EC2 was called by %s and %s", calls[0].Principal, c.Principal)
		}
	}
	_, key, ok := cloud.Keys.RoleCredentials(s.nodes[0].InstanceID)
	if !ok {
		return "", fmt.Errorf("%s has no role", s.nodes[0].Name)
	}
	for action := range cloud.API.Stats() {
		v := cloud.API.Admit(vpc.Call{Action: action, Principal: key.Principal})
		if v.Err == nil || v.Err.Code != "UnauthorizedOperation" {
			return "", fmt.Errorf("EC2 lets %s of %s call %s", key.Principal.ARN, s.nodes[0].Name, action)
		}
	}
	return fmt.Sprintf("%d NodeNetworks; %d EC2 calls, all by the operator; EC2 refuses the nodes' role each of %d actions",
		len(s.nodes), len(calls), len(cloud.API.Stats())), nil
}

// burst binds pods to every node, and waits for their addresses before it lets
// anybody make them.
func burst(ctx context.Context, s *stage) (string, error) {
	before, err := s.available(ctx)
	if err != nil {
		return "", err
	}
	began := time.Now()
	for _, n := range s.nodes {
		if err := s.lab.BindPods(ctx, n, names("pod", s.size.pods)...); err != nil {
			return "", err
		}
	}
	after := 0
	err = until(ctx, "addresses for pods that are bound and not made", func() (err error) {
		after, err = s.available(ctx)
		if want := len(s.nodes) * (s.size.pods + watermark); err == nil && after < want {
			err = fmt.Errorf("%d addresses, want %d", after, want)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d pods bound to %d nodes: from %d to %d addresses in %.1f s, with no ADD yet",
		len(s.nodes)*s.size.pods, len(s.nodes), before, after, time.Since(began).Seconds()), nil
}

// available counts the addresses in all NodeNetworks.
func (s *stage) available(ctx context.Context) (sum int, err error) {
	all, err := s.lab.Kube.NodeNetworks(ctx)
	for _, o := range all {
		sum += s.addressesOf(&o)
	}
	return sum, err
}

// grow adds pods until the second node is full: more than it has addresses for.
func grow(ctx context.Context, s *stage) (string, error) {
	n := s.nodes[1]
	var o *v1alpha1.NodeNetwork
	more := s.addresses - len(n.Pods())
	before, warm := 0, 0
	err := s.until(ctx, n, func(now *v1alpha1.NodeNetwork) error {
		before = s.addressesOf(now)
		warm = before - len(n.Pods())
		if more <= warm { // until what it has in excess goes back
			return fmt.Errorf("%d addresses for %d pods: nothing to grow for", before, len(n.Pods())+more)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err := s.add(ctx, n, names("more", more)); err != nil {
		return "", err
	}
	took := time.Since(began)
	err = s.until(ctx, n, func(now *v1alpha1.NodeNetwork) error {
		o = now
		return has(o, v1alpha1.ConditionAtCapacity, "True", "")
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s: %d pods with %d warm addresses; all up in %s; from %d to %d addresses, condition AtCapacity",
		n.Name, more, warm, ms(took), before, s.addressesOf(o)), nil
}

// has wants a condition to have a status, and to say something.
func has(o *v1alpha1.NodeNetwork, kind, status, word string) error {
	for _, c := range o.Status.Conditions {
		if c.Type == kind && string(c.Status) == status && strings.Contains(c.Message, word) {
			return nil
		}
	}
	return fmt.Errorf("NodeNetwork %s is not %s=%s: %s", o.Name, kind, status, conditions(o))
}

func conditions(o *v1alpha1.NodeNetwork) string {
	var out string
	for _, c := range o.Status.Conditions {
		out += fmt.Sprintf("%s=%s (%s: %s) ", c.Type, c.Status, c.Reason, c.Message)
	}
	return out
}

// killOperator kills the leader while pods talk and a new node wants addresses.
func killOperator(ctx context.Context, s *stage) (string, error) {
	n, err := s.launch(ctx, s.next())
	if err != nil {
		return "", err
	}
	if err := s.warm(ctx, n); err != nil {
		return "", err
	}
	far, err := s.first(s.nodes[1])
	if err != nil {
		return "", err
	}
	leader, goOn, err := s.lone(ctx)
	if err != nil {
		return "", err
	}
	talk, stop := context.WithCancel(ctx)
	t := &traffic{stop: stop}
	figures, err := s.failOver(talk, t, n, leader, goOn, far.Addr())
	if err = errors.Join(err, goOn(), t.end()); err != nil {
		return "", err
	}
	if err := errors.Join(revive(leader), s.recovered(ctx)); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s; %d answers, 0 lost", figures, t.answered.Load()), nil
}

// warm waits until a node has its spare addresses ready.
func (s *stage) warm(ctx context.Context, n *node.Node) error {
	return until(ctx, "spare addresses of "+n.Name, func() error {
		doc, err := lab.Document(ctx, n)
		if err == nil && doc.Totals.Available < watermark {
			err = fmt.Errorf("%d of %d", doc.Totals.Available, watermark)
		}
		return err
	})
}

// leader is the operator that leads, or the next one that does.
func (s *stage) leader(ctx context.Context) (leader *lab.Operator, err error) {
	return leader, until(ctx, "operators", func() error {
		if leader, err = s.lab.Leader(ctx); err == nil && leader == nil {
			err = errors.New("none leads")
		}
		return err
	})
}

// lone is the operator that leads, all others being halted until goOn is called.
func (s *stage) lone(ctx context.Context) (leader *lab.Operator, goOn func() error, err error) {
	for {
		if err := s.recovered(ctx); err != nil {
			return nil, nil, err
		}
		if leader, err = s.leader(ctx); err != nil {
			return nil, nil, err
		}
		goOn, all, err := s.halt(leader)
		if err != nil {
			return nil, nil, err
		}
		if now, err := s.lab.Leader(ctx); all && err == nil && now == leader {
			return leader, goOn, nil
		}
		if err := goOn(); err != nil {
			return nil, nil, err
		}
	}
}

// halt stops all operators but one where they are, until goOn is called first. All
// is false when one has just lost its Lease, and ended: the lab starts it again.
func (s *stage) halt(but *lab.Operator) (goOn func() error, all bool, err error) {
	var halted []*lab.Operator
	goOn = func() error {
		var errs []error
		for _, o := range halted {
			errs = append(errs, o.Resume())
		}
		halted = nil
		return errors.Join(errs...)
	}
	all = true
	for _, o := range s.lab.Operators() {
		if o == but {
			continue
		}
		switch err := o.Pause(); {
		case err == nil:
			halted = append(halted, o)
		case errors.Is(err, os.ErrProcessDone) || !o.Running():
			all = false
		default:
			return nil, false, errors.Join(err, goOn())
		}
	}
	return goOn, all, nil
}

// revive starts an operator that was killed, unless the lab did, as it lost its
// Lease before that.
func revive(o *lab.Operator) error {
	if err := o.Start(); err != nil && !o.Running() {
		return err
	}
	return nil
}

// failOver kills the leader and has pods come up without one, on a machine of any
// speed: the others are halted, and go on after that.
func (s *stage) failOver(ctx context.Context, t *traffic, n *node.Node, leader *lab.Operator, goOn func() error, far netip.Addr) (string, error) {
	if err := t.begin(ctx, s.nodes[0].Pods(), s.internet(), far); err != nil {
		return "", err
	}
	if err := leader.Kill(); err != nil {
		return "", err
	}
	began := time.Now()
	if err := s.add(ctx, n, names("warm", watermark)); err != nil {
		return "", err
	}
	warm := time.Since(began)
	if now, err := s.lab.Leader(ctx); err == nil && now != nil {
		return "", fmt.Errorf("%s leads already: the pods did not come up without a leader", now.Name)
	}
	if err := goOn(); err != nil {
		return "", err
	}
	grown := make(chan error, 1)
	go func() { grown <- s.add(ctx, n, names("grown", s.addresses-2*watermark)) }()
	var standby *lab.Operator
	err := until(ctx, "another operator leads", func() (err error) {
		if standby, err = s.lab.Leader(ctx); err == nil && (standby == nil || standby == leader) {
			err = errors.New("none does")
		}
		return err
	})
	took := time.Since(began)
	if err := errors.Join(err, <-grown); err != nil {
		return "", err
	}
	if err := t.flow(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d pods from warm addresses in %s without a leader; %s leads after %.1f s, %d more pods after %.1f s",
		watermark, ms(warm), standby.Name, took.Seconds(), s.addresses-2*watermark, time.Since(began).Seconds()), nil
}
