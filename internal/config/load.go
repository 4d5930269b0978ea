package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/redact"
)

// Loader registers and loads the settings of a program.
type Loader[C any] struct {
	config   *C // the table's rows write to it
	settings []Setting
	raw      map[string]*rawValue // by flag
	finish   func(Given) []error
}

// rawValue keeps the text of a flag for Load, which reports all errors at once.
type rawValue struct {
	text string
	set  bool
	bare bool
}

func (r *rawValue) String() string { return r.text }

func (r *rawValue) Set(s string) error {
	r.text, r.set = s, true
	return nil
}

func (r *rawValue) Type() string {
	if r.bare {
		return "bool"
	}
	return "value"
}

// IsBoolFlag lets pflag accept the flag without a value.
func (r *rawValue) IsBoolFlag() bool { return r.bare }

// NewLoader registers a flag for every setting of berthd.
func NewLoader(flags *pflag.FlagSet) *Loader[Config] {
	c := &Config{}
	return newLoader(flags, c, table(c), c.finish)
}

// newLoader registers a flag for every setting of a table that writes to c. After parsing, it calls finish, which returns
// contradictions.
func newLoader[C any](flags *pflag.FlagSet, c *C, settings []Setting, finish func(Given) []error) *Loader[C] {
	l := &Loader[C]{config: c, settings: settings, raw: map[string]*rawValue{}, finish: finish}
	for _, s := range l.settings {
		r := &rawValue{text: s.Default, bare: s.bare}
		l.raw[s.Flag] = r
		f := flags.VarPF(r, s.Flag, "", s.Doc+" ("+strings.Join(s.Env, ", ")+")")
		if s.bare {
			f.NoOptDefVal = "true"
		}
	}
	return l
}

// Load reads flags, environment and defaults, in this order of precedence, and validates them. The
// error lists every mistake with its flag or variable.
func (l *Loader[C]) Load(environ []string) (C, error) {
	env := map[string]string{}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	var problems []error
	if err := ignoreEndpoints(env); err != nil {
		problems = append(problems, err)
	}
	in := inputs{flags: map[string]string{}, env: env}
	for flag, r := range l.raw {
		if r.set {
			in.flags[flag] = r.text
		}
	}
	var effective []introspect.Setting
	for _, s := range l.settings {
		name, value, err := in.apply(s)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
		}
		effective = append(effective, introspect.Setting{Name: s.Flag, Value: redact.Text(value), From: name})
	}
	problems = append(problems, l.finish(Given{unknown(l.settings, env), effective, in.drift(l.settings)})...)
	if err := errors.Join(problems...); err != nil {
		var none C
		return none, fmt.Errorf("invalid settings:\n%w", err)
	}
	return *l.config, nil
}

// apply parses the value that takes precedence, and returns it with its origin.
func (in inputs) apply(s Setting) (name, value string, err error) {
	name, value = in.value(s)
	switch {
	case name == "":
		name = "default of --" + s.Flag
	case !strings.HasPrefix(name, "--"):
		name = "environment variable " + name
	}
	if err := s.parse.store(value); err != nil {
		return name, value, fmt.Errorf("%q: %w", value, err)
	}
	return name, value, nil
}

// unknown returns variables that look like settings but are not, probably because of typos. It ignores
// variables that Kubernetes sets for Services.
func unknown(settings []Setting, env map[string]string) []string {
	var out []string
	for name := range env {
		if !strings.HasPrefix(name, "BERTH_") || strings.Contains(name, "_SERVICE_") || strings.Contains(name, "_PORT") || name == failpoint.EnvVar || name == InstalledEnv {
			continue
		}
		if !slices.ContainsFunc(settings, func(s Setting) bool { return slices.Contains(s.Env, name) }) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
