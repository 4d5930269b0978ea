// Package demo shows Berth's main job on the lab: pods get addresses of the VPC
// through the real plugin and daemon, and reach each other, the nodes and the
// outside while EC2 misbehaves and daemons are killed. Each claim is a proof
// that passes or fails with figures; nothing but the cloud is imitated.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/berthnet/berth/internal/vpclab/control"
	"github.com/berthnet/berth/internal/vpclab/fabric"
	"github.com/berthnet/berth/internal/vpclab/lab"
	"github.com/berthnet/berth/internal/vpclab/node"
)

// DefaultDir is where the demo's lab lives unless told otherwise.
const DefaultDir = "/run/vpclab/demo"

// Options say what to show.
type Options struct {
	Lab     lab.Options
	Program string    // how vpclab was called, for the commands to try next
	Keep    bool      // leave the lab up, steered by its control socket
	Out     io.Writer // where the story goes, line by line
	// Told is called once the story is over, with what failed, before a lab
	// that is kept begins to be served.
	Told func(error) error
}

// instanceType has three ENIs of three usable addresses, so that a handful of
// pods lands on several.
const instanceType = "t3.small"

// usableENIs and usableAddresses are what a node of instanceType can hold.
const (
	usableENIs      = 3
	usableAddresses = 9
)

// podsPerNode fill the primary ENI and part of the next.
const podsPerNode = 5

// proof is one claim and the way to try it. It returns figures.
type proof struct {
	name string
	try  func(context.Context, *stage) (string, error)
}

// proofs in the order in which they are shown; later ones build on earlier ones.
var proofs = []proof{
	{"pods come up through CNI, on several ENIs", bringUp},
	{"pod to pod on one node, within and across its ENIs", podToPodOnOneNode},
	{"pod to pod across nodes, every pair of ENIs", podToPodAcrossNodes},
	{"pod to node and node to pod", podsAndNodes},
	{"pod to internet, seen as the node's primary address", toInternet},
	{"pod to on-premises host and back, with its own address", onPremises},
	{"a service address is DNATed, the source is kept", service},
	{"what enters by the primary interface is answered by it", nodePort},
	{"curl localhost:6666/ip-manager tells who has what", introspection},
	{"a deleted pod's address cools and is not reused", cooling},
	{"berthd killed with -9 under traffic: no reply is lost", killUnderTraffic},
	{"EC2 throttled: a node joins, its pods come up", throttled},
	{"pods are kept from the metadata service when told so", metadataBlocked},
	{"kernel, records, introspection and EC2 agree", agreement},
}

// stage is what the proofs act on.
type stage struct {
	lab   *lab.Lab
	nodes []*node.Node
	pods  map[string][]*node.Pod // by node name, in the order in which they came up
}

// errFailed says that the story was told to its end, but not all of it held.
var errFailed = errors.New("not every proof passed")

// Run raises a lab, tries every proof and removes the lab again, or serves it
// until ctx ends when it is to be kept. An error means that a proof failed or
// could not be tried.
func Run(ctx context.Context, o Options) error {
	o.Lab.DaemonArgs = append([]string{"--exclude-snat-cidrs=192.168.100.0/24"}, o.Lab.DaemonArgs...)
	o.Lab.InstanceType = instanceType
	if o.Lab.Nodes < 2 {
		return fmt.Errorf("%d nodes: the demo needs 2 at least", o.Lab.Nodes)
	}
	t := &teller{out: o.Out, began: time.Now()}
	o.Lab.Progress = t.note
	if err := os.MkdirAll(o.Lab.Dir, 0o755); err != nil {
		return fmt.Errorf("lab directory: %w", err)
	}
	release, err := control.Lock(o.Lab.Dir)
	if err != nil {
		return err
	}
	defer release()
	t.say("Raising a VPC with %d nodes (%s) on this machine ...", o.Lab.Nodes, o.Lab.InstanceType)
	up, cancel := context.WithTimeout(ctx, 45*time.Second)
	defer cancel()
	l, err := lab.Start(up, o.Lab)
	if err != nil {
		return errors.Join(fmt.Errorf("raise the lab: %w", err), told(o, err))
	}
	s := &stage{lab: l, nodes: l.Nodes(), pods: map[string][]*node.Pod{}}
	failed := s.play(ctx, t)
	if !o.Keep || ctx.Err() != nil {
		return errors.Join(failed, s.clear(t, o.Program), told(o, failed))
	}
	t.next(o.Program, o.Lab.Dir, s.nodes[0].Name)
	err = control.Serve(ctx, l, func() error { return told(o, failed) })
	return errors.Join(failed, err, l.Close())
}

func told(o Options, err error) error {
	if o.Told == nil {
		return nil
	}
	return o.Told(err)
}

// play tries the proofs one after the other.
func (s *stage) play(ctx context.Context, t *teller) error {
	t.say("")
	for i, p := range proofs {
		began := time.Now()
		trial, cancel := context.WithTimeout(ctx, 40*time.Second)
		figures, err := p.try(trial, s)
		cancel()
		if ctx.Err() != nil { // interrupted, which proves nothing
			return context.Cause(ctx)
		}
		t.verdict(p.name, figures, time.Since(began), err)
		if err == nil {
			continue
		}
		s.tellLogs(t)
		if i == 0 {
			break // without its pods there is nothing to go on with
		}
	}
	return t.summary()
}

// tellLogs shows what the fabric dropped and what the daemons say after a failure.
func (s *stage) tellLogs(t *teller) {
	drops, err := s.lab.Fabric.Drops()
	if err != nil {
		t.say("    the fabric does not tell what it dropped: %v", err)
	}
	for _, n := range s.nodes {
		for _, e := range s.lab.Books().InstanceENIs(n.InstanceID) {
			if d := drops[e.ID]; len(d) > 0 {
				t.say("    dropped in the VPC, from or to ENI %d of %s: %v", e.Attachment.DeviceIndex, n.Name, d)
			}
		}
	}
	for _, n := range s.nodes {
		t.say("    the end of %s:", n.LogFile())
		t.quote(n.LogTail(8))
	}
}

// clear removes the lab and says whether anything stayed behind.
func (s *stage) clear(t *teller, program string) error {
	err := s.lab.Close()
	_, sweepErr := lab.Sweep(s.lab.Dir, s.lab.ID)
	if err = errors.Join(err, sweepErr, os.RemoveAll(s.lab.Dir)); err != nil {
		return fmt.Errorf("remove the lab: %w", err)
	}
	t.after(program)
	return nil
}

// primary is a node's primary address.
func (s *stage) primary(n *node.Node) netip.Addr {
	return s.lab.Books().InstanceENIs(n.InstanceID)[0].Primary
}

var internet, onPrem = fabric.InternetHost, fabric.OnPremHost
