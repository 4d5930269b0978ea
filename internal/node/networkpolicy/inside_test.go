package networkpolicy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/policy"
)

// insides are the tables of pods' own namespaces, by path.
type insides struct {
	mu  sync.Mutex // guards all
	all map[string]*kernel
}

func (i *insides) open(of Inside) InsideKernel {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.all[of.Netns] == nil {
		i.all[of.Netns] = &kernel{}
	}
	return i.all[of.Netns]
}

func (i *insides) of(path string) *kernel {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.all[path]
}

// Remove implements InsideKernel.
func (*kernel) Remove() error { return nil }

// Pods whose packets the node's table does not see are judged in their own namespaces. What fails there concerns them alone, and what
// other software removes is restored.
func TestPodsJudgedInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.fill()
		in := &insides{all: map[string]*kernel{}}
		one, k, _ := c.nodeWith("one", t.TempDir(), func(o *Options) { o.Inside, o.Interval = in.open, time.Minute })
		server, client := running("server", "10.0.0.1"), running("client", "10.0.0.2")
		server.Inside = &Inside{Netns: "a", Dev: 4, Inode: 1, Link: "eth0"}
		must(t, add(t, one, server))
		if table := in.of("a"); table.lets(foreign, server.Addrs[0]) || !k.lets(foreign, server.Addrs[0]) {
			t.Error("the pod is judged by the node's table, or not in its own namespace")
		}
		came := resolved("client", "two")
		came.Addrs = client.Addrs
		c.feed.SetPod(came)
		sleep(time.Second)
		if !in.of("a").lets(client.Addrs[0], server.Addrs[0]) {
			t.Error("a new client is not known there")
		}
		in.of("a").Forget() // what other software does
		sleep(2 * time.Minute)
		if in.of("a").lets(foreign, server.Addrs[0]) || !in.of("a").lets(client.Addrs[0], server.Addrs[0]) {
			t.Error("what other software removed is not restored")
		}

		table := in.of("a")
		table.mu.Lock()
		table.fail = errors.New("ENOMEM")
		table.mu.Unlock()
		if err := one.Set(t.Context(), "server", server); err == nil || err.Error() != "in the network namespace of server: ENOMEM" {
			t.Errorf("a namespace that refuses: %v", err)
		}
		other := running("other", "10.0.0.9")
		c.feed.SetPod(resolved("other", "one"))
		sleep(time.Second)
		must(t, add(t, one, other))
		if s := one.Status(time.Now()); len(s.Attachments) != 2 || !s.Attachments[0].InForce || s.Attachments[1].InForce || s.Failure == "" {
			t.Errorf("status: %+v", s)
		}
		table.mu.Lock()
		table.fail = fmt.Errorf("open: %w", ErrGone)
		table.mu.Unlock()
		must(t, one.Set(t.Context(), "server", server)) // a DEL follows
		sleep(time.Minute)
		if c := one.Condition(); !c.Healthy {
			t.Errorf("a namespace that is gone: %+v", c)
		}

		another := server
		another.Inside = &Inside{Netns: "b", Dev: 4, Inode: 2, Link: "eth0"}
		must(t, one.Set(t.Context(), "server", another))
		if in.of("b").lets(foreign, server.Addrs[0]) {
			t.Error("the pod's new namespace does not judge")
		}
		one.Remove("server")
		sleep(time.Second)
		c.feed.DeletePod(came.NamespacedName)
		sleep(time.Second)
		if !in.of("b").lets(client.Addrs[0], server.Addrs[0]) {
			t.Error("the table of a pod that is gone is changed")
		}
	})
}

// The namespace of a pod is opened by its path for each call, and is not kept alive. Another namespace at that path is left alone.
func TestNamespacesOfPods(t *testing.T) {
	name := func(n int) string { return fmt.Sprintf("btnp-%d-%d", os.Getpid(), n) }
	for n := range 2 {
		if err := ns.Create(name(n)); err != nil {
			t.Fatalf("this test makes network namespaces and needs root: %v", err)
		}
		t.Cleanup(func() { _ = ns.Remove(name(n)) })
	}
	node, err := netns.Get()
	must(t, err)
	defer node.Close()
	path := filepath.Join(t.TempDir(), "netns")
	must(t, os.Symlink(ns.Path(name(0)), path))
	var is unix.Stat_t
	must(t, unix.Stat(path, &is))
	k := OpenInside(node)(Inside{Netns: path, Dev: is.Dev, Inode: is.Ino, Link: "eth0"})
	pod := []policytable.Pod{{Addrs: running("server", "10.0.0.1").Addrs, Policies: []*policy.Policy{closed(policy.PodName{Namespace: "default", Name: "server"})}}}
	none := func(policy.SetID, func(policy.Element)) {}
	there := func(n int) bool {
		t.Helper()
		handle, err := netns.GetFromPath(ns.Path(name(n)))
		must(t, err)
		defer handle.Close()
		is, err := policytable.New(handle).There()
		must(t, err)
		return is
	}
	must(t, k.Apply(pod, none, nil))
	if is, err := k.Present(); !is || err != nil || !there(0) {
		t.Errorf("the namespace has no table: %v", err)
	}
	must(t, k.ApplyElements(none, nil))
	if _, err := k.End(func(policy.Flow) bool { return true }); err != nil {
		t.Error(err)
	}
	must(t, k.Remove())
	if there(0) {
		t.Error("the table is not removed")
	}
	must(t, os.Remove(path))
	must(t, os.Symlink(ns.Path(name(1)), path))
	for what, err := range map[string]error{"Apply": k.Apply(pod, none, nil), "ApplyElements": k.ApplyElements(none, nil), "Remove": k.Remove()} {
		if !errors.Is(err, ErrGone) {
			t.Errorf("%s in another namespace: %v", what, err)
		}
	}
	if there(1) {
		t.Error("another namespace has the table")
	}
	must(t, os.Remove(path))
	if _, err := k.Present(); !errors.Is(err, ErrGone) {
		t.Errorf("without a namespace: %v", err)
	}
}
