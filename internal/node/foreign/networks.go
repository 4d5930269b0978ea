package foreign

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Config is a network configuration of the node.
type Config struct {
	File    string   // its path
	Plugins []string // types, in order
}

// transparent are plugins that assign no addresses themselves: those that call other plugins, and that of the interface lo.
var transparent = []string{"multus", "multus-shim", "loopback"}

// ours reports whether Berth's plugin is in the configuration.
func (c Config) ours() bool { return slices.Contains(c.Plugins, "berth") }

// Network is another pod network that was seen on the node.
type Network struct {
	System  System
	Answers bool // its daemon runs
	Holds   int  // number of addresses that it holds
}

// String returns a text such as "Coil still holds 3 addresses and its daemon runs".
func (n Network) String() string {
	if n.Holds == 0 {
		return fmt.Sprintf("the daemon of %s runs", n.System)
	}
	text := fmt.Sprintf("%s still holds %d addresses", n.System, n.Holds)
	if n.Holds == 1 {
		text = fmt.Sprintf("%s still holds 1 address", n.System)
	}
	if n.Answers {
		text += " and its daemon runs"
	}
	return text
}

// Networks returns the other pod networks whose daemon runs or that hold addresses.
func Networks(answers map[System]bool, holders []Holder) (list []Network) {
	for _, s := range Systems() {
		n := Network{System: s, Answers: answers[s]}
		for _, h := range holders {
			if h.System == s {
				n.Holds++
			}
		}
		// Routes to single addresses, such as those of a virtual machine, do not make a pod network.
		if n.Answers || n.Holds > 0 && s != Other {
			list = append(list, n)
		}
	}
	return list
}

// Reasons of the condition SoleCNIPlugin.
const (
	ReasonSole = "Sole"
	ReasonTwo  = "TwoCNIPlugins"
)

// Sole returns the condition whether pods of a node get their addresses from Berth only. configs are in the runtime's order,
// of which it uses the first.
func Sole(configs []Config, networks []Network) (healthy bool, reason, message string) {
	configs = slices.DeleteFunc(slices.Clone(configs), func(c Config) bool {
		return len(c.Plugins) == 0 || !c.ours() && slices.Contains(transparent, c.Plugins[0])
	})
	var parts []string
	first := System("")
	if len(configs) > 0 && !configs[0].ours() {
		first = pluginSystem(configs[0].Plugins[0])
		before := "there is no configuration of Berth"
		if i := slices.IndexFunc(configs, Config.ours); i > 0 {
			before = "which sorts before " + filepath.Base(configs[i].File)
		}
		parts = append(parts, fmt.Sprintf("new pods get their addresses from %s: the runtime uses %s, %s", first, configs[0].File, before))
	}
	for _, n := range networks {
		parts = append(parts, n.String())
	}
	if len(parts) == 0 {
		return true, ReasonSole, ""
	}
	if first == "" {
		from := "no configuration of a pod network is there"
		if len(configs) > 0 {
			from = "new pods get their addresses from Berth: the runtime uses " + configs[0].File
		}
		parts = append([]string{from}, parts...)
	}
	return false, ReasonTwo, strings.Join(parts, "; ") +
		"; move the node to one of them: kubectl berth migrate, or remove the other's DaemonSet and configuration file and replace its pods"
}
