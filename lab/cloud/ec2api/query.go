package ec2api

import (
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/berthnet/berth/lab/cloud/vpc"
)

// maxParams is the maximum number of parameters in a request, and maxDepth the maximum number of parts in a
// name. The deepest name in use is NetworkInterface.1.PrivateIpAddresses.1.PrivateIpAddress.
const (
	maxParams = 10000
	maxDepth  = 16
)

// params are the parameters of one request. Reading a parameter marks it as known. The first error is kept.
type params struct {
	values  map[string]string
	numbers map[string][]int // by list, such as "Filter.1.Value": the numbers that follow its name
	known   map[string]bool
	err     *vpc.Error
}

// parse reads the form of a request.
func parse(form url.Values) (*params, *vpc.Error) {
	if len(form) > maxParams {
		return nil, vpc.Errorf("RequestTooLarge", "The request has %d parameters; the most is %d.", len(form), maxParams)
	}
	p := &params{values: make(map[string]string, len(form)), numbers: map[string][]int{}, known: map[string]bool{}}
	for name, vs := range form {
		if name == "" || len(vs) != 1 {
			return nil, vpc.Errorf("InvalidQueryParameter", "The parameter %q is given %d times.", name, len(vs))
		}
		if strings.Count(name, ".") >= maxDepth {
			return nil, vpc.Errorf("InvalidQueryParameter", "The name of a parameter has more than %d parts.", maxDepth)
		}
		p.values[name] = vs[0]
		p.index(name)
	}
	for list, ns := range p.numbers {
		slices.Sort(ns)
		p.numbers[list] = slices.Compact(ns)
	}
	for _, name := range []string{"Action", "Version", "DryRun"} {
		p.known[name] = true
	}
	return p, nil
}

// index records the numbers in a parameter's name, by list.
func (p *params) index(name string) {
	for i := range len(name) {
		if name[i] != '.' {
			continue
		}
		digits, _, _ := strings.Cut(name[i+1:], ".")
		if n, err := strconv.Atoi(digits); err == nil && n >= 0 && strconv.Itoa(n) == digits {
			p.numbers[name[:i]] = append(p.numbers[name[:i]], n)
		}
	}
}

func (p *params) fail(e *vpc.Error) {
	if p.err == nil {
		p.err = e
	}
}

func (p *params) invalid(name, value string) {
	p.fail(vpc.Errorf("InvalidParameterValue", "Value (%s) for parameter %s is invalid.", value, name))
}

// lookup reads one parameter.
func (p *params) lookup(name string) (string, bool) {
	v, ok := p.values[name]
	if ok {
		p.known[name] = true
	}
	return v, ok
}

func (p *params) text(name string) string {
	v, _ := p.lookup(name)
	return v
}

// need reads a required parameter.
func (p *params) need(name string) string {
	v := p.text(name)
	if v == "" {
		p.fail(vpc.Errorf("MissingParameter", "The request must contain the parameter %s", name))
	}
	return v
}

// clientToken reads a ClientToken: at most 64 ASCII characters
// (EC2 API Reference, RunInstances).
func (p *params) clientToken() string {
	v := p.text("ClientToken")
	foreign := func(r rune) bool { return r > unicode.MaxASCII }
	if len(v) > 64 || strings.ContainsFunc(v, foreign) {
		p.fail(vpc.Errorf("InvalidClientToken", "The client token is longer than 64 characters or not ASCII."))
	}
	return v
}

// number reads a count, a 32-bit integer in the API; ok reports whether it was given.
func (p *params) number(name string) (n int, ok bool) {
	v, ok := p.lookup(name)
	if !ok {
		return 0, false
	}
	n32, err := strconv.ParseInt(v, 10, 32)
	if err != nil || n32 < 0 {
		p.invalid(name, v)
		return 0, true
	}
	return int(n32), true
}

// truth reads a boolean; ok reports whether it was given.
func (p *params) truth(name string) (b, ok bool) {
	v, ok := p.lookup(name)
	if !ok {
		return false, false
	}
	b, err := strconv.ParseBool(strings.ToLower(v))
	if err != nil {
		p.invalid(name, v)
	}
	return b, true
}

// each lists the prefixes of a list of structures: "Filter.1.", "Filter.2.".
func (p *params) each(name string) []string {
	var out []string
	for _, n := range p.numbers[name] {
		out = append(out, name+"."+strconv.Itoa(n)+".")
	}
	return out
}

// list reads name.1, name.2 and so on.
func (p *params) list(name string) []string {
	var out []string
	for _, n := range p.numbers[name] {
		if v, ok := p.lookup(name + "." + strconv.Itoa(n)); ok {
			out = append(out, v)
		}
	}
	return out
}

// nested reads name.1.field, name.2.field and so on.
func (p *params) nested(name, field string) []string {
	var out []string
	for _, prefix := range p.each(name) {
		if v, ok := p.lookup(prefix + field); ok {
			out = append(out, v)
		}
	}
	return out
}

// addr reads an optional address of a family.
func (p *params) addr(name string, is4 bool) netip.Addr {
	v := p.text(name)
	if v == "" {
		return netip.Addr{}
	}
	return p.addrs([]string{v}, is4)[0]
}

func (p *params) addrs(values []string, is4 bool) []netip.Addr {
	var out []netip.Addr
	for _, v := range values {
		a, err := netip.ParseAddr(v)
		if err != nil || a.Is4() != is4 || a.Zone() != "" {
			p.fail(vpc.Errorf("InvalidParameterValue", "invalid value for parameter address: %s", v))
		}
		out = append(out, a)
	}
	return out
}

func (p *params) prefixes(name string, values []string, is4 bool) []netip.Prefix {
	var out []netip.Prefix
	for _, v := range values {
		a, err := netip.ParsePrefix(v)
		if err != nil || a.Addr().Is4() != is4 {
			p.invalid(name, v)
		}
		out = append(out, a)
	}
	return out
}

// unknown returns the name of a parameter that was not read, or "".
func (p *params) unknown() string {
	var left []string
	for k := range p.values {
		if !p.known[k] {
			left = append(left, k)
		}
	}
	if len(left) == 0 {
		return ""
	}
	slices.Sort(left)
	return left[0]
}

// has reports whether any parameter of a list or structure was given.
func (p *params) has(name string) bool {
	for k := range p.values {
		if k == name || strings.HasPrefix(k, name+".") {
			return true
		}
	}
	return false
}
