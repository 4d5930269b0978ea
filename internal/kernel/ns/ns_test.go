package ns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inside makes the test run in a mount namespace of its own, with the given mount propagation.
const inside = "BERTH_TEST_NETNS_PROPAGATION"

// On first use, ip-netns(8) mounts /run/netns on itself. Namespaces that are already mounted there are then mounted
// twice, with the first mount hidden.
func TestRemoveAfterIPNetnsAdd(t *testing.T) {
	propagation := os.Getenv(inside)
	if propagation != "" {
		harmed(t, map[string]uintptr{"private": unix.MS_PRIVATE, "shared": unix.MS_SHARED}[propagation])
		return
	}
	for _, propagation := range []string{"private", "shared"} {
		t.Run(propagation, func(t *testing.T) {
			c := exec.Command(os.Args[0], "-test.run=^"+strings.Split(t.Name(), "/")[0]+"$")
			c.Env = append(os.Environ(), inside+"="+propagation)
			c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func harmed(t *testing.T, propagation uintptr) {
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ok(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	ok(unix.Mount("tmpfs", "/run", "tmpfs", 0, ""))
	ok(unix.Mount("", "/run", "", propagation, ""))
	ip := func(args ...string) error {
		if out, err := exec.Command("ip", append([]string{"netns"}, args...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip netns %v: %w: %s", args, err, out)
		}
		return nil
	}
	ok(Create("lab-a"))
	ok(Create("lab-b"))
	ok(ip("add", "other"))
	ok(Create("lab-c"))
	for _, name := range []string{"lab-a", "lab-c"} {
		ok(Remove(name))
		if _, err := os.Stat(Path(name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("removed namespace %s: Stat() error = %v, want ErrNotExist", name, err)
		}
		ok(Create(name))
	}
	for _, name := range []string{"lab-a", "lab-b", "lab-c", "other"} {
		if !mounted(Path(name)) {
			t.Errorf("%s is no longer a namespace", name)
		}
		if strings.HasPrefix(name, "lab-") {
			ok(Remove(name))
		}
	}
	ok(ip("exec", "other", "true"))
	ok(ip("delete", "other"))
	if names, err := List(""); err != nil || len(names) > 0 {
		t.Errorf("List() at the end = %v, %v, want none", names, err)
	}
}
