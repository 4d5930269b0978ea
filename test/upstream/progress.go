package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// progress is what Ginkgo prints to; it tells of failures as they come and how far
// the tests are. Ginkgo prints a dot for each spec that ended, "S" for those that
// were not to be run, and of a failure a line "• [FAILED] [12.3 seconds]" with the
// name below. What counts in the end is its report.
type progress struct {
	out     io.Writer
	total   int
	started time.Time

	mu          sync.Mutex // guards the rest: Ginkgo prints while the ticker ticks
	line        []byte     // the last one, as far as it has come
	failure     bool       // the line before said that a spec failed
	ended, bad  int
	lastPrinted time.Time
}

// chatty is the time between two words on how far the tests are.
const chatty = 30 * time.Second

func newProgress(out io.Writer, total int) *progress {
	now := time.Now()
	return &progress{out: out, total: total, started: now, lastPrinted: now}
}

// Write takes what Ginkgo prints.
func (p *progress) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended += bytes.Count(data, []byte(dot))
	p.line = append(p.line, data...)
	for {
		i := bytes.IndexByte(p.line, '\n')
		if i < 0 {
			return len(data), nil
		}
		p.whole(strings.TrimSpace(string(p.line[:i])))
		p.line = p.line[i+1:]
	}
}

const dot = "•"

// whole takes a whole line.
func (p *progress) whole(line string) {
	if p.failure && line != "" {
		p.failure = false
		fmt.Fprintf(p.out, "  FAILED %s\n", line)
		return
	}
	for _, state := range []string{"[FAILED]", "[PANICKED!]", "[TIMEDOUT]"} {
		if strings.HasPrefix(line[max(0, strings.LastIndex(line, dot)):], dot+" "+state) {
			p.failure = true
			p.bad++
		}
	}
}

// tick prints how far it is when that was not told for a while.
func (p *progress) tick(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.lastPrinted) >= chatty {
		p.lastPrinted = now
		fmt.Fprintf(p.out, "  %d of %d, %d failed, %s\n", p.ended, p.total, p.bad, now.Sub(p.started).Round(time.Second))
	}
}
