package operator

import (
	"context"
	"log/slog"
)

// afterEnd is controller-runtime's message for whatever a part reports after
// the program was asked to end. The leader election reports a lost Lease then,
// which is one that it released.
const afterEnd = "error received after stop sequence was engaged"

// orderly is a handler for controller-runtime's log: an end that was asked for
// is no error.
type orderly struct {
	slog.Handler
	running context.Context // ends when the program is asked to end
}

// Handle implements slog.Handler.
func (h orderly) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == afterEnd && h.running.Err() != nil {
		if r.Level = slog.LevelDebug; !h.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h orderly) WithAttrs(attrs []slog.Attr) slog.Handler {
	return orderly{h.Handler.WithAttrs(attrs), h.running}
}

// WithGroup implements slog.Handler.
func (h orderly) WithGroup(name string) slog.Handler {
	return orderly{h.Handler.WithGroup(name), h.running}
}
