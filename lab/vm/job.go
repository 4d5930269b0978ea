package vm

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

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
