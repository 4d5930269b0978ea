package nodenetwork

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/source"
	enisource "github.com/berthnet/berth/internal/source/eni"
	"github.com/berthnet/berth/internal/vpclab/kube"
)

// A test's own program, started with this variable, is a daemon's address
// source that a failpoint may kill: it reads "add 1" and "del 1" from its input
// and answers each with a line.
const childVar = "NODENETWORK_TEST_CHILD"

type childConfig struct{ Kubeconfig, Name, Dir string }

func child() int {
	err := func() error {
		var c childConfig
		if err := json.Unmarshal([]byte(os.Getenv(childVar)), &c); err != nil {
			return err
		}
		many := int32(1000)
		s, err := New(Config{
			NodeName: c.Name, Kubeconfig: c.Kubeconfig, InstanceID: instance, Datapath: &links{set: map[string]eni.ENI{}},
			Cooling: time.Millisecond, Store: enisource.Files{Dir: c.Dir}, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
			Spec: &v1alpha1.NodeNetworkSpec{InstanceID: instance, InstanceType: itype, ENI: v1alpha1.ENISpec{PreAllocate: &many}},
		})
		if err != nil {
			return err
		}
		return (&records{filepath.Join(c.Dir, "leases")}).serve(s, os.Stdin, os.Stdout)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// records are the leases on disk, as the daemon's attachment records are.
type records struct{ dir string }

func (r *records) file(i int) string { return filepath.Join(r.dir, strconv.Itoa(i)) }

func (r *records) all() (map[int]source.Lease, error) {
	out := map[int]source.Lease{}
	files, err := os.ReadDir(r.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(r.dir, f.Name()))
		if err != nil {
			return nil, err
		}
		var l source.Lease
		if err := json.Unmarshal(data, &l); err != nil {
			return nil, err
		}
		i, err := strconv.Atoi(f.Name())
		if err != nil {
			return nil, err
		}
		out[i] = l
	}
	return out, nil
}

func (r *records) serve(s *enisource.Source, in io.Reader, out io.Writer) error {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	leases, err := r.all()
	if err != nil {
		return err
	}
	for i, l := range leases {
		if err := s.Restore(request(i), l); err != nil {
			return err
		}
	}
	go func() { _ = s.Run(context.Background()) }()
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		verb, n, _ := strings.Cut(lines.Text(), " ")
		i, err := strconv.Atoi(n)
		if err != nil {
			return err
		}
		if verb == "del" {
			err = os.Remove(r.file(i))
			s.Release(key(i))
		} else {
			err = r.add(s, i)
		}
		if err != nil {
			fmt.Fprintln(out, "error", err)
		} else {
			fmt.Fprintln(out, "done")
		}
	}
	return lines.Err()
}

func (r *records) add(s *enisource.Source, i int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	l, err := s.Acquire(ctx, request(i))
	if err != nil {
		return err
	}
	data, err := json.Marshal(l)
	if err != nil {
		return err
	}
	half := r.dir + "-" + strconv.Itoa(i) // it may be killed in the middle
	if err := os.WriteFile(half, data, 0o600); err != nil {
		return err
	}
	return os.Rename(half, r.file(i))
}

// mortal is a machine whose daemon is a process, started again when it dies.
type mortal struct {
	*machine
	records records
	env     childConfig
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	deaths  int
}

func newMortal(t *testing.T, failpoints string) *mortal {
	m := &mortal{machine: newMachine(t)}
	m.records.dir = filepath.Join(m.dir, "leases")
	m.env = childConfig{Kubeconfig: filepath.Join(m.dir, "kubeconfig"), Name: m.name, Dir: m.dir}
	if err := kube.WriteKubeconfig(m.env.Kubeconfig, m.cfg); err != nil {
		t.Fatal(err)
	}
	m.launch(failpoints)
	t.Cleanup(func() {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
	})
	return m
}

func (m *mortal) launch(failpoints string) {
	m.t.Helper()
	env, err := json.Marshal(m.env)
	if err != nil {
		m.t.Fatal(err)
	}
	m.cmd = exec.Command(os.Args[0])
	m.cmd.Env = append(os.Environ(), childVar+"="+string(env), failpoint.EnvVar+"="+failpoints)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	m.cmd.Stderr = m.log
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		m.t.Fatal(err)
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	m.out = bufio.NewReader(out)
	if err := m.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
}

// do asks the daemon for something. A daemon that has died, or does so now, is
// started again, without failpoints, and asked anew, as a runtime would.
func (m *mortal) do(format string, args ...any) (ok bool) {
	m.t.Helper()
	for range 3 {
		if _, err := fmt.Fprintf(m.in, format+"\n", args...); err == nil {
			if line, err := m.out.ReadString('\n'); err == nil {
				return line == "done\n"
			}
		}
		m.reborn()
	}
	m.t.Fatal("the daemon does not live")
	return false
}

// reborn takes note of a death.
func (m *mortal) reborn() {
	m.t.Helper()
	err := m.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		m.t.Fatalf("the daemon ended by itself: %v", err)
	}
	m.deaths++
	m.launch("")
}

// see waits for a state of the object that a daemon brings about, living or dead.
func (m *mortal) see(what string, ok func(*v1alpha1.NodeNetwork) bool) {
	m.t.Helper()
	m.until(what, func() bool {
		if m.cmd.Process.Signal(syscall.Signal(0)) != nil || dead(m.cmd.Process.Pid) {
			m.reborn()
		}
		o := m.peek()
		return o != nil && ok(o)
	})
}

// dead tells whether a child has ended and waits to be noticed.
func dead(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	rest := string(data[strings.LastIndexByte(string(data), ')')+1:])
	return strings.HasPrefix(rest, " Z")
}

// hold checks the pods' addresses: all different, and none among those that the
// operator took, or was told that it may take.
func (m *mortal) hold(want int, not ...string) {
	m.t.Helper()
	leases, err := m.records.all()
	if err != nil {
		m.t.Fatal(err)
	}
	if len(leases) != want {
		m.t.Errorf("%d pods have addresses, want %d: %v", len(leases), want, leases)
	}
	seen := map[string]int{}
	for i, l := range leases {
		a := l.IPv4.String()
		if other, twice := seen[a]; twice {
			m.t.Errorf("%s is of pods %d and %d", a, i, other)
		}
		seen[a] = i
		if slices.Contains(not, a) {
			m.t.Errorf("pod %d has %s, which the operator was told to take", i, a)
		}
	}
}

func sees(released ...string) func(*v1alpha1.NodeNetwork) bool {
	return func(o *v1alpha1.NodeNetwork) bool { return slices.Equal(o.Status.IPAM.Released, released) }
}

// The daemon is killed at every step of making its object, and of giving
// addresses back and keeping them after all.
func TestKilledAtEveryStep(t *testing.T) {
	tried := 0
	for _, point := range failpoint.Names() {
		if !strings.HasPrefix(point, "nodenetwork.") && !strings.HasPrefix(point, "inventory.save.") {
			continue
		}
		tried++
		for _, hit := range []int{1, 2} {
			if hit > 1 && (strings.HasPrefix(point, "nodenetwork.create") || strings.HasPrefix(point, "nodenetwork.replace")) {
				continue // happens once
			}
			t.Run(fmt.Sprintf("%s@%d", point, hit), func(t *testing.T) { killedAt(t, fmt.Sprintf("%s=kill@%d", point, hit)) })
		}
	}
	if tried < 11 {
		t.Errorf("only %d failpoints are registered", tried)
	}
}

func killedAt(t *testing.T, failpoints string) {
	m := newMortal(t, "")
	_ = m.cmd.Process.Kill() // it must find the stale object
	_ = m.cmd.Wait()
	m.put("i-0ddd")
	m.launch(failpoints)
	m.see("an object of this instance", func(o *v1alpha1.NodeNetwork) bool { return o.Spec.InstanceID == instance })
	m.operator(give(10, 16))
	used := func(n int32) func(*v1alpha1.NodeNetwork) bool {
		return func(o *v1alpha1.NodeNetwork) bool { return o.Status.IPAM.UsedCount == n }
	}
	m.until("two pods have addresses", func() bool { return m.do("add 1") && m.do("add 2") }) // 10, 11
	m.see("they are reported", used(2))

	m.operator(releasing("10.0.0.11", "10.0.0.13", "10.0.0.14", "10.0.0.15"))
	m.see("what is free is released", sees("10.0.0.13", "10.0.0.14", "10.0.0.15"))
	m.do("add 3") // 12 or 16
	m.operator(func(o *v1alpha1.NodeNetwork) {
		releasing("10.0.0.11", "10.0.0.13", "10.0.0.15")(o) // 14 stays
		unassigned("10.0.0.13")(o)                          // EC2 took it
	})
	m.see("the answer", sees("10.0.0.15"))
	m.until("pods get what stays", func() bool { return m.do("add 3") && m.do("add 4") && m.do("add 5") }) // 12, 14, 16
	for i := 6; i < 8; i++ {
		if m.do("add %d", i) {
			t.Errorf("pod %d got an address", i)
		}
	}
	m.hold(5, "10.0.0.13", "10.0.0.15")
	leases, err := m.records.all()
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range leases {
		if l.IPv4 == address(11) {
			m.do("del %d", i)
		}
	}
	m.see("the one that a pod had is released", sees("10.0.0.11", "10.0.0.15"))
	m.operator(unassigned("10.0.0.15"))
	m.see("the end of 15 is heard", sees("10.0.0.11"))
	m.operator(releasing())
	m.see("11 stays after all", sees())
	m.until("the last pod has an address", func() bool { return m.do("add 8") })
	m.hold(5, "10.0.0.13", "10.0.0.15")
	m.see("all is told", used(5))
	if m.deaths != 1 {
		t.Errorf("the daemon died %d times", m.deaths)
	}
}
