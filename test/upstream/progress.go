package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// progress tells of the specs as they end. The tests post to it, each of their
// processes for itself (k8s.io/kubernetes/test/e2e/reporters, ProgressReporter).
type progress struct {
	out     io.Writer
	total   int
	started time.Time

	mu             sync.Mutex // guards the rest: several processes post
	passed, failed int
	lastPrinted    time.Time
}

// chatty is the longest time that passes without a line while specs pass.
const chatty = 15 * time.Second

func newProgress(out io.Writer, total int) *progress {
	return &progress{out: out, total: total, started: time.Now(), lastPrinted: time.Now()}
}

func (p *progress) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var update struct {
		Message string `json:"msg"`
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&update); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.told(update.Message, time.Now())
}

// told takes a message of the tests: "PASSED NAME", "FAILED NAME", or another.
func (p *progress) told(message string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	verdict, name, _ := strings.Cut(message, " ")
	switch verdict {
	case "PASSED":
		p.passed++
		if now.Sub(p.lastPrinted) < chatty {
			return
		}
	case "FAILED":
		p.failed++
		fmt.Fprintf(p.out, "  FAILED %s\n", name)
	default:
		return
	}
	p.lastPrinted = now
	fmt.Fprintf(p.out, "  %s\n", p.line(now))
}

// tick prints how far it is when nothing was printed for a while.
func (p *progress) tick(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.lastPrinted) >= 2*chatty {
		p.lastPrinted = now
		fmt.Fprintf(p.out, "  %s\n", p.line(now))
	}
}

func (p *progress) line(now time.Time) string {
	return fmt.Sprintf("%d of %d, %d failed, %s", p.passed+p.failed, p.total, p.failed, now.Sub(p.started).Round(time.Second))
}
