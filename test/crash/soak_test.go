package crash

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/test/harness"
)

// TestSoak adds and removes pods at random on three nodes while daemons and two operators are killed at random
// moments and at failpoints, leaders are halted, the API server is killed, and EC2 fails calls or is unreachable.
// Duplicate use of an address is detected immediately. At the end all views must agree, and nodes must hold only what
// the policy keeps. By default it is one short round of two modes, which take turns (harness.Rotate); with -soak.time
// or -soak.ops it runs rounds until these limits, regardless of violations.
func TestSoak(t *testing.T) {
	t.Parallel()
	o := soakFlags
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	s := &soak{options: o, ctx: ctx, began: time.Now()}
	fmt.Printf("soak: seed %d\n", o.seed)
	done := make(chan struct{})
	t.Cleanup(func() { // after all modes have ended
		close(done)
		fmt.Print("\n" + s.save(t))
		if ctx.Err() != nil {
			t.Error("the soak was interrupted")
		}
		stop()
	})
	for i, m := range slices.Concat(modes, furtherSoaks) {
		if further := i >= len(modes); !o.chosen(m.title(), further) {
			continue
		}
		t.Run(string(m.title()), func(t *testing.T) {
			if !s.long() && s.mode == "" {
				harness.Rotate(t, m.slices...)
			}
			if m.name == lab.PortMode || m.options.VPCPorts && m.options.PortCloud == nil {
				harness.CanRun(t, lab.PortMode)
			}
			tally := newTally(m.title())
			s.tallies = append(s.tallies, tally)
			t.Parallel() // all tallies exist before the rounds start
			harness.Slot(t)
			s.rounds(t, m, tally)
		})
	}
	go s.watch(done)
}

type soak struct {
	options
	began   time.Time
	ctx     context.Context // ends when the soak is interrupted
	tallies []*tally        // one per mode

	saving sync.Mutex // held while the report is written
}

// rounds runs the rounds of a mode until a limit, or until several in a row completed no operation.
func (s *soak) rounds(t *testing.T, m mode, tally *tally) {
	var end time.Time
	if s.time > 0 {
		end = s.began.Add(s.time)
	}
	whole := m.ops
	if s.long() {
		whole *= longer
	}
	idle := 0 // latest rounds in a row without an operation
	more := func() bool {
		return s.ctx.Err() == nil && idle < idleRounds && (s.ops == 0 || tally.made() < s.ops) && (end.IsZero() || time.Now().Before(end))
	}
	for n := 1; more() && (n == 1 || s.long()); n++ {
		made := tally.made()
		r := &round{
			place: place{m.title(), n, roundSeed(s.seed, n), s.roundOps(whole, made)},
			mode:  m, tally: tally, end: end, soak: s.ctx, hot: s.long(),
		}
		if s.report != "" && tally.of(failedRound) < keptRounds {
			r.keepLogs = filepath.Join(filepath.Dir(s.report), "soak-logs", fmt.Sprintf("%s-%d", m.title(), r.seed))
		}
		fmt.Printf("%8v  %v: begins, %d operations\n", s.elapsed(), r.place, r.ops)
		r.make()
		if idle++; tally.made() > made {
			idle = 0
		}
		if idle == idleRounds {
			r.violate(other, fmt.Sprintf("giving up the mode: no operation in %d rounds in a row", idle))
		}
		for _, text := range r.violations() {
			if s.long() {
				t.Fail() // the violations are in the report, not in memory
			} else {
				t.Error(text)
			}
		}
		s.save(t)
	}
	if tally.made() == 0 {
		t.Error("no operation succeeded")
	}
}

// idleRounds is the number of rounds in a row without an operation after which a mode is given up.
const idleRounds = 3

// longer is the factor between the operations of a long and a short round.
const longer = 10

// keptRounds is the number of failed rounds of a mode whose logs are kept.
const keptRounds = 3

func (s *soak) elapsed() time.Duration { return time.Since(s.began).Round(time.Second) }

// watch prints the progress once a minute.
func (s *soak) watch(done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-time.After(time.Minute): // print interval
			fmt.Print(progress(s.elapsed(), s.tallies))
		}
	}
}

// save writes the current report, and returns it.
func (s *soak) save(t *testing.T) string {
	s.saving.Lock()
	defer s.saving.Unlock()
	text := report(s.options, s.elapsed(), s.ctx.Err() != nil, s.tallies)
	if s.report != "" {
		if err := os.WriteFile(s.report, []byte(text), 0o644); err != nil {
			t.Error(err)
		}
	}
	return text
}
