package ns

import (
	"fmt"
	"os"
	"strings"
)

// Sysctl is one kernel parameter under /proc/sys, its name with slashes, as
// link names may contain dots: "net/ipv4/ip_forward".
type Sysctl struct{ Name, Value string }

// SetSysctls sets parameters of the calling thread's namespace, in order.
func SetSysctls(params ...Sysctl) error {
	for _, p := range params {
		if err := os.WriteFile("/proc/sys/"+p.Name, []byte(p.Value), 0); err != nil {
			return fmt.Errorf("set sysctl %s to %s: %w", strings.ReplaceAll(p.Name, "/", "."), p.Value, err)
		}
	}
	return nil
}
