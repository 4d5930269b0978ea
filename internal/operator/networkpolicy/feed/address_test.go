package feed

import (
	"net/netip"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
)

// allowed are the addresses that the node of the server lets in.
func (n follower) allowed(t *testing.T) (list []string) {
	t.Helper()
	n.take(t)
	n.state.Elements(only(t, n.state), func(e policy.Element) { list = append(list, e.Addr.String()) })
	slices.Sort(list)
	return list
}

// An address that a node gives to another pod of it is not allowed any more as that of the first one, whose status still has it,
// or whose ADD failed.
func TestAddressesAreOfOnePod(t *testing.T) {
	f := New()
	f.SetPod(pod("server", "one", "10.0.0.1"))
	client, other := pod("client", "two", "10.0.0.2"), pod("other", "two")
	f.SetPod(client)
	f.SetPod(other)
	f.SetPolicy(compile.NetworkPolicy(allowClients()))
	one := follower{f.Subscribe("one"), policy.NewState()}
	if got := one.allowed(t); !slices.Equal(got, []string{"10.0.0.2"}) {
		t.Fatalf("allowed are %v", got)
	}
	done, err := f.Assign("two", other.NamespacedName, other.UID, addrs("10.0.0.2"), false)
	if err != nil || closed(done) {
		t.Errorf("the address counts before the node that allows it enforces it: %v", err)
	}
	if got := one.allowed(t); len(got) > 0 {
		t.Errorf("allowed are %v, which another pod has", got)
	}
	if !closed(done) {
		t.Error("not confirmed although the node enforces it")
	}
	client.Labels = map[string]string{"app": "client", "new": "label"}
	f.SetPod(client) // its status is as it was
	if got := one.allowed(t); len(got) > 0 {
		t.Errorf("allowed are %v after a change of the first pod", got)
	}
	client.Addrs = addrs("10.0.0.3")
	f.SetPod(client)
	if got := one.allowed(t); !slices.Equal(got, []string{"10.0.0.3"}) {
		t.Errorf("allowed are %v, want what the status says now", got)
	}
}

// A pod of a lost node, whose object remains, loses its address to the pod of another node that has it now, if that is known to be
// that node's. If it is only possible, no node can take the addresses of other nodes' pods.
func TestAddressOfALostNodesPod(t *testing.T) {
	for _, confirmed := range []bool{true, false} {
		f := New()
		f.SetPod(pod("server", "one", "10.0.0.1"))
		lost, other := pod("client", "lost", "10.0.0.2", "10.0.0.3"), pod("other", "two")
		f.SetPod(lost)
		f.SetPod(other)
		f.SetPolicy(compile.NetworkPolicy(allowClients()))
		one := follower{f.Subscribe("one"), policy.NewState()}
		if _, err := f.Assign("two", other.NamespacedName, other.UID, addrs("10.0.0.2"), confirmed); err != nil {
			t.Fatal(err)
		}
		lost.Labels = map[string]string{"app": "client", "node": "unreachable"}
		f.SetPod(lost)
		want := map[bool][]string{true: {"10.0.0.3"}, false: {"10.0.0.2", "10.0.0.3"}}[confirmed]
		if got := one.allowed(t); !slices.Equal(got, want) {
			t.Errorf("confirmed %t: allowed are %v, want %v", confirmed, got, want)
		}
		f.DeletePod(lost.NamespacedName)
		f.DeletePod(other.NamespacedName)
		f.DeletePod(types.NamespacedName{Namespace: "default", Name: "server"})
		if len(f.at) > 0 {
			t.Errorf("%v is left of an empty cluster", f.at)
		}
	}
}

// A pod that gets another sandbox has the addresses that its node assigned, also while its status has those of the last one.
func TestStaleStatusDoesNotCount(t *testing.T) {
	f := New()
	f.SetPod(pod("server", "one", "10.0.0.1"))
	client := pod("client", "two", "10.0.0.2")
	f.SetPod(client)
	f.SetPolicy(compile.NetworkPolicy(allowClients()))
	one := follower{f.Subscribe("one"), policy.NewState()}
	if _, err := f.Assign("two", client.NamespacedName, client.UID, addrs("10.0.0.3"), false); err != nil {
		t.Fatal(err)
	}
	for _, status := range []string{"10.0.0.2", "", "10.0.0.3", "10.0.0.4"} {
		client.Labels = map[string]string{"app": "client", "status": status}
		client.Addrs = nil
		want := "10.0.0.3"
		if status != "" {
			client.Addrs = addrs(status)
		}
		if status == "10.0.0.4" {
			want = status
		}
		f.SetPod(client)
		if got := one.allowed(t); !slices.Equal(got, []string{want}) {
			t.Errorf("with %q as status, allowed are %v, want %s", status, got, want)
		}
	}
}

// A node that never confirms anything does not cost memory for each new pod.
func TestUnconfirmedAddressesAreBounded(t *testing.T) {
	f := New()
	f.SetPod(pod("server", "one", "10.0.0.1"))
	client := pod("client", "two")
	f.SetPod(client)
	f.SetPolicy(compile.NetworkPolicy(allowClients()))
	one := f.Subscribe("one")
	one.Next()
	for i := range 2 * maxWaiting {
		if _, err := f.Assign("two", client.NamespacedName, client.UID, addrs([]string{"10.0.0.2", "10.0.0.3"}[i%2]), false); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(one.waiting); n > maxWaiting {
		t.Errorf("%d addresses wait for a node that confirms none", n)
	}
}

// Pods whose NICs are in networks of their own may have the same address.
func TestNICsMayHaveTheSameAddress(t *testing.T) {
	for _, of := range []string{"client", "other"} {
		f := New()
		f.OfNIC = func(p types.NamespacedName, _ netip.Addr) bool { return p.Name == of }
		f.SetPod(pod("server", "one", "10.0.0.1"))
		other := pod("other", "two")
		f.SetPod(pod("client", "two", "10.0.0.2"))
		f.SetPod(other)
		f.SetPolicy(compile.NetworkPolicy(allowClients()))
		one := follower{f.Subscribe("one"), policy.NewState()}
		if _, err := f.Assign("two", other.NamespacedName, other.UID, addrs("10.0.0.2"), false); err != nil {
			t.Fatal(err)
		}
		if got := one.allowed(t); !slices.Equal(got, []string{"10.0.0.2"}) {
			t.Errorf("with a NIC of %s, allowed are %v, want its address", of, got)
		}
	}
}
