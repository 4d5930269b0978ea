package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
)

// Unanswered is the error of a request that got no usable reply: Transient, or Bug where the reply
// is too large or of another type.
func Unanswered(op string, err error) *vpcport.Error {
	out := &vpcport.Error{Class: vpcport.Transient, Op: op, Err: err}
	if in, ok := errors.AsType[*url.Error](err); ok {
		out.Err = in.Err // without the URL, which may be long
	}
	wrongType := (*json.UnmarshalTypeError)(nil)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		out.Message = "no reply in time"
	case errors.Is(err, ErrReplyTooLarge), errors.As(err, &wrongType):
		out.Class = vpcport.Bug
	}
	return out
}

// Refused is the error of a reply with another status than that of success. Kind and message are
// what its body says; the class is the caller's to set.
func Refused(op string, status int, h http.Header, kind, message string) *vpcport.Error {
	out := &vpcport.Error{Op: op, Status: status, Type: Shorten(kind, MaxWord), Message: Shorten(message, MaxMessage), RetryAfter: RetryAfter(h)}
	if status >= 300 && status < 400 {
		out.Message = fmt.Sprintf("redirected to %q, which is not followed", Shorten(h.Get("Location"), MaxMessage))
	}
	if out.Message == "" {
		out.Message = http.StatusText(status)
	}
	return out
}

// Text is a body that is not in JSON, as a message; empty for a page in HTML.
func Text(body []byte) string {
	if text := string(body); !strings.Contains(text, "<") {
		return text
	}
	return ""
}

// CheckID refuses what cannot be the ID of a port, before it becomes part of a URL.
func CheckID(op, id string) error {
	switch {
	case id == "":
		return BadRequest(op, "a port without an ID")
	case !ValidID(id):
		id = Shorten(id, MaxWord)
		return &vpcport.Error{Class: vpcport.PortGone, Op: op, About: id, Message: "no port has the ID " + id}
	}
	return nil
}

// IP is an address of a port on the wire.
type IP struct {
	Subnet string `json:"subnet_id,omitempty"`
	IP     string `json:"ip_address,omitempty"`
}

// IPs are the addresses that a request asks for.
func IPs(addresses []vpcport.NewAddress) []IP {
	out := []IP{}
	for _, a := range addresses {
		ip := IP{Subnet: a.SubnetID}
		if a.IP.IsValid() {
			ip.IP = a.IP.String()
		}
		out = append(out, ip)
	}
	return out
}

// Addresses sets the MAC address and the addresses of a port, and refuses impossible ones.
func Addresses(op string, p *vpcport.Port, hw string, ips []IP) error {
	m, err := net.ParseMAC(hw)
	if err != nil || len(m) != 6 || m[0]&1 != 0 {
		return BadReply(op, "port %s has the MAC address %q", p.ID, hw)
	}
	p.MAC = mac.Addr(m)
	for _, f := range ips {
		ip, err := netip.ParseAddr(f.IP)
		if err != nil || ip.Zone() != "" {
			return BadReply(op, "port %s has the address %q", p.ID, f.IP)
		}
		p.Addresses = append(p.Addresses, vpcport.FixedIP{SubnetID: f.Subnet, IP: ip.Unmap()})
	}
	return nil
}

// Time reads a time, which is in UTC whether it says so or not; zero for anything else.
func Time(s string) time.Time {
	for _, form := range []string{time.RFC3339, "2006-01-02T15:04:05", time.DateTime} {
		if at, err := time.Parse(form, s); err == nil {
			return at.UTC()
		}
	}
	return time.Time{}
}

// Subnet is a subnet on the wire.
type Subnet struct {
	ID      string  `json:"id"`
	Name    string  `json:"name"`
	Network string  `json:"network_id"`
	CIDR    string  `json:"cidr"`
	Gateway *string `json:"gateway_ip"`
	Routes  []struct {
		Destination string `json:"destination"`
		NextHop     string `json:"nexthop"`
	} `json:"host_routes"`
}

// Read reads a subnet, and refuses an impossible one. Its CIDR is as it was sent, perhaps with bits
// of a host.
func (w Subnet) Read(op string) (vpcport.Subnet, error) {
	s := vpcport.Subnet{ID: w.ID, Name: w.Name}
	var err error
	if s.CIDR, err = netip.ParsePrefix(w.CIDR); err != nil || !ValidID(w.ID) {
		return s, BadReply(op, "subnet %q with the addresses %q", w.ID, w.CIDR)
	}
	if w.Gateway != nil && *w.Gateway != "" {
		if s.Gateway, err = netip.ParseAddr(*w.Gateway); err != nil || s.Gateway.Is4() != s.CIDR.Addr().Is4() {
			return s, BadReply(op, "subnet %s with the gateway %q", w.ID, *w.Gateway)
		}
	}
	for _, r := range w.Routes {
		to, err := netip.ParsePrefix(r.Destination)
		via, verr := netip.ParseAddr(strings.TrimSpace(r.NextHop))
		if err != nil || verr != nil || to.Addr().Is4() != via.Is4() {
			return s, BadReply(op, "subnet %s with the route %q by %q", w.ID, r.Destination, r.NextHop)
		}
		s.Routes = append(s.Routes, vpcport.Route{Destination: to.Masked(), Gateway: via})
	}
	return s, nil
}

// Maximum lengths of texts in errors.
const (
	MaxMessage    = 512 // runes
	MaxWord       = 64  // runes, of a type or an ID
	maxRetryAfter = 10 * time.Minute
)

// Shorten makes a text one line of at most so many runes.
func Shorten(text string, most int) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}

// RetryAfter is the header Retry-After in seconds; 0 without one. Dates are not supported.
func RetryAfter(h http.Header) time.Duration {
	n, err := strconv.Atoi(strings.TrimSpace(h.Get("Retry-After")))
	if err != nil || n < 0 {
		return 0
	}
	return min(time.Duration(min(n, 1<<20))*time.Second, maxRetryAfter)
}

// BadReply is the error for an impossible reply.
func BadReply(op, format string, args ...any) error {
	return &vpcport.Error{Class: vpcport.Bug, Op: op, Message: "impossible reply: " + Shorten(fmt.Sprintf(format, args...), MaxMessage)}
}

// BadRequest is the error for an invalid request, which is not sent.
func BadRequest(op, format string, args ...any) error {
	return &vpcport.Error{Class: vpcport.Bug, Op: op, Message: fmt.Sprintf(format, args...)}
}

// ValidID reports whether a text is a valid ID: up to 64 letters, digits, - and _, so that it is one
// element of a path.
func ValidID(id string) bool {
	for _, r := range id {
		switch {
		case r >= '0' && r <= '9', r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r == '-', r == '_':
		default:
			return false
		}
	}
	return id != "" && len(id) <= 64
}

// maxValues is the maximum size of the values in a URL, in bytes. Servers accept URLs of about 8,000
// bytes (eventlet.wsgi and Apache 8,190, Tomcat 8,192).
const maxValues = 5000

// Batches splits values into lists that fit into a URL. It returns one empty list for no values.
func Batches(name string, values []string) [][]string {
	values = slices.Compact(slices.Sorted(slices.Values(values)))
	out := [][]string{nil}
	size := 0
	for _, v := range values {
		n := len(url.QueryEscape(v)) + len(name) + len("&=")
		if size+n > maxValues && size > 0 {
			out, size = append(out, nil), 0
		}
		size += n
		out[len(out)-1] = append(out[len(out)-1], v)
	}
	return out
}

// CheckFilter refuses filters that would list all ports, and lists of more than most values. Servers
// ignore empty values.
func CheckFilter(op string, f vpcport.Filter, most int) error {
	for _, list := range [][]string{f.IDs, f.Devices} {
		if slices.Contains(list, "") {
			return BadRequest(op, "an empty value in a filter")
		}
	}
	for _, m := range f.MACs {
		if len(m) != 6 {
			return BadRequest(op, "%q in a filter is not a MAC address", m)
		}
	}
	if longest := max(len(f.IDs), len(f.Devices), len(f.MACs)); f.Empty() || longest > most {
		return BadRequest(op, "a filter with lists of %d values, expected one that is not empty, with %d at most", longest, most)
	}
	return nil
}
