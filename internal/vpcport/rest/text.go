package rest

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/berthnet/berth/internal/vpcport"
)

// Bounds of what is taken from an error.
const (
	MaxMessage    = 512 // runes
	MaxWord       = 64  // runes, of a type or an ID
	maxRetryAfter = 10 * time.Minute
)

// Shorten makes one line of a text, of so many runes at most.
func Shorten(text string, most int) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}

// RetryAfter is the header Retry-After in seconds; 0 without one. As a date nobody sends
// it here.
func RetryAfter(h http.Header) time.Duration {
	n, err := strconv.Atoi(strings.TrimSpace(h.Get("Retry-After")))
	if err != nil || n < 0 {
		return 0
	}
	return min(time.Duration(min(n, 1<<20))*time.Second, maxRetryAfter)
}

// Lie is the error for an answer that cannot be true.
func Lie(op, format string, args ...any) error {
	return &vpcport.Error{Class: vpcport.Bug, Op: op, Message: "the answer cannot be: " + Shorten(fmt.Sprintf(format, args...), MaxMessage)}
}

// Misuse is the error for a request that is not made, as it cannot be meant.
func Misuse(op, format string, args ...any) error {
	return &vpcport.Error{Class: vpcport.Bug, Op: op, Message: fmt.Sprintf(format, args...)}
}
