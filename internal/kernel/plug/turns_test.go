package plug

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
)

func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turns Turns
		done, err := turns.Take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if other, err := turns.Take(t.Context(), "b"); err != nil {
			t.Fatal(err)
		} else {
			other()
		}
		ctx, cancel := context.WithCancel(t.Context())
		late := make(chan error, 1)
		go func() { _, err := turns.Take(ctx, "a"); late <- err }()
		synctest.Wait()
		cancel()
		if err := <-late; !errors.Is(err, context.Canceled) {
			t.Errorf("Take() with a cancelled context: error = %v, want context.Canceled", err)
		}
		// Only one caller has the turn at a time.
		busy, most := 0, 0
		var group sync.WaitGroup
		for range 10 {
			group.Go(func() {
				done, err := turns.Take(t.Context(), "a")
				if err != nil {
					t.Error(err)
					return
				}
				busy++
				most = max(most, busy)
				busy--
				done()
			})
		}
		synctest.Wait()
		done()
		group.Wait()
		if most != 1 || len(turns.busy) != 0 {
			t.Errorf("%d concurrent turns and %d remaining names, want 1 and 0", most, len(turns.busy))
		}
	})
}
