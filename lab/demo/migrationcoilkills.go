package demo

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/lab/replay"
	"github.com/berthnet/berth/lab/run/faults"
	"github.com/berthnet/berth/lab/run/kube"
)

// ofBerthd kills berthd. No program of Coil runs in a recording.
const ofBerthd = "berthd"

// away does something while the API server is killed, and starts it again. One of another machine keeps running.
func (m *coilMigration) away(ctx context.Context, do func()) {
	if os.Getenv(kube.RemoteDir) != "" {
		do()
		return
	}
	check(m.control.KillAPIServer())
	m.faults.Did(faults.APIServer)
	err := attempt(do)
	check(errors.Join(err, m.control.StartAPIServer(ctx)))
}

// during does something, or does it while the API server is killed, as a fault says.
func (m *coilMigration) during(ctx context.Context, fault string, do func()) {
	if fault == faults.APIServer {
		m.away(ctx, do)
		return
	}
	do()
}

// troubled runs a step of the tool to its end, after the tool was killed at random in it, also while the API server was away.
func (m *coilMigration) troubled(ctx context.Context, args ...string) (r migrate.Report) {
	m.faults.Reset()
	for _, fault := range m.faults.Shuffled(faults.Tool, faults.Tool, faults.APIServer) {
		m.during(ctx, fault, func() {
			m.killed(ctx, m.drawn(args...), args...)
			m.flow(ctx, "after the tool was killed")
		})
	}
	r = m.report(ctx, args...)
	if missing := m.faults.Missing(faults.Tool); len(missing) > 0 {
		fail("%s was not killed in %s", missing[0], strings.Join(args, " "))
	}
	return r
}

// drawn returns a kill of a step of the tool at a random failpoint.
func (m *coilMigration) drawn(args ...string) (spec string) {
	return replay.CoilKills[strings.Join(args, " ")].Draw(m.faults.Rand, 3)
}

// killed runs a step of the tool that is killed at a failpoint, unless the step has passed it.
func (m *coilMigration) killed(ctx context.Context, spec string, args ...string) {
	var r migrate.Report
	err := m.tool(ctx, &r, spec, args...)
	if err != nil && !strings.Contains(err.Error(), "killed") {
		fail("%s with %s: %w", strings.Join(args, " "), spec, err)
	}
	if err != nil {
		m.faults.Did(faults.Tool)
	}
}

// start starts berthd, which is killed before while it starts, also while the API server is away, and waits until it is ready.
func (m *coilMigration) start(ctx context.Context) {
	for _, fault := range m.faults.Shuffled(ofBerthd, faults.APIServer) {
		m.during(ctx, fault, func() {
			check(m.Start())
			<-time.After(time.Duration(m.faults.IntN(500)) * time.Millisecond) // at a random moment of its start
			check(m.Kill())
			m.faults.Did(ofBerthd)
			m.flow(ctx, "after berthd was killed while it started")
		})
	}
	check(errors.Join(m.Start(), m.WaitReady(ctx)))
}
