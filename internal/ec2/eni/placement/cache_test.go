package placement

import (
	"context"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// Who asks chooses the question, a person's tags for example: answers that nobody
// may be given any more are not kept.
func TestOldAnswersAreDropped(t *testing.T) {
	now := clock.NewFake(time.Unix(1000, 0))
	m := newCache[int](now, time.Minute, 10*time.Second)
	ask := func(question string) {
		t.Helper()
		if _, err := m.ask(t.Context(), question, now.Now(), func(context.Context) (int, error) { return 1, nil }); err != nil {
			t.Fatal(err)
		}
	}
	ask("first")
	now.Advance(9 * time.Second)
	ask("second")
	if _, young := m.get("first", 10*time.Second); !young || len(m.last) != 2 {
		t.Errorf("after 9 seconds there are %v, want both", m.last)
	}
	now.Advance(time.Second)
	ask("third")
	if _, ok := m.last["first"]; ok || len(m.last) != 2 {
		t.Errorf("after 10 seconds there are %v, want the first no more", m.last)
	}
}
