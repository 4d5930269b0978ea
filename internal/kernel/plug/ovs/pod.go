package ovs

import (
	"errors"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/hostlink"
	"github.com/berthnet/berth/internal/kernel/plug/ovsdb"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
)

// finishPod sets up both ends of the veth to a pod. It starts with the node's end, because the pod
// can send packets as soon as its own end is up. It leaves an end that a VM runtime owns unchanged.
func (p *Plugger) finishPod(link hostlink.Link, bridge *ovsdb.Bridge, pod *podif.Namespace, w plug.Want) error {
	if link.HandedOver {
		return errors.Join(p.node.KeepFromNode(), p.node.Raise(link))
	}
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
	err := pod.Configure(w.Pod.IfName, w.Interface)
	if err == nil && w.Binding == plug.BindingBridge {
		err = p.node.HandOver(w.Ref, link)
	}
	return err
}

// checkPod adds differences of both ends of the veth to a pod. If a VM runtime owns the pod's end,
// it only checks that the end exists.
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
	if host != nil {
		if err := hostlink.CheckPair(w, host.Attrs(), pod, found); err != nil {
			return err
		}
	}
	if err := p.node.CheckKept(found); err != nil || w.Binding == plug.BindingBridge {
		return err
	}
	return pod.Check(w.Pod.IfName, w.Interface, found)
}
