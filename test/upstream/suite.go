package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// suite is the program of Kubernetes' end-to-end tests, and its runner.
type suite struct {
	e2e, ginkgo string // programs
	out         string // directory for reports and the log
	procs       int    // number of concurrent specs
	attempts    int    // maximum attempts per spec
	limit       time.Duration
	flags       []string // additional flags of the tests
}

// cluster is the cluster under test.
type cluster struct {
	kubeconfig string
	netns      string // network namespace from which the cluster is reached; empty for the runner's own
	nodes      int    // number of nodes; some specs need two
	// apply applies objects to a cluster that was raised; nil: it is somebody else's.
	apply func(context.Context, []*unstructured.Unstructured) error
}

// specs lists all specs. It needs no cluster.
func (s suite) specs(ctx context.Context) ([]spec, error) {
	dir, err := os.MkdirTemp("", "upstream-")
	if err != nil {
		return nil, fmt.Errorf("list the tests: %w", err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "specs.json")
	list := exec.CommandContext(ctx, s.e2e, "--ginkgo.dry-run", "--ginkgo.focus=.", "--provider=skeleton", "--kubeconfig=none",
		"--ginkgo.no-color", "--ginkgo.succinct", "--ginkgo.json-report="+file)
	if out, err := list.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("list the tests: %w\n%s", err, tail(out, 2000))
	}
	reports, err := readReportFile(file)
	if err != nil {
		return nil, err
	}
	var out []spec
	for _, r := range reports {
		if s, is := r.spec(); is {
			out = append(out, s)
		}
	}
	return out, nil
}

// version returns the Kubernetes version of the tests.
func (s suite) version(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, s.e2e, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("get the version of the tests: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// run runs specs and returns their reports. When canceled, it lets the tests clean up and write their reports.
func (s suite) run(ctx context.Context, c cluster, specs []spec, progress *progress) ([]specReport, error) {
	if err := os.MkdirAll(s.out, 0o755); err != nil {
		return nil, fmt.Errorf("create the directory for reports: %w", err)
	}
	defer every(time.Second, progress.tick)()

	const report = "report.json"
	if err := os.RemoveAll(filepath.Join(s.out, report)); err != nil {
		return nil, fmt.Errorf("remove an old report: %w", err)
	}
	log, err := os.Create(filepath.Join(s.out, "e2e.log"))
	if err != nil {
		return nil, fmt.Errorf("create the log of the tests: %w", err)
	}
	defer log.Close()
	ran := s.ginkgoRun(ctx, c, specs, report, io.MultiWriter(log, progress))
	reports, err := readReportFile(filepath.Join(s.out, report))
	if err != nil { // it also fails if a spec failed, but then there is a report
		return nil, errors.Join(fmt.Errorf("run the tests (log in %s): %w", log.Name(), ran), err)
	}
	return reports, nil
}

func (s suite) ginkgoRun(ctx context.Context, c cluster, specs []spec, report string, log io.Writer) error {
	args := []string{
		"run", "--no-color", "--procs=" + strconv.Itoa(s.procs), "--timeout=" + s.limit.String(), "--focus=" + focusOn(specs),
		"--flake-attempts=" + strconv.Itoa(s.attempts),
		"--output-dir=" + s.out, "--json-report=" + report, "--output-interceptor-mode=none", s.e2e, "--",
		"--kubeconfig=" + c.kubeconfig, "--provider=skeleton", "--num-nodes=" + strconv.Itoa(c.nodes), "--report-dir=" + s.out,
		"--minStartupPods=0", "--allowed-not-ready-nodes=0", "--disable-log-dump", "--dump-logs-on-failure=false",
	}
	run := exec.CommandContext(ctx, s.ginkgo, append(args, s.flags...)...)
	if c.netns != "" {
		run = exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + c.netns, "--", s.ginkgo}, run.Args[1:]...)...)
	}
	tmp, err := os.MkdirTemp("", "upstream-")
	if err != nil {
		return fmt.Errorf("create a directory for files of the tests: %w", err)
	}
	defer os.RemoveAll(tmp)
	run.Env = append(os.Environ(), "TMPDIR="+tmp)
	run.Stdout, run.Stderr = log, log
	run.Dir = s.out
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	run.Cancel = func() error { return syscall.Kill(-run.Process.Pid, syscall.SIGINT) }
	run.WaitDelay = time.Minute
	if err := run.Start(); err != nil {
		return fmt.Errorf("start %s: %w", run.Path, err)
	}
	err = run.Wait()
	// End processes left behind if it was killed.
	_ = syscall.Kill(-run.Process.Pid, syscall.SIGKILL)
	return err
}

// focusOn returns a pattern that matches exactly these specs. Ginkgo matches it with the suite's description and the
// spec's name.
func focusOn(specs []spec) string {
	var names []string
	for _, s := range specs {
		names = append(names, regexp.QuoteMeta(s.name))
	}
	return `(^|\s)(` + strings.Join(names, "|") + `)$`
}

// every calls f periodically until the returned function is called.
func every(interval time.Duration, f func(time.Time)) (stop func()) {
	ticker, done := time.NewTicker(interval), make(chan struct{})
	go func() {
		for {
			select {
			case now := <-ticker.C:
				f(now)
			case <-done:
				return
			}
		}
	}()
	return func() { ticker.Stop(); close(done) }
}

func readReportFile(file string) ([]specReport, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read the report of the tests: %w", err)
	}
	defer f.Close()
	return readReport(f)
}

func tail(out []byte, n int) []byte {
	out = bytes.TrimSpace(out)
	return out[max(0, len(out)-n):]
}

// progress receives Ginkgo's output, and prints failures and progress. Ginkgo prints a dot for each completed spec,
// "S" for skipped ones, and for a failure a line "• [FAILED] [12.3 seconds]" followed by the name. The final results
// come from Ginkgo's report.
type progress struct {
	out     io.Writer
	total   int
	started time.Time

	mu          sync.Mutex // guards all below: Ginkgo prints while the ticker ticks
	line        []byte     // the incomplete last line
	failure     bool       // the previous line reported a failed spec
	ended, bad  int
	lastPrinted time.Time
}

// chatty is the interval between progress lines.
const chatty = 30 * time.Second

func newProgress(out io.Writer, total int) *progress {
	now := time.Now()
	return &progress{out: out, total: total, started: now, lastPrinted: now}
}

// Write processes Ginkgo's output.
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

// whole processes a complete line.
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

// tick prints the progress if nothing was printed for a while.
func (p *progress) tick(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.lastPrinted) >= chatty {
		p.lastPrinted = now
		fmt.Fprintf(p.out, "  %d of %d, %d failed, %s\n", p.ended, p.total, p.bad, now.Sub(p.started).Round(time.Second))
	}
}
