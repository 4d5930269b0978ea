package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/berthnet/berth/internal/failpoint"
)

// Loader ties the table to a flag set and an environment.
type Loader struct {
	config   Config
	settings []Setting
	raw      map[string]*rawValue // by flag
}

// rawValue keeps a flag's text for Load, so that all mistakes are found, not the first.
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

// IsBoolFlag lets pflag take the flag without a value.
func (r *rawValue) IsBoolFlag() bool { return r.bare }

// NewLoader registers a flag for every setting.
func NewLoader(flags *pflag.FlagSet) *Loader {
	l := &Loader{raw: map[string]*rawValue{}}
	l.settings = table(&l.config)
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

// Load reads flags, then the environment, then defaults, and checks all of
// it. The error lists every mistake with its flag or variable.
func (l *Loader) Load(environ []string) (Config, error) {
	env := map[string]string{}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	var problems []error
	for _, s := range l.settings {
		if name, err := l.apply(s, env); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
		}
	}
	problems = append(problems, l.config.contradictions()...)
	l.config.Unknown = unknown(l.settings, env)
	if l.config.NodeName == "" {
		l.config.NodeName, _ = os.Hostname()
	}
	if err := errors.Join(problems...); err != nil {
		return Config{}, fmt.Errorf("invalid settings:\n%w", err)
	}
	return l.config, nil
}

// apply parses the text that wins and returns where it came from.
func (l *Loader) apply(s Setting, env map[string]string) (name string, err error) {
	name, value := "default of --"+s.Flag, s.Default
	if r := l.raw[s.Flag]; r.set {
		name, value = "--"+s.Flag, r.text
	} else {
		for _, e := range s.Env {
			if v, ok := env[e]; ok && v != "" {
				name, value = "environment variable "+e, v
				break
			}
		}
	}
	if err := s.parse(value); err != nil {
		return name, fmt.Errorf("%q: %w", value, err)
	}
	return name, nil
}

// contradictions finds settings that are right alone and wrong together.
func (c *Config) contradictions() []error {
	var out []error
	aws := c.WarmENITarget >= 0 || c.WarmIPTarget >= 0 || c.MinimumIPTarget >= 0 || c.WarmPrefixTarget >= 0
	if aws && c.CiliumDialect() {
		out = append(out, errors.New("--warm-eni-target, --warm-ip-target, --minimum-ip-target and --warm-prefix-target cannot be mixed with --min-allocate, --pre-allocate, --max-above-watermark and --max-allocate: use one dialect"))
	}
	if len(c.Subnets) > 0 && len(c.SubnetTags) > 0 {
		out = append(out, errors.New("--subnets and --subnet-tags exclude each other"))
	}
	if c.IPAM == IPAMENI && c.AutoCreateNodeNetwork {
		out = append(out, errors.New("--auto-create-node-network needs --ipam=eni-operator: in node mode there is no NodeNetwork"))
	}
	if c.IPAM == IPAMENI && c.Kubeconfig != "" {
		out = append(out, errors.New("--kubeconfig needs --ipam=eni-operator: node mode does not use the Kubernetes API"))
	}
	if c.IntrospectionAddr != "" && c.IntrospectionAddr == c.MetricsAddr {
		out = append(out, fmt.Errorf("--introspection-address and --metrics-address are both %s", c.MetricsAddr))
	}
	return out
}

// unknown lists variables that look like settings and are none: most likely
// typing errors. Kubernetes makes variables of services, which are left out.
func unknown(settings []Setting, env map[string]string) []string {
	var out []string
	for name := range env {
		if !strings.HasPrefix(name, "BERTH_") || strings.Contains(name, "_SERVICE_") || strings.Contains(name, "_PORT") || name == failpoint.EnvVar {
			continue
		}
		if !slices.ContainsFunc(settings, func(s Setting) bool { return slices.Contains(s.Env, name) }) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
