package config

import (
	"strings"
	"time"
)

// Setting is one row of the table.
type Setting struct {
	Group   string   // heading in the reference
	Flag    string   // without dashes
	Env     []string // by precedence: BERTH_<FLAG>, then names of other programs
	Default string   // default as text; empty: not set
	Unit    string   // unit of a number; empty if Doc contains it
	Doc     string   // for the reference and --help

	parse parser // checks a text and stores it in the program's settings
	bare  bool   // a flag that needs no value
}

const (
	maxCount = 1 << 16 // more than the addresses of any node
	day      = 24 * time.Hour
)

// table lists every setting; parsing writes to c.
func table(c *Config) []Setting {
	return rows([]group{
		{"Node", c.NodeSettings.rows()},
		{"Warm addresses", append(c.WarmSettings.rows(), c.ENITimes.rows()...)},
		{"ENIs", c.ENISettings.rows()},
		{"Address pools", c.PoolSettings.rows()},
		{"VPC ports", c.PortSettings.rows()},
		{"Egress", c.EgressSettings.rows()},
		{"Network policies", c.NetworkPolicySettings.rows()},
		{"Cloud", c.CloudSettings.rows()},
		{"Data path", c.DatapathSettings.rows()},
		{"Serving", c.ServingSettings.rows()},
		{"Watching", append(c.WatchingSettings.rows(), c.LogSettings.rows()...)},
		{"Plugin installation", c.InstallSettings.rows()},
	})
}

// group is the settings under one heading of the reference.
type group struct {
	name string
	rows []Setting
}

// rows joins groups into one table, and adds the BERTH_ variable of each setting.
func rows(groups []group) []Setting {
	var rows []Setting
	for _, g := range groups {
		for _, s := range g.rows {
			s.Group = g.name
			s.Env = append([]string{"BERTH_" + strings.ToUpper(strings.ReplaceAll(s.Flag, "-", "_"))}, s.Env...)
			rows = append(rows, s)
		}
	}
	return rows
}

// Form describes the values of a setting, for typed representations such as the values of the chart.
type Form struct {
	Kind      Kind
	Low, High int      // bounds of an Integer, inclusive
	Words     []string // values of a Word, in lower case
}

// Kind is the type of a setting.
type Kind string

// Kinds of settings.
const (
	Text     Kind = "text"
	Path     Kind = "path" // absolute
	Word     Kind = "word"
	Boolean  Kind = "boolean"
	Integer  Kind = "integer"
	Duration Kind = "duration" // in Go's notation, or a number of seconds
	List     Kind = "list"     // texts, separated by commas
	Pairs    Kind = "pairs"    // key=value, separated by commas
)

// Form describes the values of the setting.
func (s Setting) Form() Form { return s.parse.form }

// Settings returns the settings of berthd, in the order of the reference.
func Settings() []Setting { return table(&Config{}) }

// OperatorSettings returns the settings of berth-operator, in the order of the reference.
func OperatorSettings() []Setting { return operatorTable(&Operator{}) }
