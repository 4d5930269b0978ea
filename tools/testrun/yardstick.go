package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

// yardstick measures how many CPU seconds a fixed piece of work costs while tests run. The same tests cost more on a slower
// machine, and on one whose cores and caches other programs use; so does the yardstick.
type yardstick struct {
	mu      sync.Mutex // guards all below
	samples []float64  // CPU seconds
}

// yardstickInterval is the time between two samples. One costs about 30 ms of CPU time.
const yardstickInterval = 10 * time.Second

// watch takes samples until the context ends.
func (y *yardstick) watch(ctx context.Context) {
	w := newWork()
	tick := time.NewTicker(yardstickInterval)
	defer tick.Stop()
	for {
		cost, err := w.cost()
		if err != nil {
			return // without samples the limits are those of the table
		}
		y.mu.Lock()
		y.samples = append(y.samples, cost)
		y.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// cost returns the median in CPU seconds, or 0 without samples.
func (y *yardstick) cost() float64 {
	y.mu.Lock()
	defer y.mu.Unlock()
	if len(y.samples) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(y.samples))[len(y.samples)/2]
}

// work is what the yardstick does: computing, encoding, reading memory in a random order, and system calls, in about
// equal parts.
type work struct {
	next []uint32 // a cycle through all its indexes
	text []byte
}

func newWork() *work {
	const size = 8 << 20 // 32 MiB, more than a core's own caches
	w := &work{next: make([]uint32, size)}
	for i := range w.next { // x → 5x+1 mod 2^n is a single cycle (Hull and Dobell, 1962)
		w.next[i] = uint32(5*i+1) % size
	}
	words := map[string]string{}
	for i := range 100 {
		words[fmt.Sprint("name ", i)] = fmt.Sprint("value ", i)
	}
	w.text, _ = json.Marshal(words) // strings have no encoding that fails
	return w
}

// cost does the work once and returns its CPU seconds.
func (w *work) cost() (float64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := threadTime()
	if err != nil {
		return 0, err
	}
	sum := sha256.Sum256(w.text)
	for range 40_000 {
		sum = sha256.Sum256(sum[:])
	}
	for range 100 {
		var words map[string]string
		if err := json.Unmarshal(w.text, &words); err != nil {
			return 0, err
		}
	}
	at := uint32(sum[0])
	for range 40_000 {
		at = w.next[at]
	}
	for range 5000 + at%2 { // depends on the cycle, so that it is not optimized away
		if _, err := os.Stat("."); err != nil {
			return 0, err
		}
	}
	after, err := threadTime()
	return (after - before).Seconds(), err
}

// threadTime returns the CPU time of the current thread (getrusage(2), RUSAGE_THREAD).
func threadTime() (time.Duration, error) {
	const thread = 1
	var u syscall.Rusage
	if err := syscall.Getrusage(thread, &u); err != nil {
		return 0, fmt.Errorf("read the CPU time of a thread: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
