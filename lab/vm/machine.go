// Package vm runs commands in a virtual machine: QEMU without KVM, with Debian's stock kernel and the host's files. It is for
// tests, demonstrations and benchmarks of features that the host's kernel may lack, such as Foo-over-UDP.
//
// The guest's root is the host's, read-only over 9p, below a tmpfs for the guest's writes; only Shared directories are
// writable. Programs built on the host therefore run unchanged in the guest. The guest reads its job from a directory, and
// reports on ports of a serial device, one each for the command's output, its standard error, and status messages
// (guest/run.sh). It has no network, except access to given addresses of the host's loopback (network.go).
package vm

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berthnet/berth/lab/run/proc"
)

// Defaults of a machine.
const (
	DefaultCPUs   = 1
	DefaultMemory = 2048 // MiB
)

// bootTime is the timeout of a guest's first heartbeat. On an idle host it boots within five seconds, at a load of 40
// within a minute.
const bootTime = 2 * time.Minute

// Machine is a virtual machine that runs one command.
type Machine struct {
	Image  Image
	CPUs   int // default DefaultCPUs
	Memory int // in MiB; default DefaultMemory; three quarters of it are available for the guest's writes

	// Shared are directories of the host that the guest can write to, at the same paths.
	Shared []string

	// Reach are addresses of the host that the guest reaches at HostAddr, at the same ports. QEMU needs a network namespace
	// for it, and the caller permission to create one.
	Reach []netip.AddrPort
	// Offer maps TCP ports of the guest to addresses of the host that lead to them. It needs the same permission.
	Offer map[uint16]netip.AddrPort

	// Booted is called with the time until the guest runs the command; may be nil.
	Booted func(time.Duration)

	// silence is the maximum time between heartbeats of the guest; default patience.
	silence time.Duration
}

// Command is a command that a machine runs as root.
type Command struct {
	Argv   []string
	Env    []string // name=value, the whole environment; default PATH is that of root on Debian
	Dir    string   // absolute; default /
	Stdout io.Writer
	Stderr io.Writer // if nil or equal to Stdout, both go to Stdout, in order
}

func (c Command) merged() bool { return c.Stderr == nil || c.Stderr == c.Stdout }

// ExitError is the error of a command that ended with an exit code other than 0, or by a signal: the code is then 128 plus
// its number, as in a shell.
type ExitError struct{ Code int }

func (e *ExitError) Error() string {
	return "the command in the virtual machine ended with exit code " + strconv.Itoa(e.Code)
}

// Run starts the machine, runs a command in it, and waits until the machine has ended. A failed command is an *ExitError, a
// machine that locks up a *StoodStillError (see Again). Other errors, which contain the end of the console, mean that the
// machine did not start or ended before the command. If ctx ends, the machine ends, and Run returns the cause of ctx. The
// machine does not outlive the caller.
func (m Machine) Run(ctx context.Context, c Command) (err error) {
	if err := supported(); err != nil {
		return err
	}
	if len(c.Argv) == 0 {
		return errors.New("no command for the virtual machine")
	}
	c.fill()
	path, err := program(qemu)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "vm-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := m.writeJob(dir, c); err != nil {
		return err
	}
	console := filepath.Join(dir, "console.log")
	if err := m.run(ctx, exec.Command(path, m.arguments(dir, console)...), c); err != nil {
		var exit *ExitError
		if errors.As(err, &exit) {
			return err
		}
		tail := proc.Tail(console, 60)
		if still := stoodStill(err, tail); still != nil {
			return still
		}
		return fmt.Errorf("%w\n%s%s", err, consoleTitle, tail)
	}
	return nil
}

func (c *Command) fill() {
	if c.Dir == "" {
		c.Dir = "/"
	}
	if c.Stdout == nil {
		c.Stdout = io.Discard
	}
	path := false
	for _, e := range c.Env {
		path = path || strings.HasPrefix(e, "PATH=")
	}
	if !path {
		c.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, c.Env...)
	}
}

// arguments returns QEMU's arguments for a machine with its job in dir (qemu(1)). Files 3, 4 and 5 of the process are the
// ports.
func (m Machine) arguments(dir, console string) []string {
	cpus, memory := m.CPUs, m.Memory
	if cpus == 0 {
		cpus = DefaultCPUs
	}
	if memory == 0 {
		memory = DefaultMemory
	}
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max",
		"-smp", strconv.Itoa(cpus), "-m", strconv.Itoa(memory),
		"-kernel", m.Image.kernel(), "-initrd", m.Image.initrd(),
		// A panic ends the guest immediately. Its clock is QEMU's, which needs no watchdog. On a busy host the kernel's check of
		// the timer interrupt fails and panics, so it is disabled (kernel-parameters.txt, no_timer_check).
		"-append", "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable audit=0 no_timer_check " + lockups,
		"-serial", "file:" + escape(console),
		"-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
	}
	for i := range ports {
		args = append(args, "-chardev", fmt.Sprintf("socket,id=port%d,fd=%d", i+1, i+3),
			"-device", fmt.Sprintf("virtserialport,nr=%d,chardev=port%d", i+1, i+1))
	}
	share := func(tag, path, more string) {
		args = append(args, "-fsdev", fmt.Sprintf("local,id=%s,path=%s,security_model=none,multidevs=remap%s", tag, escape(path), more),
			"-device", fmt.Sprintf("virtio-9p-pci,fsdev=%s,mount_tag=%s", tag, tag))
	}
	share("host", "/", ",readonly=on")
	share("job", dir, ",readonly=on")
	for i, path := range m.Shared {
		share(fmt.Sprintf("shared%d", i), path, "")
	}
	if m.network() {
		args = append(args, m.networkArguments()...)
	}
	return args
}

// escape escapes text as the value of a QEMU option, which commas would end.
func escape(s string) string { return strings.ReplaceAll(s, ",", ",,") }

// run runs QEMU until the guest has reported the result of the command.
func (m Machine) run(ctx context.Context, cmd *exec.Cmd, c Command) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	var complaints bytes.Buffer // of QEMU itself
	cmd.Stdout, cmd.Stderr = &complaints, &complaints
	ours, err := connect(cmd)
	if err != nil {
		return err
	}
	defer closeAll(ours)
	began := time.Now()
	p, err := m.start(cmd)
	closeAll(cmd.ExtraFiles)
	if err != nil {
		return fmt.Errorf("start the virtual machine: %w", err)
	}
	defer context.AfterFunc(ctx, p.kill)()

	// They end with QEMU, which has the other ends.
	var copiers sync.WaitGroup
	for from, to := range map[*os.File]io.Writer{ours[stdoutPort]: c.Stdout, ours[stderrPort]: c.Stderr} {
		copiers.Go(func() {
			if to == nil {
				return // the guest does not read it
			}
			if _, err := io.Copy(to, from); err != nil {
				cancel(fmt.Errorf("write the output of the command in the virtual machine: %w", err))
			}
		})
	}
	beats := make(chan struct{}, 1)
	go watch(ctx, beats, bootTime, cmp.Or(m.silence, patience), cancel)
	answer := hear(ours[wordsPort], beats, func() {
		if m.Booted != nil {
			m.Booted(time.Since(began))
		}
	})
	if answer != (words{}) {
		p.kill() // all output has arrived
	} // otherwise it ends by itself, or with ctx
	ended := p.wait()
	copiers.Wait()
	switch {
	case answer.exited && answer.code == 0:
		return nil
	case answer.exited:
		return &ExitError{answer.code}
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case answer.trouble != "":
		return fmt.Errorf("set up the virtual machine: %s", answer.trouble)
	}
	return fmt.Errorf("the virtual machine ended before its command did (%w)\n%s", ended, bytes.TrimSpace(complaints.Bytes()))
}

// words are the status messages of the guest.
type words struct {
	exited  bool
	code    int    // exit code of the command, if it has exited
	trouble string // error that prevents the command
}

// hear reads from the guest until it closes the connection. Each line also counts as a heartbeat.
func hear(guest io.Reader, beats chan<- struct{}, up func()) (w words) {
	lines := bufio.NewScanner(guest)
	for lines.Scan() {
		select {
		case beats <- struct{}{}:
		default: // one pending heartbeat is enough
		}
		what, rest, _ := strings.Cut(lines.Text(), " ")
		switch what {
		case "up":
			up()
		case "exit":
			code, err := strconv.Atoi(rest)
			if err != nil {
				return words{trouble: "no exit code: " + lines.Text()}
			}
			return words{exited: true, code: code}
		case "trouble":
			return words{trouble: rest}
		}
	}
	return words{}
}

//go:embed guest/run.sh
var runScript []byte

// defaultModules are loaded in every guest: devices that the kernel does not load by itself when requested over netlink, and
// those of Foo-over-UDP.
var defaultModules = []string{"tun", "ipip", "ip6_tunnel", "fou", "fou6"}

// writeJob writes the guest's job to dir: guest/run.sh, and the file `job` that it reads.
func (m Machine) writeJob(dir string, c Command) error {
	var b strings.Builder
	set := func(name, value string) { fmt.Fprintf(&b, "%s=%s\n", name, quote(value)) }
	set("kernel_modules", m.Image.modules())
	set("modules", strings.Join(defaultModules, " "))
	set("shared", fmt.Sprint(len(m.Shared)))
	for i, dir := range m.Shared {
		set(fmt.Sprintf("shared_%d", i), dir)
	}
	network := ""
	if m.network() {
		network = guestPrefix.String()
	}
	set("network", network)
	merged := ""
	if c.merged() {
		merged = "yes"
	}
	set("merged", merged)
	words := []string{"exec", "env", "-"}
	for _, w := range append(c.Env, c.Argv...) {
		words = append(words, quote(w))
	}
	fmt.Fprintf(&b, "job() {\n\tcd %s && %s\n}\n", quote(c.Dir), strings.Join(words, " "))
	if err := os.WriteFile(filepath.Join(dir, "run.sh"), runScript, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "job"), []byte(b.String()), 0o600)
}

// quote quotes any text as one word of a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
