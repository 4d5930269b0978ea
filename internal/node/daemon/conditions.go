package daemon

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// The conditions of a node. Each is healthy or not, with a reason.
const (
	ConditionDataPath   = "DataPathReady"
	ConditionForwarding = "ForwardingAllowed"
	ConditionARP        = "ARPFiltered"
	ConditionExclusive  = "AddressesExclusive"
	ConditionSole       = "SoleCNIPlugin"
	ConditionSupply     = "AddressesAvailable"
	ConditionRecords    = "RecordsIntact"
	ConditionWritable   = "RecordsWritable"
	ConditionInstalled  = "PluginInstalled"
	ConditionChain      = "ChainComplete"
	ConditionSettings   = "SettingsAsInstalled"
)

// conditionDocs describes when each condition is healthy.
var conditionDocs = [][2]string{
	{ConditionDataPath, "the node's own kernel state is set up"},
	{ConditionForwarding, "no other packet filter on the node drops forwarded packets by default"},
	{ConditionARP, "ARP requests of pods, which could fill the node's neighbour table, are dropped"},
	{ConditionExclusive, "neither a link of the node nor other software on it has an address that belongs to pods"},
	{ConditionSole, "no other pod network on the node assigns or holds addresses; with `--ipam=port` and `none` the condition does not exist"},
	{ConditionSupply, "an address was usable at least once, and no ADD waits for one"},
	{ConditionRecords, "all attachment records could be read"},
	{ConditionWritable, "attachment records can be written"},
	{ConditionInstalled, "plugin and configuration are installed, if berthd is configured to install them"},
	{ConditionChain, "the plugins chained after berth that exist on the node work; with --ipam=none, berth comes after another network's plugin"},
	{ConditionSettings, "arguments and environment of berthd are those that the chart installed; the condition does not exist if no chart installed them"},
	{"EgressReady", "the node's kernel supports the tunnels of Egress clients, if egress is enabled"},
}

// Condition is one aspect of the node that a person may need to act on.
type Condition struct {
	Type    string
	Healthy bool
	Reason  string // a word in CamelCase
	Message string // what is wrong and what to do
	Since   time.Time
}

type conditions struct {
	clock clock.Clock
	log   *slog.Logger

	mu   sync.Mutex // guards list
	list map[string]Condition
}

func newConditions(clk clock.Clock, log *slog.Logger) *conditions {
	return &conditions{clock: clk, log: log, list: map[string]Condition{}}
}

// set records a condition and logs changes.
func (c *conditions) set(kind string, healthy bool, reason, message string) {
	c.mu.Lock()
	old, had := c.list[kind]
	changed := !had || old.Healthy != healthy || old.Reason != reason
	since := old.Since
	if changed {
		since = c.clock.Now()
	}
	c.list[kind] = Condition{kind, healthy, reason, message, since}
	c.mu.Unlock()
	switch {
	case changed && !healthy:
		c.log.Warn("condition", "type", kind, "healthy", false, "reason", reason, "message", message)
	case changed && had:
		c.log.Info("condition", "type", kind, "healthy", true, "reason", reason)
	}
}

func (c *conditions) get(kind string) (Condition, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.list[kind]
	return v, ok
}

// all returns the conditions by type.
func (c *conditions) all() []Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Condition, 0, len(c.list))
	for _, v := range c.list {
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b Condition) int { return strings.Compare(a.Type, b.Type) })
	return out
}
