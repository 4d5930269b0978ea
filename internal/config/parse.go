package config

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

// A check validates a text; a parser also stores its value. Their errors say what is expected, and the
// caller adds the name of the setting.

// parser parses a setting's text.
type parser struct {
	store func(string) error
	form  Form // form of its values
}

func text(dst *string) parser { return checked(dst, func(string) error { return nil }) }

// checked returns the parser of a text that is stored unchanged.
func checked(dst *string, check func(string) error) parser {
	return parser{func(s string) error {
		if err := check(s); err != nil {
			return err
		}
		*dst = s
		return nil
	}, Form{Kind: Text}}
}

// orEmpty returns a check that also accepts the empty text.
func orEmpty(check func(string) error) func(string) error {
	return func(s string) error {
		if s == "" {
			return nil
		}
		return check(s)
	}
}

func nonEmpty(s string) error {
	if s == "" {
		return errors.New("expected a name")
	}
	return nil
}

// clusterName rejects the placeholder of the install manifests, under which clusters would share ENIs.
func clusterName(s string) error {
	if s == "MY_CLUSTER" {
		return errors.New("expected the name of this cluster in place of the manifest's placeholder")
	}
	return nonEmpty(s)
}

func boolean(dst *bool) parser {
	return parser{func(s string) error {
		v, err := strconv.ParseBool(s)
		if err != nil {
			return errors.New("expected true or false")
		}
		*dst = v
		return nil
	}, Form{Kind: Boolean}}
}

// optional parses a boolean whose default depends on other settings; an empty text leaves nil.
func optional(dst **bool) parser {
	return parser{func(s string) error {
		if s == "" {
			*dst = nil
			return nil
		}
		v := false
		*dst = &v
		return boolean(&v).store(s)
	}, Form{Kind: Boolean}}
}

// integer accepts 0 to high; an empty text stores unset.
func integer(dst *int, high, unset int) parser {
	return parser{func(s string) error {
		if s == "" {
			*dst = unset
			return nil
		}
		v, err := strconv.Atoi(s)
		if err != nil || v < 0 || v > high {
			return fmt.Errorf("expected a whole number from 0 to %d", high)
		}
		*dst = v
		return nil
	}, Form{Kind: Integer, Low: 0, High: high}}
}

func udpPort(dst *int) parser {
	return parser{func(s string) error {
		if err := integer(dst, math.MaxUint16, 0).store(s); err != nil || *dst == 0 {
			return errors.New("expected a port from 1 to 65535")
		}
		return nil
	}, Form{Kind: Integer, Low: 1, High: math.MaxUint16}}
}

// positiveOr is like integer, with unset for any number below 1, as the Amazon VPC CNI interprets MAX_ENI.
func positiveOr(dst *int, high, unset int) parser {
	number := integer(dst, high, unset)
	return parser{func(s string) error {
		if v, err := strconv.Atoi(s); err == nil && v < 1 {
			s = ""
		}
		return number.store(s)
	}, Form{Kind: Integer, Low: math.MinInt32, High: high}}
}

// duration accepts Go's notation (1m30s) or a number of seconds, as in IP_COOLDOWN_PERIOD.
func duration(dst *time.Duration, low, high time.Duration) parser {
	return parser{func(s string) error {
		v, err := time.ParseDuration(s)
		if n, intErr := strconv.Atoi(s); intErr == nil {
			v, err = time.Duration(n)*time.Second, nil
		}
		if err != nil || v < low || v > high {
			return fmt.Errorf("expected a duration such as 30s, from %s to %s", low, high)
		}
		*dst = v
		return nil
	}, Form{Kind: Duration}}
}

// items returns the elements of a comma-separated list.
func items(s string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for item := range strings.SplitSeq(s, ",") {
			if item = strings.TrimSpace(item); item != "" && !yield(item) {
				return
			}
		}
	}
}

func list(dst *[]string, check func(string) error) parser {
	return parser{func(s string) error {
		var out []string
		for item := range items(s) {
			if err := check(item); err != nil {
				return fmt.Errorf("item %q: %w", item, err)
			}
			if !slices.Contains(out, item) {
				out = append(out, item)
			}
		}
		*dst = out
		return nil
	}, Form{Kind: List}}
}

func prefixed(prefix string) func(string) error {
	return func(s string) error {
		if rest, ok := strings.CutPrefix(s, prefix); !ok || rest == "" {
			return fmt.Errorf("expected an ID such as %s0a1b2c3d", prefix)
		}
		return nil
	}
}

func pairs(dst *map[string]string) parser {
	return parser{func(s string) error {
		out := map[string]string{}
		for item := range items(s) {
			key, value, ok := strings.Cut(item, "=")
			if !ok || key == "" {
				return fmt.Errorf("item %q: expected key=value", item)
			}
			out[key] = value
		}
		*dst = out
		return nil
	}, Form{Kind: Pairs}}
}

// Tag is an EC2 tag; an empty Value matches any.
type Tag struct{ Key, Value string }

// EC2 User Guide, "Tag restrictions".
const maxTagKey, maxTagValue = 128, 256

func tagKey(s string) error {
	if n := utf8.RuneCountInString(s); s != strings.TrimSpace(s) || strings.Contains(s, "=") || n > maxTagKey {
		return fmt.Errorf("expected the key of an EC2 tag, at most %d characters without =", maxTagKey)
	}
	return nil
}

func tag(dst *Tag) parser {
	return parser{func(s string) error {
		key, value, valued := strings.Cut(s, "=")
		if err := tagKey(key); err != nil {
			return err
		}
		if valued && (key == "" || value == "") || utf8.RuneCountInString(value) > maxTagValue {
			return fmt.Errorf("expected key or key=value of an EC2 tag, the value of at most %d characters", maxTagValue)
		}
		*dst = Tag{key, value}
		return nil
	}, Form{Kind: Text}}
}

func cidrs(dst *[]netip.Prefix) parser {
	return parser{func(s string) error {
		var out []netip.Prefix
		for item := range items(s) {
			p, err := netip.ParsePrefix(item)
			if err != nil {
				return fmt.Errorf("item %q: expected a CIDR such as 10.20.0.0/16", item)
			}
			if p.Masked() != p {
				return fmt.Errorf("item %q: bits are set outside the mask, expected %s", item, p.Masked())
			}
			out = append(out, p)
		}
		*dst = out
		return nil
	}, Form{Kind: List}}
}

// oneOf accepts certain words, in upper or lower case.
func oneOf(dst *string, allowed ...string) parser {
	word := checked(dst, among(allowed...))
	return parser{func(s string) error { return word.store(strings.ToLower(s)) }, Form{Kind: Word, Words: allowed}}
}

// among accepts certain words.
func among(allowed ...string) func(string) error {
	return func(s string) error {
		if !slices.Contains(allowed, s) {
			return fmt.Errorf("expected one of %s", strings.Join(allowed, ", "))
		}
		return nil
	}
}

func absolutePath(dst *string, optional bool) parser {
	return parser{func(s string) error {
		if s == "" && optional {
			*dst = ""
			return nil
		}
		if !filepath.IsAbs(s) {
			return errors.New("expected an absolute path")
		}
		*dst = filepath.Clean(s)
		return nil
	}, Form{Kind: Path}}
}

// socketPath accepts an absolute path that fits sockaddr_un (unix(7): 108 bytes with the terminating
// zero).
func socketPath(dst *string, optional bool) parser {
	path := absolutePath(dst, optional)
	return parser{func(s string) error {
		s = strings.TrimPrefix(s, "unix://")
		if len(s) > 107 {
			return fmt.Errorf("is %d bytes long, expected at most 107 for a unix socket", len(s))
		}
		return path.store(s)
	}, Form{Kind: Text}}
}

func fileName(s string) error {
	if s == "" || s == "." || s == ".." || strings.ContainsRune(s, '/') {
		return errors.New("expected a file name without a path")
	}
	return nil
}

func conflistName(s string) error {
	if !strings.HasSuffix(s, ".conflist") {
		return errors.New("expected a file name that ends in .conflist")
	}
	return fileName(s)
}

func httpURL(s string) error {
	u, err := url.Parse(s)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return errors.New("expected a URL such as https://ec2.eu-west-1.amazonaws.com")
	}
	return nil
}

// hostPort accepts host:port with a numeric port.
func hostPort(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return errors.New("expected host:port, such as :61678")
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("port %q: expected a number up to 65535", port)
	}
	return nil
}

// loopbackPort is like hostPort, for loopback addresses.
func loopbackPort(s string) error {
	if err := hostPort(s); err != nil {
		return err
	}
	host, _, _ := net.SplitHostPort(s)
	if a, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !a.IsLoopback()) {
		return fmt.Errorf("host %q is not a loopback address, and this interface must not be reachable from elsewhere: expected 127.0.0.1, [::1] or localhost", host)
	}
	return nil
}

// ownAddressPort is hostPort for one address of this machine.
func ownAddressPort(s string) error {
	if err := hostPort(s); err != nil {
		return err
	}
	host, _, _ := net.SplitHostPort(s)
	if a, err := netip.ParseAddr(host); err != nil || a.IsUnspecified() {
		return fmt.Errorf("host %q: expected an IP address of this machine, which others connect to", host)
	}
	return nil
}

// mtu accepts 0, or the MTUs of links and IPv4 (RFC 791; RFC 8200 for IPv6: 1280).
func mtu(dst *int) parser {
	return parser{func(s string) error {
		var v int
		if err := integer(&v, 65535, 0).store(s); err != nil || (v != 0 && v < 576) {
			return errors.New("expected 0 or a number of bytes from 576 to 65535")
		}
		*dst = v
		return nil
	}, Form{Kind: Integer, Low: 0, High: 65535}}
}

// ec2Limits accepts comma-separated Action=rate/burst.
func ec2Limits(dst *map[string]pace.Limit) parser {
	return parser{func(s string) error {
		var texts map[string]string
		if err := pairs(&texts).store(s); err != nil {
			return err
		}
		out := map[string]pace.Limit{}
		for action, text := range texts {
			if known := pace.Actions(); !slices.Contains(known, action) {
				return fmt.Errorf("%q is not an EC2 action that the operator calls: expected %s", action, strings.Join(known, ", "))
			}
			rate, burst, _ := strings.Cut(text, "/")
			r, rateErr := strconv.ParseFloat(rate, 64)
			b, burstErr := strconv.Atoi(burst)
			if rateErr != nil || burstErr != nil || !(r >= 0.01 && r <= 1e4) || b < 1 || b > 1e5 {
				return fmt.Errorf("item %q: expected calls per second, from 0.01 to 10000, a slash and a burst, from 1 to 100000, such as 5/50", action+"="+text)
			}
			out[action] = pace.Limit{Rate: r, Burst: b}
		}
		*dst = out
		return nil
	}, Form{Kind: Pairs}}
}
