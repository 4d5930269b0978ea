package hybrid_test

import (
	"fmt"
	"testing"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/hybrid"
	"github.com/berthnet/berth/internal/kernel/plug/ovs"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
)

// open makes a node with an OVSDB server.
func open(t *testing.T) plugtest.Fixture {
	node, server := plugtest.Space(t, "node"), plugtest.NewServer(t)
	return plugtest.Fixture{
		Plugger: func() plug.Plugger {
			p, err := hybrid.New(ovs.Options{Netns: node.Path, OVSDB: server.Client()})
			plugtest.Must(t, err)
			t.Cleanup(p.Close)
			return p
		},
		Want: func(attachment, portID string, pod *podif.Namespace) plug.Want {
			return plugtest.Want(plug.OVSHybrid, attachment, portID, pod, t)
		},
		State: func() string { return plugtest.Describe(t, node) + "\n" + fmt.Sprint(server.Interfaces()) },
	}
}

func TestContract(t *testing.T) { plugtest.Run(t, open, "plug.hybrid.", "plug.link.made") }

func TestPackets(t *testing.T) {
	plugtest.Packets(t, plug.OVSHybrid, func(node *podif.Namespace, server *plugtest.Server) plug.Plugger {
		p, err := hybrid.New(ovs.Options{Netns: node.Path, OVSDB: server.Client()})
		plugtest.Must(t, err)
		t.Cleanup(p.Close)
		return p
	})
}
