package ns

import (
	"fmt"
	"os"
	"strings"
)

// Sysctl is one kernel parameter under /proc/sys, its name with slashes, as
// link names may contain dots: "net/ipv4/ip_forward".
type Sysctl struct{ Name, Value string }

// Forwarding makes a router of a namespace, which judges no sources. New links
// inherit the defaults.
var Forwarding = []Sysctl{
	{Name: "net/ipv4/ip_forward", Value: "1"},
	{Name: "net/ipv4/conf/all/rp_filter", Value: "0"},
	{Name: "net/ipv4/conf/default/rp_filter", Value: "0"},
	{Name: "net/ipv6/conf/all/disable_ipv6", Value: "0"},
	{Name: "net/ipv6/conf/default/disable_ipv6", Value: "0"},
	{Name: "net/ipv6/conf/all/forwarding", Value: "1"},
	{Name: "net/ipv6/conf/default/accept_dad", Value: "0"},
}

// SetSysctls sets parameters of the calling thread's namespace, in order.
func SetSysctls(params ...Sysctl) error {
	for _, p := range params {
		if err := os.WriteFile("/proc/sys/"+p.Name, []byte(p.Value), 0); err != nil {
			return fmt.Errorf("set sysctl %s to %s: %w", strings.ReplaceAll(p.Name, "/", "."), p.Value, err)
		}
	}
	return nil
}
