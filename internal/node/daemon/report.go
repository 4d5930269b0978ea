package daemon

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/node/podevents"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/source"
)

// tellAfter is the delay before an Event on the pod explains why an ADD waits. Most ADDs are done by then,
// and the Event appears within 3 s.
const tellAfter = 2500 * time.Millisecond

// silentEnds are failure reasons that cause no Event: the runtime gave up, removed the sandbox or
// retries immediately. An earlier Event already gave the reason for the wait.
var silentEnds = map[string]bool{"cancelled": true, "deleted": true, "draining": true}

// telling reports the progress of one ADD through Events on its pod.
type telling struct {
	front *Front
	key   attachment.Key
	pod   attachment.Pod
	timer *time.Timer

	mu    sync.Mutex // guards ended, and orders the Events
	ended bool
}

// follow starts to report on a call, or returns nil if the call is not an ADD or has no pod. The request is not
// validated yet.
func (f *Front) follow(req any) *telling {
	add, ok := req.(*rpc.AddRequest)
	if f.Tell == nil || !ok || add.GetPod().GetName() == "" {
		return nil
	}
	a, pod := add.GetAttachment(), add.GetPod()
	t := &telling{
		front: f, key: attachment.Key{Network: a.GetNetwork(), ContainerID: a.GetContainerId(), IfName: a.GetIfName()},
		pod: attachment.Pod{Namespace: pod.GetNamespace(), Name: pod.GetName(), UID: pod.GetUid()},
	}
	t.timer = time.AfterFunc(tellAfter, t.waits)
	return t
}

// whyWaits returns the reason for the wait of an ADD.
func (f *Front) whyWaits(key attachment.Key) (kind podevents.Kind, cause, message string) {
	d := f.admitted()
	if d == nil {
		return podevents.WaitsForNetwork, "starting", "berthd is starting: " + f.waitingFor()
	}
	switch ex, address := d.attachments.acquirer.why(key); {
	case ex != nil && !address:
		return podevents.WaitsForNetwork, ex.Reason, ex.Message
	case ex != nil:
		return podevents.WaitsForAddress, ex.Reason, ex.Message
	}
	return podevents.WaitsForNetwork, podevents.Busy, "the kernel, or another call about the same container, is slow"
}

// waits reports that the ADD waits, unless it has ended.
func (t *telling) waits() {
	kind, cause, message := t.front.whyWaits(t.key)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.trouble(kind, cause, message)
	}
}

// end reports the outcome of the ADD.
func (t *telling) end(reply any, err error) {
	if t == nil {
		return
	}
	t.timer.Stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	if err == nil {
		t.front.Tell(podevents.News{Pod: t.pod, IfName: t.key.IfName, Kind: podevents.Attached, Addresses: addressesOf(reply)})
		return
	}
	f := cnierror.Of(err)
	if silentEnds[f.Reason] {
		return
	}
	kind := podevents.NetworkFailed
	if _, ok := errors.AsType[*source.Exhausted](err); ok {
		kind = podevents.NoAddress
	}
	t.trouble(kind, f.Reason, f.Error())
}

// trouble reports a problem, if the pod's name is valid. t.mu is held.
func (t *telling) trouble(kind podevents.Kind, cause, message string) {
	if checkPod(t.pod) == nil {
		t.front.Tell(podevents.News{Pod: t.pod, IfName: t.key.IfName, Kind: kind, Cause: cause, Message: message})
	}
}

// addressesOf returns the addresses of all interfaces in the reply to an ADD, as CIDRs.
func addressesOf(reply any) []string {
	add, _ := reply.(*rpc.AddReply)
	if len(add.GetLinks()) == 0 {
		return add.GetAddresses()
	}
	addresses := slices.Clone(add.GetAddresses()) // the reply has not been sent yet
	for _, l := range add.GetLinks() {
		for _, a := range l.GetAddresses() {
			addresses = append(addresses, a.GetCidr())
		}
	}
	return addresses
}
