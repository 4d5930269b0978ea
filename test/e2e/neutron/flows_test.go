//go:build e2e

package neutron

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/demo"
	"github.com/berthnet/berth/lab/openstack"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// agentDown is how long Neutron waits for a silent agent: short for the test, and longer than a busy
// machine stops.
const agentDown = 9 * time.Second

// TestFlowsThroughNeutron has ports carry pods' packets, from the annotation on, with either backend.
func TestFlowsThroughNeutron(t *testing.T) {
	t.Run("OVN", func(t *testing.T) {
		flows(t, openstack.OVN, v1alpha1.PortPlug{Type: v1alpha1.PlugOVS, Bridge: "br-int", OVN: true})
	})
	t.Run("Agent", func(t *testing.T) {
		flows(t, openstack.Agent, v1alpha1.PortPlug{Type: v1alpha1.PlugOVSHybrid, Bridge: "br-int"})
	})
}

// bench is a lab in port mode over a real Neutron.
type bench struct {
	*testing.T
	*lab.Lab
	cloud *openstack.Cloud
}

// flows runs pods with ports, from the annotation to the packet, with two nodes and two operators, and
// kills Neutron's own programs. At the end all views agree.
func flows(t *testing.T, backend openstack.Backend, plug v1alpha1.PortPlug) {
	t.Helper()
	harness.OK(t, present.close())
	began := time.Now()
	o, err := demo.LabOptions(lab.Options{
		Mode: lab.PortMode, Nodes: 2, PortCloud: portcloud.RealWith(openstack.Options{Backend: backend, AgentDown: agentDown}),
		Progress: func(line string) { t.Logf("%5.1f s  %s", time.Since(began).Seconds(), line) },
	})
	harness.OK(t, err)
	l := harness.Raise(t, o)
	cloud, ok := l.Ports.(*portcloud.Real)
	if !ok {
		t.Fatalf("the lab has %T", l.Ports)
	}
	b := &bench{t, l, cloud.OpenStack}
	for i, f := range demo.Story(l) {
		passed := t.Run(f.Name, func(t *testing.T) {
			figures, err := f.Try(harness.Deadline(t, harness.Patience))
			harness.OK(t, err)
			t.Log(figures)
		})
		if !passed && i < 2 {
			return // without its pods there is nothing to go on with
		}
	}
	b.plugged(plug)
	for name, flow := range map[string]func(*bench){"Neutron's server killed": (*bench).serverKilled, "a node's agent killed": (*bench).agentKilled} {
		t.Run(name, func(t *testing.T) { flow(&bench{t, l, b.cloud}) })
	}
	harness.Settle(t, l)
}

// plugged checks how all NICs are plugged.
func (b *bench) plugged(want v1alpha1.PortPlug) {
	b.Helper()
	nics, err := b.Kube.PodNICs(b.Context())
	harness.OK(b.T, err)
	for _, n := range nics {
		if n.Status.Plug == nil || *n.Status.Plug != want {
			b.Errorf("PodNIC %s is plugged by %+v, want %+v", n.Name, n.Status.Plug, want)
		}
	}
	if len(nics) == 0 {
		b.Error("there are no PodNICs")
	}
}

// pending is a pod that is being made.
type pending struct {
	name string
	done chan struct{}
	pod  *node.Pod // once done is closed
	err  error
}

// begin has a pod with one NIC made on a node.
func (b *bench) begin(n *node.Node, name string) *pending {
	p := &pending{name: name, done: make(chan struct{})}
	ctx := harness.Deadline(b.T, harness.Patience)
	go func() {
		defer close(p.done)
		p.pod, p.err = n.AddPod(ctx, name, node.PodOptions{Annotations: map[string]string{v1alpha1.AnnotationVPC: b.VPCs[0].Name}})
	}()
	return p
}

// waits returns once a condition of the pod's PodNIC is False, with a word in reason or message.
func (b *bench) waits(p *pending, kind, word string) {
	b.Helper()
	harness.Eventually(b.T, time.Minute, p.name+" waits", func() error {
		nics, err := b.Kube.PodNICs(b.Context())
		if err != nil {
			return err
		}
		for _, n := range nics {
			if n.Spec.Pod == nil || !strings.HasPrefix(n.Spec.Pod.Name, p.name+"-") {
				continue
			}
			c := meta.FindStatusCondition(n.Status.Conditions, kind)
			if c != nil && c.Status == "False" && harness.Says(c.Reason+" "+c.Message, word) {
				return nil
			}
			return fmt.Errorf("its PodNIC says %+v", n.Status.Conditions)
		}
		return errors.New("it has no PodNIC")
	})
	select {
	case <-p.done:
		b.Fatalf("%s is done: %v", p.name, p.err)
	default:
	}
}

// comes waits for a pod, and has it and another ask each other.
func (b *bench) comes(p *pending, other *node.Pod) {
	b.Helper()
	<-p.done // its context ends
	harness.OK(b.T, p.err)
	b.talk(p.pod, other)
}

func (b *bench) talk(one, other *node.Pod) {
	b.Helper()
	ctx := harness.Deadline(b.T, time.Minute)
	harness.OK(b.T, errors.Join(demo.Reached(ctx, one, other.Addr()), demo.Reached(ctx, other, one.Addr())))
}

// pods makes a pod on each node that allows all traffic.
func (b *bench) pods() (near, far *node.Pod) {
	b.Helper()
	near, err := b.Nodes()[0].Pod("pod1")
	harness.OK(b.T, err)
	far, err = b.Nodes()[1].Pod("pod2")
	harness.OK(b.T, err)
	return near, far
}

// serverKilled kills Neutron's server: running pods are not affected, and a new one waits for it.
func (b *bench) serverKilled() {
	near, far := b.pods()
	harness.OK(b.T, b.cloud.KillServer())
	waiting := b.begin(b.Nodes()[1], "without-neutron")
	b.waits(waiting, v1alpha1.ConditionPortReady, "9696")
	b.talk(near, far)
	harness.OK(b.T, b.cloud.RestartServer(harness.Deadline(b.T, 2*time.Minute)))
	b.comes(waiting, near)
	harness.OK(b.T, b.Nodes()[1].DelPod(harness.Deadline(b.T, harness.Patience), waiting.name))
}

// agentKilled kills a node's agent: running pods are not affected, and a new one waits until the agent
// is back.
func (b *bench) agentKilled() {
	near, far := b.pods()
	var at *openstack.Node
	for _, n := range b.cloud.Nodes() {
		if n.Name == far.Node {
			at = n
		}
	}
	harness.OK(b.T, at.KillAgent())
	harness.Eventually(b.T, time.Minute, "Neutron misses the agent", func() error {
		if at.Alive(b.Context()) == nil {
			return errors.New("it believes in it")
		}
		return nil
	})
	waiting := b.begin(b.Nodes()[1], "without-agent")
	b.waits(waiting, v1alpha1.ConditionBound, "does its agent there live")
	b.talk(near, far)
	harness.OK(b.T, at.RestartAgent())
	b.comes(waiting, near)
	harness.OK(b.T, b.Nodes()[1].DelPod(harness.Deadline(b.T, harness.Patience), waiting.name))
}
