package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/redact"
)

// InstalledEnv is the environment variable in which the chart records what it gave to a program, as JSON of Installed.
// It is a part of the pod's template, so the record always belongs to the pod that has it, also during a rollout.
const InstalledEnv = "BERTH_INSTALLED"

// Installed is what the chart gave to a program.
type Installed struct {
	Args []string           `json:"args,omitempty"`
	Env  map[string]*string `json:"env"` // nil: the value comes from elsewhere, such as a Secret
	// Allowed is the data of the ConfigMap berthd-allowed, if the chart created it and the program has it mounted.
	Allowed map[string]string `json:"allowed,omitempty"`
}

// Drift is the difference between a program's settings and those that the chart installed.
type Drift struct {
	Installed *Installed // nil: not known, as for programs that no chart installed
	Changes   []string   // one for each setting, such as "warm-ip-target is 5, and the chart installed 3"
}

// maxChanges limits the number of changes in a message.
const maxChanges = 10

// Message describes the changes and what to do about them; empty without changes.
func (d Drift) Message() string {
	if len(d.Changes) == 0 {
		return ""
	}
	list := strings.Join(d.Changes[:min(len(d.Changes), maxChanges)], "; ")
	if more := len(d.Changes) - maxChanges; more > 0 {
		list += fmt.Sprintf("; and %d more", more)
	}
	return list + ". To keep a change, add it to the chart's values. To undo it, run helm upgrade --force-conflicts with the same chart and values"
}

// injected are variables that webhooks of AWS set in every pod with an IAM role. They do not count as drift.
var injected = []string{"AWS_REGION", "AWS_DEFAULT_REGION"}

// inputs are a program's arguments and environment.
type inputs struct {
	flags map[string]string
	env   map[string]string
	// secret are the variables of env whose values are not known.
	secret map[string]bool
}

// value returns the effective text of a setting, with its origin.
func (in inputs) value(s Setting) (origin, value string) {
	if text, ok := in.flags[s.Flag]; ok {
		return "--" + s.Flag, text
	}
	for _, e := range s.Env {
		if in.secret[e] {
			return e, ""
		}
		if v := in.env[e]; v != "" {
			return e, v
		}
	}
	return "", s.Default
}

// inputsOf reads the arguments and variables of a container.
func inputsOf(settings []Setting, args []string, env map[string]*string) inputs {
	in := inputs{map[string]string{}, map[string]string{}, map[string]bool{}}
	for i, arg := range args {
		name, value, has := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		at := slices.IndexFunc(settings, func(s Setting) bool { return s.Flag == name })
		switch {
		case at < 0 || !strings.HasPrefix(arg, "--"):
			continue
		case !has && settings[at].bare:
			value = "true"
		case !has && i+1 < len(args):
			value = args[i+1]
		}
		in.flags[name] = value
	}
	for name, value := range env {
		if value == nil {
			in.secret[name] = true
		} else {
			in.env[name] = *value
		}
	}
	return in
}

// DriftOf compares a program's arguments and environment, as its pod has them, with the record in that environment.
// Values that come from elsewhere are nil.
func DriftOf(settings []Setting, args []string, env map[string]*string) Drift {
	return inputsOf(settings, args, env).drift(settings)
}

// drift compares inputs with the record in them.
func (in inputs) drift(settings []Setting) (out Drift) {
	record, ok := in.env[InstalledEnv]
	if !ok || record == "" {
		return out
	}
	out.Installed = &Installed{}
	if err := json.Unmarshal([]byte(record), out.Installed); err != nil {
		out.Changes = []string{fmt.Sprintf("environment variable %s cannot be read: %v", InstalledEnv, err)}
		return out
	}
	was := inputsOf(settings, out.Installed.Args, out.Installed.Env)
	aliases := map[string]bool{InstalledEnv: true}
	for _, s := range settings {
		for _, e := range s.Env {
			aliases[e] = true
		}
		origin, want := was.value(s)
		from, got := in.value(s)
		_, chosen := out.Installed.Env[from]
		if want == got || was.secret[origin] || slices.Contains(injected, from) && !chosen {
			continue
		}
		out.Changes = append(out.Changes, fmt.Sprintf("%s is %s, and the chart installed %s", s.Flag, in.shown(from, got), was.shown(origin, want)))
	}
	for _, name := range slices.Sorted(maps.Keys(out.Installed.Env)) {
		// The values of other variables are not shown: they may be secret.
		if want := out.Installed.Env[name]; want != nil && !aliases[name] && in.env[name] != *want {
			out.Changes = append(out.Changes, "environment variable "+name+" is not what the chart installed")
		}
	}
	return out
}

// shown returns a value for people.
func (in inputs) shown(origin, value string) string {
	switch {
	case in.secret[origin]:
		return "from " + origin
	case value == "":
		return "not set"
	}
	return redact.Text(value)
}
