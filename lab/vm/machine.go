// Package vm runs commands in a virtual machine: QEMU without KVM, with the stock
// kernel of Debian and the host's files. It is for tests, demonstrations and
// benchmarks of what the kernel of the host may lack, such as Foo-over-UDP.
//
// The guest's root is the host's, read-only by 9p, below a tmpfs that takes what the
// guest writes; only Shared folders are written to. So programs are built on the host,
// and run in the guest as they are. The guest learns what to run from a folder, and reports
// what happens by ports of a serial device, one each for the command's output, its
// complaints, and the guest's own words (guest/run.sh). It has no network, but for the
// addresses of the host's loopback that it is given (network.go).
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

// bootTime is how long a guest may take until its first heartbeat. On a quiet host it boots within
// five seconds, at a load of 40 within a minute.
const bootTime = 2 * time.Minute

// Machine is a virtual machine, which is started for one command.
type Machine struct {
	Image  Image
	CPUs   int // DefaultCPUs when 0
	Memory int // in MiB; DefaultMemory when 0; three quarters of it take what the guest writes

	// Shared are folders of the host that the guest writes to, by the same paths.
	Shared []string

	// Reach are addresses of the host's that the guest reaches at HostAddr, by the
	// same ports. QEMU needs a network namespace for it, and the caller the right to
	// make one.
	Reach []netip.AddrPort
	// Offer are TCP ports of the guest's that the host reaches, each by the address of
	// the host's that it is the value of. That needs the same right.
	Offer map[uint16]netip.AddrPort

	// Booted is called with how long the guest took until it runs the command; may be nil.
	Booted func(time.Duration)

	// silence is how long the guest may send no heartbeat; patience when 0.
	silence time.Duration
}

// Command is what a machine runs, as root.
type Command struct {
	Argv   []string
	Env    []string // name=value, all of it; PATH is that of Debian's root when it has none
	Dir    string   // absolute; / when empty
	Stdout io.Writer
	Stderr io.Writer // where it is nil or Stdout, both go to Stdout, in order
}

func (c Command) merged() bool { return c.Stderr == nil || c.Stderr == c.Stdout }

// ExitError is that of a command that ended with another code than 0, or by a signal:
// then the code is 128 and its number, as a shell has it.
type ExitError struct{ Code int }

func (e *ExitError) Error() string {
	return "the command in the virtual machine ended with exit code " + strconv.Itoa(e.Code)
}

// Run starts the machine, runs a command there, and waits until the machine has ended. A command that fails is an
// *ExitError, a machine that locks up a *StoodStillError (see Again). Other errors, with the end of the console, say
// that the machine did not start or ended before the command. When ctx ends so does the machine, and the cause of ctx
// is returned. The machine does not outlive the caller.
func (m Machine) Run(ctx context.Context, c Command) (err error) {
	if err := supported(); err != nil {
		return err
	}
	if len(c.Argv) == 0 {
		return errors.New("no command for the virtual machine is given")
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

// arguments are QEMU's for a machine whose job is in dir (qemu(1)). Files 3, 4 and 5 of
// the process are the ports.
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
		// A panic ends the guest at once; its clock is QEMU's, which needs no watch.
		// On a busy host the kernel's test of the timer's interrupt sees none in its time, and panics: it is
		// left out (kernel-parameters.txt, no_timer_check).
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

// escape makes text the value of one of QEMU's options, whose commas end it.
func escape(s string) string { return strings.ReplaceAll(s, ",", ",,") }

// run runs QEMU until the guest has reported how the command ended.
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

	// They end with QEMU, which holds the other ends.
	var copiers sync.WaitGroup
	for from, to := range map[*os.File]io.Writer{ours[stdoutPort]: c.Stdout, ours[stderrPort]: c.Stderr} {
		copiers.Go(func() {
			if to == nil {
				return // the guest does not use it
			}
			if _, err := io.Copy(to, from); err != nil {
				cancel(fmt.Errorf("write what the command in the virtual machine says: %w", err))
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
		p.kill() // all that was written has arrived
	} // else it ends by itself, or by ctx
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

// words are what the guest said of itself.
type words struct {
	exited  bool
	code    int    // of the command, if it exited
	trouble string // why the guest does not run it
}

// hear reads from the guest until it closes the connection. Each line is a heartbeat too.
func hear(guest io.Reader, beats chan<- struct{}, up func()) (w words) {
	lines := bufio.NewScanner(guest)
	for lines.Scan() {
		select {
		case beats <- struct{}{}:
		default: // one that was not taken yet is enough
		}
		what, rest, _ := strings.Cut(lines.Text(), " ")
		switch what {
		case "up":
			up()
		case "exit":
			code, err := strconv.Atoi(rest)
			if err != nil {
				return words{trouble: "it sent no exit code: " + lines.Text()}
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

// defaultModules are loaded in every guest: devices that the kernel does not load by
// itself when netlink asks for them, and those of Foo-over-UDP.
var defaultModules = []string{"tun", "ipip", "ip6_tunnel", "fou", "fou6"}

// writeJob writes into dir what the guest runs: guest/run.sh, and the file `job` that it reads.
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

// quote makes one word of the shell of any text.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
