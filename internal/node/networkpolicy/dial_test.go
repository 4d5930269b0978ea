package networkpolicy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berthnet/berth/internal/node/networkpolicy/operatorfake"
	"github.com/berthnet/berth/internal/operator/networkpolicy/feed"
	"github.com/berthnet/berth/internal/policy/wire"
)

// follow calls the operator and returns the first error, or nil once it spoke.
func follow(t *testing.T, a Access) error {
	t.Helper()
	client, end, err := a.Dial(t.Context())
	if err != nil {
		return err
	}
	defer end()
	stream, err := client.Follow(t.Context())
	if err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

// A node finds the operator by the ConfigMap, each time, and reads its token for each call. Errors say what is missing.
func TestDial(t *testing.T) {
	o := operatorfake.New(t)
	token := filepath.Join(t.TempDir(), "token")
	a := Access{Namespace: "kube-system", ConfigMap: o.ConfigMap, TokenFile: token}
	wants := func(say string) {
		t.Helper()
		if err := follow(t, a); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("%v, want %q", err, say)
		}
	}
	wants("ConfigMap kube-system/berth-network-policies does not exist: berth-operator creates it")
	o.Start(feed.New())
	wants("the token for berth-operator: open " + token)
	must(t, os.WriteFile(token, []byte("\n"), 0o600))
	wants("no token")
	must(t, os.WriteFile(token, []byte("one\n"), 0o600))
	must(t, follow(t, a))
	must(t, follow(t, Access{Namespace: "kube-system", TokenFile: token, ConfigMap: func(ctx context.Context, namespace, name string) (map[string]string, error) {
		data, err := o.ConfigMap(ctx, namespace, name)
		data[wire.KeyCA] += "\n" // as editors leave it
		return data, err
	}}))

	before, _ := o.ConfigMap(t.Context(), "kube-system", wire.ConfigMapName)
	o.Stop()
	wants("connection refused")
	o.Start(feed.New())
	must(t, follow(t, a))
	o.Set(wire.KeyCA, before[wire.KeyCA])
	wants("certificate")
	o.Set(wire.KeyCA, "none")
	wants("ca.crt has no certificate, expected PEM")
	o.Set(wire.KeyAddress, "")
	wants("has no address: no berth-operator leads yet")
	o.Fail(apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, wire.ConfigMapName, errors.New("no role")))
	wants("the Kubernetes API refuses berthd")
	o.Fail(errors.New("no route to host"))
	wants("ConfigMap kube-system/berth-network-policies: no route to host")
}

// An ADD waits for the answer about its pod, also when the node calls another operator meanwhile, which it tells everything again.
func TestAnAssignedAddressWaitsForItsAnswer(t *testing.T) {
	c, p := newCalls(), running("server", "10.0.0.1")
	done := c.assign(p)
	c.next()
	c.restart()
	again := c.assign(p)
	for _, m := range c.next() {
		if closedNow(done) || closedNow(again) {
			t.Error("the ADD does not wait for the answer")
		}
		c.answer(m.GetAssign().GetId())
	}
	if !closedNow(done) || !closedNow(again) {
		t.Error("the answer reaches nobody")
	}
	p.Addrs = running("server", "10.0.0.2").Addrs
	done = c.assign(p)
	p.Addrs = running("server", "10.0.0.3").Addrs
	if c.assign(p); !closedNow(done) {
		t.Error("an address that counts no more is waited for")
	}
}

func closedNow(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
