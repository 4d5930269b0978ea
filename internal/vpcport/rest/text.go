package rest

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/berthnet/berth/internal/vpcport"
)

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
