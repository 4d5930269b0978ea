package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/control"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m, "vpclab", "berthd", "berth", "berth-operator")) }

// cli runs vpclab on a lab directory of its own.
type cli struct {
	t        *testing.T
	bin, dir string
}

func newCLI(t *testing.T) *cli {
	c := &cli{t, filepath.Join(harness.BinDir, "vpclab"), t.TempDir()}
	t.Cleanup(func() {
		if out, err := c.try("down"); err != nil {
			t.Errorf("down: %v\n%s", err, out)
		}
		if left, err := ns.List(fabric.Prefix(lab.IDOf(c.dir))); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	return c
}

// try runs one command; --dir goes after its first word. Programs may take longer
// to be ready than a person would wait: the machine may be busy.
func (c *cli) try(args ...string) (string, error) {
	if args[0] == "up" {
		args = append(slices.Clone(args), "--timeout=10m")
	}
	words := 1
	if args[0] == "pod" {
		words = 2
	}
	argv := append(append(append([]string{}, args[:words]...), "--dir", c.dir), args[words:]...)
	cmd := exec.CommandContext(c.t.Context(), c.bin, argv...)
	if c.t.Context().Err() != nil { // during clean-up
		cmd = exec.Command(c.bin, argv...)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

func (c *cli) run(args ...string) string {
	c.t.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.t.Fatalf("vpclab %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// fails runs a command that must fail with a word about why.
func (c *cli) fails(want string, args ...string) {
	c.t.Helper()
	out, err := c.try(args...)
	if err == nil || !strings.Contains(out, want) {
		c.t.Errorf("vpclab %s: %v, want an error with %q in:\n%s", strings.Join(args, " "), err, want, out)
	}
}

func (c *cli) status() (s lab.Status) {
	c.t.Helper()
	if err := json.Unmarshal([]byte(c.run("status", "-o", "json")), &s); err != nil {
		c.t.Fatal(err)
	}
	return s
}

// shows waits for a status: a busy program may not answer within the two or three seconds that status waits.
func (c *cli) shows(want func(lab.Status) bool) (s lab.Status) {
	c.t.Helper()
	harness.Eventually(c.t, harness.Rest, "the status is as wanted", func() error {
		if s = c.status(); !want(s) {
			return fmt.Errorf("status: %+v", s)
		}
		return nil
	})
	return s
}

// statusSays waits until the printed status contains some words.
func (c *cli) statusSays(want string) {
	c.t.Helper()
	harness.Eventually(c.t, harness.Rest, "the status says "+want, func() error {
		if out := c.run("status"); !strings.Contains(out, want) {
			return fmt.Errorf("status: %s", out)
		}
		return nil
	})
}

func (c *cli) has(out, want string) {
	c.t.Helper()
	if !strings.Contains(out, want) {
		c.t.Errorf("want %q in:\n%s", want, out)
	}
}

func TestFabricByCommand(t *testing.T) {
	c := newCLI(t)
	c.fails("no lab is running", "status")
	c.has(c.run("up", "--no-daemons", "--nodes", "2", "--instance-type", "t3.small"), "The lab is up")
	c.fails("running in", "up", "--no-daemons")

	s := c.status()
	if len(s.Nodes) != 2 || s.Nodes[0].Name != "node-1" || s.Nodes[0].Type != "t3.small" || len(s.Nodes[0].ENIs) != 1 || s.Nodes[0].Daemon != "down" {
		t.Errorf("status: %+v", s)
	}
	c.has(c.run("status"), s.Nodes[1].ENIs[0].ID)
	c.has(c.run("exec", "node-1", "--", "cat", "/proc/net/fib_trie"), s.Nodes[0].Address.String())
	c.has(c.run("exec", "internet", "--", "cat", "/proc/net/fib_trie"), s.Internet.String())
	c.fails("no node", "exec", "node-9", "--", "true")
	c.fails("want NODE -- COMMAND", "exec", "node-1", "true")
	c.fails("has no pod", "exec", "node-1/nope", "--", "true")

	c.run("fault", "throttle", "Describe*", "5")
	c.run("fault", "outage", "on")
	c.run("fault", "error", "CreateNetworkInterface", "InternalError", "--count", "3")
	c.has(c.run("fault", "list"), "error CreateNetworkInterface InternalError (next 3 calls)")
	c.fails("calls a second", "fault", "throttle", "*", "fast")
	c.fails("covers no action", "fault", "throttle", "Describe", "1")
	c.fails("a count does not apply", "fault", "deny", "*", "--count", "1")
	c.fails("want one of", "fault", "clear", "earthquake")
	c.fails("want one of", "fault", "earthquake")
	c.run("fault", "outage", "off")
	c.has(c.run("fault", "clear"), "2 faults cleared")
	c.has(c.run("fault", "list"), "No faults")

	c.fails("does not run", "kill", "node-1")
	c.has(c.run("down"), "Nothing of the lab is left")
	c.has(c.run("down"), "There is no lab")
}

func TestDownAfterTheLabWasKilled(t *testing.T) {
	c := newCLI(t)
	c.run("up", "--no-daemons")
	pid := c.status().PID
	if holder := control.Holder(c.dir); holder != pid {
		t.Fatalf("the lab's lock is held by %d, its process is %d", holder, pid)
	}
	c.kill(pid)
	c.has(c.run("up", "--no-daemons"), "leftovers") // up clears what is there, too
	c.kill(c.status().PID)
	c.has(c.run("down"), "removed vpclab-"+lab.IDOf(c.dir)+"-vpc")
}

// kill kills the lab's process and waits until it is gone: a dying process still
// holds its lock.
func (c *cli) kill(pid int) {
	c.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		c.t.Fatal(err)
	}
	harness.Eventually(c.t, time.Minute, "the killed process is gone", func() error {
		if control.Holder(c.dir) == pid {
			return errors.New("it holds the lock")
		}
		return nil
	})
}

// neverReady is a directory of programs with which the last of twenty nodes never becomes ready.
func neverReady(t *testing.T) (binDir string) {
	t.Helper()
	binDir = t.TempDir()
	script := fmt.Sprintf(`#!/bin/sh
case " $* " in *" --node-name=node-20 "*) exec sleep infinity ;; esac
exec %s/berthd "$@"
`, harness.BinDir)
	harness.OK(t, os.WriteFile(filepath.Join(binDir, "berthd"), []byte(script), 0o700))
	harness.OK(t, os.Symlink(filepath.Join(harness.BinDir, "berth"), filepath.Join(binDir, "berth")))
	return binDir
}

// rise begins to raise a lab of many nodes and returns before it is up, with a function that waits for the end and
// returns the error output.
func (c *cli) rise() (up *os.Process, end func() (complaint string)) {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), c.bin, "up", "--dir", c.dir, "--nodes", "20", "--bin-dir", neverReady(c.t), "--timeout", "10m")
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	progress, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	lines := bufio.NewScanner(progress)
	if !lines.Scan() {
		c.t.Fatalf("no progress: %s", &complaint)
	}
	return cmd.Process, func() string {
		c.t.Helper()
		for lines.Scan() { // what was on its way
		}
		if err := cmd.Wait(); err == nil {
			c.t.Error("vpclab up claims success")
		}
		return complaint.String()
	}
}

func (c *cli) nothingLeft() {
	c.t.Helper()
	harness.Eventually(c.t, time.Minute, "the lab's process is gone", func() error {
		if pid := control.Holder(c.dir); pid != 0 {
			return fmt.Errorf("lab process %d still runs", pid)
		}
		return nil
	})
	if left, err := ns.List(fabric.Prefix(lab.IDOf(c.dir))); err != nil || len(left) > 0 {
		c.t.Errorf("left behind: %v, %v", left, err)
	}
}

// Ctrl-C while nodes come up prints one line, and leaves nothing behind.
func TestInterruptedUp(t *testing.T) {
	c := newCLI(t)
	up, end := c.rise()
	if err := up.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if said := end(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "the lab was removed") {
		t.Errorf("this was all there is to say:\n%s", said)
	}
	c.nothingLeft()
}

// down ends a lab that is starting.
func TestDownOvertakesUp(t *testing.T) {
	c := newCLI(t)
	_, end := c.rise()
	c.has(c.run("down"), "Nothing of the lab is left")
	if said := end(); strings.Contains(said, "killed") {
		t.Errorf("the lab process was killed: %s", said)
	}
	c.nothingLeft()
}

func TestUpSaysWhatIsWrong(t *testing.T) {
	c := newCLI(t)
	c.fails("find berthd", "up", "--bin-dir", c.dir) // there is none
	c.fails("--nodes 0", "up", "--nodes", "0")
	c.fails("no-such-file", "up", "--spec", "no-such-file")
	c.fails("unknown instance type", "up", "--no-daemons", "--instance-type", "z9.huge")
	if left, err := ns.List(fabric.Prefix(lab.IDOf(c.dir))); err != nil || len(left) > 0 {
		t.Errorf("a lab that did not come up left %v, %v", left, err)
	}
}

func TestLabByCommand(t *testing.T) {
	c := newCLI(t)
	c.has(c.run("up", "--instance-type", "t3.small"), "node node-2 is ready")
	c.run("pod", "add", "node-1", "a", "b")
	c.run("pod", "add", "node-2", "--count", "2")
	s := c.shows(func(s lab.Status) bool {
		return len(s.Nodes[0].Pods) == 2 && len(s.Nodes[1].Pods) == 2 && s.Nodes[0].Daemon == "ready"
	})
	far := s.Nodes[1].Pods[0].Addresses[0].String()
	ask := []string{"exec", "node-1/a", "--", "bash", "-c", "exec 3<>/dev/tcp/" + far + "/7777; echo hello >&3; head -1 <&3"}
	c.has(c.run(ask...), "you are "+s.Nodes[0].Pods[0].Addresses[0].String()+", to "+far+": hello")
	c.fails("has a pod a already", "pod", "add", "node-1", "a")
	c.has(c.run("pod", "list"), far)
	c.has(c.run("calls", "--action", "DescribeNetworkInterfaces"), s.Nodes[0].InstanceID)
	c.fails("want text or json", "calls", "--output", "table")

	c.run("pod", "add", "node-1", "web", "--port", "30080:8080/tcp") // by the portmap plugin, chained after berth
	c.has(c.run("exec", "internet", "--", "bash", "-c", "exec 3<>/dev/tcp/"+s.Nodes[0].Address.String()+"/30080; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"),
		"you are "+s.Internet.String()+", to ")
	c.run("pod", "del", "node-1", "web")

	c.run("kill", "node-1")
	if d := c.status().Nodes[0].Daemon; d != "down" {
		t.Errorf("berthd is %s after it was killed", d)
	}
	c.has(c.run(ask...), "hello") // pods do not mind
	c.run("start", "node-1")
	c.run("kill", "node-2", "--restart")
	c.run("pod", "del", "node-1", "a", "b")
	c.run("pod", "add", "node-2", "late")
	if n := c.status().Nodes; len(n[0].Pods) != 0 || len(n[1].Pods) != 3 || n[1].Starts != 2 {
		t.Errorf("status: %+v", n)
	}
	c.has(c.run("down"), "Nothing of the lab is left")
}

func TestOperatorModeByCommand(t *testing.T) {
	c := newCLI(t)
	c.fails("want one of", "up", "--mode", "both")
	c.has(c.run("up", "--mode", "operator", "--operators", "2"), "export KUBECONFIG=")
	c.has(c.run("pod", "add", "node-1", "web"), "node-1/web")
	harness.Eventually(t, harness.Rest, "the status is whole", func() error {
		s := c.status()
		if len(s.Operators) != 2 || s.Mode != lab.OperatorMode || s.Kubeconfig == "" || s.Nodes[0].Network == nil || s.Nodes[0].Network.Available == 0 {
			return fmt.Errorf("status: %+v", s)
		}
		if out := c.run("status"); !strings.Contains(out, "leads") || !strings.Contains(out, "NODENETWORK") {
			return fmt.Errorf("status: %s", out)
		}
		return nil
	})
	c.has(c.run("kill", "operator-1", "--restart"), "operator-1 was killed and started again")
	c.has(c.run("kill", "kube-apiserver"), "vpclab start kube-apiserver")
	c.fails("does not run", "kill", "kube-apiserver")
	c.statusSays("connection refused") // and shows the rest all the same
	c.has(c.run("start", "kube-apiserver"), "kube-apiserver is ready")
	c.fails("no node", "kill", "operator-3")
}

func TestPoolModeByCommand(t *testing.T) {
	c := newCLI(t)
	c.has(c.run("up", "--mode", "pool", "--operators", "1"), "export KUBECONFIG=")
	c.has(c.run("pod", "add", "node-1", "web"), "node-1/web")
	s := c.shows(func(s lab.Status) bool {
		return s.Mode == lab.PoolMode && len(s.Pools) == 1 && len(s.Blocks) > 0 && strings.HasPrefix(s.Nodes[0].Pods[0].Block, "default-")
	})
	c.statusSays("ANNOUNCED")
	c.has(c.run("exec", "node-1", "--", "ip", "route", "show", "table", "119"), "dev lo proto 190")
	c.has(c.run("exec", "internet", "--", "cat", "/proc/net/fib_trie"), s.Internet.String())
	c.fails("no EC2", "fault", "outage")
	c.fails("no EC2 calls", "calls")
	c.fails("no on-premises host", "exec", "onprem", "--", "true")
	c.has(c.run("down"), "Nothing of the lab is left")
}

func TestAlcorByCommand(t *testing.T) {
	c := newCLI(t)
	c.fails("want neutron, alcor or ec2", "up", "--mode", "port", "--provider", "nova")
	c.fails("is for --mode operator with --vpc-ports", "up", "--mode", "port", "--provider", "ec2")
	c.fails("is for --provider neutron", "up", "--mode", "port", "--provider", "alcor", "--neutron", "real")
	c.has(c.run("up", "--mode", "port", "--provider", "alcor", "--operators", "1"), "Alcor, imitated strictly")
	c.run("pod", "add", "node-1", "db", "--annotation", "berth.dev/nics=[{ip: 192.168.0.12}]")
	c.run("pod", "add", "node-2", "web")
	c.shows(func(s lab.Status) bool {
		return s.Mode == lab.PortMode && len(s.VPCs) == 2 && len(s.NICs) == 2 && s.NICs[0].State == "ACTIVE" && s.NICs[1].State == "ACTIVE"
	})
	c.has(c.run("exec", "node-2/web", "--", "bash", "-c", "exec 3<>/dev/tcp/192.168.0.12/7777; echo hello >&3; head -1 <&3"), "to 192.168.0.12: hello")
	c.has(c.run("down"), "Nothing of the lab is left")
}
