package daemon

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/web"
)

const (
	// podViews is how many questions about pods are answered at a time; further
	// ones are refused. Each costs some netlink calls.
	podViews = 4
	// podViewTimeout bounds one answer, also where another call has the
	// container's lock.
	podViewTimeout = 5 * time.Second
	// podViewAttachments is how many attachments of a pod are looked at. Two
	// sandboxes of a pod overlap for moments; a hundred are somebody's mistake.
	podViewAttachments = 8
)

// podView tells what this node knows of a pod, and compares its attachments with
// the kernel. It changes nothing.
func (d *Daemon) podView(ctx context.Context, namespace, name string) introspect.Pod {
	view := introspect.Pod{
		Namespace: namespace, Name: name, Node: d.NodeName, Time: d.Clock.Now().UTC(),
		Attachments: []introspect.Attachment{}, Waiting: d.waits.of(namespace, name, d.why),
	}
	var mine []attachment.Record
	for _, rec := range d.Store.Records() {
		if rec.Pod.Namespace == namespace && rec.Pod.Name == name {
			mine = append(mine, rec)
		}
	}
	slices.SortFunc(mine, func(a, b attachment.Record) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Key.String(), b.Key.String()))
	})
	for i, rec := range mine {
		a := introspect.Attachment{
			Allocated: addressOf(rec), NICs: nics([]attachment.Record{rec}), Egress: egressOf(rec),
			State: string(rec.State), HostLink: rec.HostLink, MTU: rec.MTU, Rules: []string{},
		}
		if first := rec.First(); first != nil {
			a.HostLink, a.MTU = first.HostLink, first.MTU
		}
		if i < podViewAttachments {
			d.lookAt(ctx, rec, &a)
		}
		view.Attachments = append(view.Attachments, a)
	}
	return view
}

// lookAt compares a record with the kernel, as check does.
func (d *Daemon) lookAt(ctx context.Context, rec attachment.Record, a *introspect.Attachment) {
	var err error
	if !rec.Lease.Empty() {
		var rules []string
		if rules, err = d.Kernel.PodRules(ctx, rec.Lease.Uplink, rec.Lease.Held()); err == nil {
			a.Rules = append(a.Rules, rules...)
		}
	}
	if rec.State != attachment.Ready {
		return
	}
	unlock, lockErr := d.locks.lock(ctx, rec.Key.ContainerID)
	if lockErr != nil {
		a.Fault = "not compared with the kernel: another call about the container is at work"
		return
	}
	defer unlock()
	if now, ok := d.Store.Get(rec.Key); !ok || now.State != attachment.Ready {
		a.State = "releasing" // meanwhile
		return
	}
	a.Checked = true
	if err := cmp.Or(d.wired(ctx, rec), err); err != nil {
		a.Fault = err.Error()
	}
}

// servePod answers introspect.PodPath.
func (d *Daemon) servePod(w http.ResponseWriter, r *http.Request) {
	pod := attachment.Pod{Namespace: r.URL.Query().Get("namespace"), Name: r.URL.Query().Get("name")}
	if err := checkPod(pod); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if pod.Name == "" {
		http.Error(w, "name is empty, expected that of a pod", http.StatusBadRequest)
		return
	}
	select {
	case d.views <- struct{}{}:
		defer func() { <-d.views }()
	default:
		http.Error(w, "other questions about pods are being answered; try again", http.StatusServiceUnavailable)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), podViewTimeout)
	defer cancel()
	web.WriteJSON(w, d.podView(ctx, pod.Namespace, pod.Name))
}
