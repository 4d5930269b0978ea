package ovs

import (
	"errors"
	"net"

	"github.com/berthnet/berth/internal/plug"
	"github.com/berthnet/berth/internal/plug/hostlink"
	"github.com/berthnet/berth/internal/plug/ovsdb"
	"github.com/berthnet/berth/internal/plug/podif"
)

// finishPod sets both ends of a link to a pod up. The node's goes first: the pod's can send at
// once then.
func (p *Plugger) finishPod(link hostlink.Link, bridge *ovsdb.Bridge, pod *podif.Namespace, w plug.Want) error {
	if bridge.Datapath == "netdev" {
		err := errors.Join(podif.FillChecksums(pod.NS, w.Pod.IfName), podif.FillChecksums(p.node.NS, link.Name))
		if err != nil {
			return err
		}
	}
	if err := errors.Join(p.node.KeepFromNode(), p.node.Raise(link)); err != nil {
		return err
	}
	pod.Sysctls = p.node.Sysctls
	return pod.Configure(w.Pod.IfName, w.Interface)
}

// forget removes the rules of a port's interface in the pod, if that is there: they are
// nothing that anybody meets once the interface is gone, so what fails is not told.
func (p *Plugger) forget(r plug.Ref) {
	pod, err := podif.OpenPod(r.Pod, p.node.ID)
	if err != nil {
		return
	}
	defer pod.Close()
	host, err := p.node.Find(LinkName(r))
	if err != nil || host == nil {
		return
	}
	if owner, _ := r.OwnerOf(host.Attrs()); owner != plug.Mine {
		return
	}
	l, err := pod.Link(r.Pod.IfName)
	if err == nil && l != nil && l.Attrs().ParentIndex == host.Attrs().Index {
		_ = pod.Forget(l.Attrs().Index)
	}
}

// checkPod notes how a link to a pod differs from what is wanted, on both sides.
func (p *Plugger) checkPod(w plug.Want, found *plug.Differences) error {
	pod, err := podif.OpenPod(w.Pod, p.node.ID)
	if err != nil {
		return err
	}
	defer pod.Close()
	host, err := p.node.Check(w.Ref, LinkName(w.Ref), found)
	if err != nil {
		return err
	}
	peer, err := pod.Link(w.Pod.IfName)
	if err != nil {
		return err
	}
	if host != nil {
		a := host.Attrs()
		if a.Flags&net.FlagUp == 0 {
			found.Add("%s is down", a.Name)
		}
		if peer != nil && a.ParentIndex != peer.Attrs().Index {
			found.Add("%s on the node and %s in the pod are not one link", a.Name, w.Pod.IfName)
		}
	}
	return pod.Check(w.Pod.IfName, w.Interface, found)
}
