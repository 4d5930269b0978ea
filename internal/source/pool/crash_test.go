package pool

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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/datapath"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/vpclab/kube"
)

// A test's own program, started with this variable, is the operator or a daemon's
// address source that a failpoint may kill: it reads "add 1" and "del 1" from its
// input and answers each with a line.
const childVar = "POOL_TEST_CHILD"

type childConfig struct {
	Kubeconfig, Dir string
	Operator        bool
}

// command starts the program so.
func (c childConfig) command(log io.Writer, env ...string) (*exec.Cmd, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), childVar+"="+string(data)), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = log
	return cmd, nil
}

func child() int {
	err := func() error {
		var c childConfig
		if err := json.Unmarshal([]byte(os.Getenv(childVar)), &c); err != nil {
			return err
		}
		if c.Operator {
			return operate(c.Kubeconfig)
		}
		s, err := New(Config{
			NodeName: nodeID, Kubeconfig: c.Kubeconfig, Datapath: kernel(filepath.Join(c.Dir, "routes")), StateDir: c.Dir,
			Cooling: time.Millisecond, Watermark: 25, ReleaseDelay: 50 * time.Millisecond,
			Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		})
		if err != nil {
			return err
		}
		return records(filepath.Join(c.Dir, "leases")).serve(s, os.Stdin, os.Stdout)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// kernel is a data path that outlives the daemon: a file of names of blocks.
type kernel string

func (k kernel) SetBlocks(_ context.Context, blocks []datapath.Block) error {
	var names []string
	for _, b := range blocks {
		names = append(names, b.Name)
	}
	return replace(string(k), strings.Join(names, "\n"))
}

func replace(path, content string) error {
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// records are the leases on disk, as the daemon's attachment records are.
type records string

func (r records) file(i int) string { return filepath.Join(string(r), strconv.Itoa(i)) }

func (r records) all() (map[int]source.Lease, error) {
	out := map[int]source.Lease{}
	files, err := os.ReadDir(string(r))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, f := range files {
		i, err := strconv.Atoi(f.Name())
		if err != nil {
			continue // on its way
		}
		data, err := os.ReadFile(r.file(i))
		if errors.Is(err, os.ErrNotExist) {
			continue // released meanwhile
		}
		var l source.Lease
		if err := errors.Join(err, json.Unmarshal(data, &l)); err != nil {
			return nil, err
		}
		out[i] = l
	}
	return out, nil
}

func (r records) serve(s *Source, in io.Reader, out io.Writer) error {
	if err := os.MkdirAll(string(r), 0o700); err != nil {
		return err
	}
	leases, err := r.all()
	if err != nil {
		return err
	}
	for i, l := range leases {
		if err := s.Restore(podRequest(i), l); err != nil {
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
			if err = os.Remove(r.file(i)); errors.Is(err, os.ErrNotExist) {
				err = nil
			}
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

func (r records) add(s *Source, i int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	l, err := s.Acquire(ctx, podRequest(i))
	if err != nil {
		return err
	}
	data, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return replace(r.file(i), string(data))
}

func podRequest(i int) source.Request {
	return source.Request{Key: key(i), Pod: attachment.Pod{Namespace: namespace, Name: fmt.Sprint("pod", i)}}
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
	m.records = records(filepath.Join(m.dir, "leases"))
	m.env = childConfig{Kubeconfig: filepath.Join(m.dir, "kubeconfig"), Dir: m.dir}
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
	var err error
	if m.cmd, err = m.env.command(m.log, failpoint.EnvVar+"="+failpoints); err != nil {
		m.t.Fatal(err)
	}
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

// see waits for something that a daemon brings about, living or dead.
func (m *mortal) see(what string, ok func() bool) {
	m.t.Helper()
	m.until(what, func() bool {
		if dead(m.cmd.Process.Pid) {
			m.reborn()
		}
		return ok()
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

// gets gives a pod an address, however often it takes.
func (m *mortal) gets(pods ...int) {
	m.t.Helper()
	for _, i := range pods {
		m.until(fmt.Sprint("pod ", i, " has an address"), func() bool { return m.do("add %d", i) })
	}
}

// watch holds the daemon to the order of things until the returned function is
// called: what the API server does not have, neither the file nor the kernel
// has, and no pod; no address is of two pods.
func (m *mortal) watch() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if err := m.inspect(); err != nil {
				m.t.Error(err)
				return
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// inspect looks again at what seems wrong: it may have come and gone while this
// process was held still.
func (m *mortal) inspect() error {
	err := m.look()
	if err == nil {
		return nil
	}
	if again := m.look(); again == nil || again.Error() != err.Error() {
		return nil
	}
	return err
}

// look looks at the files first for blocks that were there, then for what is
// there now, so that only what outlives its block is wrong.
func (m *mortal) look() error {
	names := m.blocks()
	has := map[string]bool{}
	for _, name := range names {
		has[name] = true
	}
	_, stored, _, err := file{m.dir}.load()
	if err != nil {
		return err
	}
	routed, err := os.ReadFile(filepath.Join(m.dir, "routes"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	leases, err := m.records.all()
	if err != nil {
		return err
	}
	later := map[string]bool{} // blocks may have come meanwhile
	for _, name := range m.blocks() {
		later[name] = true
	}
	for _, b := range stored {
		if !has[b.name] && !later[b.name] {
			return fmt.Errorf("block %s is in the file and not at the API server", b.name)
		}
	}
	for name := range strings.FieldsSeq(string(routed)) {
		if !has[name] && !later[name] {
			return fmt.Errorf("block %s has a route and is not at the API server", name)
		}
	}
	seen := map[string]int{}
	for i, l := range leases {
		if other, twice := seen[l.IPv4.String()]; twice {
			return fmt.Errorf("%s is of pods %d and %d", l.IPv4, i, other)
		}
		seen[l.IPv4.String()] = i
		if !has[l.Block] && !later[l.Block] {
			return fmt.Errorf("pod %d has %s of block %s, which is not at the API server", i, l.IPv4, l.Block)
		}
	}
	return nil
}

// The daemon is killed at every step of a block's way to the node and back.
func TestKilledAtEveryStep(t *testing.T) {
	tried := 0
	for _, point := range failpoint.Names() {
		if !strings.HasPrefix(point, "pool.") {
			continue
		}
		tried++
		for _, hit := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s@%d", point, hit), func(t *testing.T) { killedAt(t, fmt.Sprintf("%s=kill@%d", point, hit)) })
		}
	}
	if tried < 12 {
		t.Errorf("only %d failpoints are registered", tried)
	}
}

func killedAt(t *testing.T, failpoints string) {
	m := newMortal(t, failpoints)
	stop := m.watch()
	defer stop()
	m.pool("public", 1, nil, "10.0.0.0/24 fd00::/120")
	m.namespace(namespace, "public")
	m.pods(1, 6)
	o := m.startOperator()
	m.gets(1, 2, 3)
	m.do("del 3")
	var leases map[int]source.Lease
	m.see("no block without a pod is left", func() bool {
		var err error
		if leases, err = m.records.all(); err != nil {
			t.Fatal(err)
		}
		used := map[string]bool{}
		for _, l := range leases {
			used[l.Block] = true
		}
		return len(leases) == 2 && len(m.blocks()) == len(used)
	})
	m.gets(4)
	if err := m.api.Delete(t.Context(), m.block(leases[1].Block)); err != nil {
		t.Fatal(err)
	}
	m.gets(5, 6)
	m.do("del 1")
	m.do("del 2")
	m.see("the deleted block is gone", func() bool { return m.block(leases[1].Block) == nil })
	m.do("del 4")
	m.do("del 5")
	m.do("del 6")
	m.see("all is given back", func() bool { return len(m.blocks()) == 0 && len(m.requests()) == 0 })
	stop()
	if err := m.inspect(); err != nil {
		t.Error(err)
	}
	if m.deaths != 1 {
		t.Errorf("the daemon died %d times", m.deaths)
	}
	if made, asked := o.counts("public"); made > asked {
		t.Errorf("%d blocks for %d requests", made, asked)
	}
}
