package daemon

import (
	"log/slog"
	"testing"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/podevents"
)

// What a warm ADD pays for that its pod may be told of it.
func BenchmarkFollowedADD(b *testing.B) {
	teller := podevents.New(podevents.Options{Node: "n", Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler), Counted: func(podevents.Result, int) {}})
	f := &Front{FrontOptions: FrontOptions{Tell: teller.Tell}}
	req := addOf("a", "/run/netns/a")
	b.ReportAllocs()
	for b.Loop() {
		f.follow(req).end(nil, nil)
	}
}
