package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/proc"
)

// trouble is a fault in a soak. It reverts the fault itself, except for ended programs, which troublemaker.restart
// starts again.
type trouble struct {
	kills event // counted kill; empty if nothing is killed
	make  func(ctx context.Context, m *troublemaker)
}

// troublemaker injects the troubles of a plan until stop is closed.
type troublemaker struct {
	*round
	plan *plan
	lab  *lab.Lab
	dice *rand.Rand // for the details of a trouble
	stop <-chan struct{}

	armed  map[*proc.Process]bool // armed for the current run
	missed map[event]int          // intended kills of programs that had already ended

	policies *policyUsers // who have to know of troubles; nil where there are none
}

// restartDelay is how soon a program that died at a failpoint is restarted. Operations may need it, and no trouble is
// due before they continue.
const restartDelay = 100 * time.Millisecond

// run injects each trouble after a number of operations, so that the speed of the machine does not matter.
func (m *troublemaker) run(ctx context.Context) {
	end := m.policies.make()
	m.makeHasty()
	end()
	for at, t := m.plan.next(); m.reach(ctx, at); at, t = m.plan.next() {
		m.roster.Lock()
		end := m.policies.make()
		t.make(ctx, m)
		m.restart(true)
		end()
		m.roster.Unlock()
	}
	end = m.policies.make()
	m.restart(false)
	end()
}

// reach waits for a number of operations in the round, and returns false if there are fewer.
func (m *troublemaker) reach(ctx context.Context, operations int) bool {
	for int(m.operations.Load()) < operations {
		select {
		case <-m.stop:
			return int(m.operations.Load()) >= operations
		case <-ctx.Done():
			return false
		case <-time.After(restartDelay): // paces the troubles, does not wait for a condition
		}
		m.roster.Lock()
		m.restart(true)
		m.roster.Unlock()
	}
	return ctx.Err() == nil
}

// pause waits for a random time: operations may not continue before it ends.
func (m *troublemaker) pause(ctx context.Context, most time.Duration) {
	select {
	case <-m.stop:
	case <-ctx.Done():
	case <-time.After(time.Duration(m.dice.Int64N(int64(most)))): // paces the troubles, does not wait for a condition
	}
}

func (m *troublemaker) node() *node.Node { return m.lab.Nodes()[m.dice.IntN(len(m.lab.Nodes()))] }

func (m *troublemaker) someOperator() *lab.Operator {
	return m.lab.Operators()[m.dice.IntN(len(m.lab.Operators()))]
}

var killDaemon = trouble{kills: daemonKill, make: func(_ context.Context, m *troublemaker) {
	p := m.node().Process
	m.end(daemonKill, p, p.Kill())
}}

var stopDaemon = trouble{make: func(_ context.Context, m *troublemaker) {
	p := m.node().Process
	m.terminate(p)
	m.end(daemonStop, p, nil)
}}

var killOperator = trouble{kills: operatorKill, make: func(_ context.Context, m *troublemaker) {
	p := m.someOperator().Process
	m.end(operatorKill, p, p.Kill())
}}

func (m *troublemaker) model() *portcloud.Model { return m.lab.Ports.(*portcloud.Model) }

// neutronFails makes Neutron fail a few calls, before or after they take effect.
var neutronFails = trouble{make: func(_ context.Context, m *troublemaker) {
	faults := []neutronfake.Fault{
		{Path: "/v2.0/*", Status: 503, Message: "busy"},
		{Path: "/v2.0/*", HangUp: true},
		{Path: "/v2.0/*", HangUp: true, After: true},
		{Path: "/v2.0/ports*", Method: "POST", Status: 500, Type: "HTTPInternalServerError", Message: "Request Failed: internal server error while processing your request.", After: true},
		{Path: "/v2.0/*", Status: 429, Message: "slow down", RetryAfter: 1},
		{Path: "/v2.0/ports/*", Method: "PUT", Status: 504, Message: "timeout", After: true},
		{Path: "/v2.0/ports/*", Method: "DELETE", HangUp: true, After: true},
		{Path: "/v2.0/ports", Method: "POST", Status: 409, Type: "IpAddressGenerationFailure", Message: "No more IP addresses available on network 0."},
		{Path: "/v3/auth/tokens", Status: 503, Message: "busy"},
	}
	f := faults[m.dice.IntN(len(faults))]
	f.Times = 1 + m.dice.IntN(3)
	m.model().Neutron.HTTP.Inject(f)
	m.tally.count(providerFault, 1)
}}

// neutronAway makes Neutron refuse every call for a while.
var neutronAway = trouble{make: func(ctx context.Context, m *troublemaker) {
	m.tally.count(providerFault, 1)
	m.model().Neutron.HTTP.Inject(neutronfake.Fault{Status: 503, Message: "away"})
	m.pause(ctx, 2*time.Second)
	m.model().Neutron.HTTP.ClearFaults()
}}

// tokensRevoked makes Keystone revoke all tokens.
var tokensRevoked = trouble{make: func(_ context.Context, m *troublemaker) {
	m.tally.count(providerFault, 1)
	m.model().Neutron.Keystone.RevokeTokens()
}}

// overQuota sets the quota to the current number of ports for a while.
var overQuota = trouble{make: func(ctx context.Context, m *troublemaker) {
	m.tally.count(providerFault, 1)
	cloud := m.model().Neutron
	cloud.SetQuota(len(cloud.Ports()))
	m.pause(ctx, 2*time.Second)
	cloud.SetQuota(-1)
}}

// hostAway makes Neutron bind no port to a host for a while, as if its agent were down.
var hostAway = trouble{make: func(ctx context.Context, m *troublemaker) {
	m.tally.count(providerFault, 1)
	name := m.node().Name
	m.model().Neutron.RemoveHost(name)
	m.pause(ctx, 2*time.Second)
	m.model().Neutron.AddHost(name, neutronfake.Host{})
	setHybrid(m.lab, name)
}}

// portChanged deletes or changes one of Berth's ports behind its back.
var portChanged = trouble{make: func(_ context.Context, m *troublemaker) {
	cloud := m.model().Neutron
	ports := slices.DeleteFunc(cloud.Ports(), func(p neutronfake.Port) bool { return p.Owner == "" })
	if len(ports) == 0 {
		return
	}
	m.tally.count(portEdit, 1)
	p := ports[m.dice.IntN(len(ports))]
	elsewhere := m.node().Name
	switch m.dice.IntN(4) {
	case 0:
		cloud.Edit(p.ID, func(p *neutronfake.Port) { p.Device = "" })
	case 1:
		cloud.Edit(p.ID, func(p *neutronfake.Port) { p.Host = elsewhere })
	default:
		// A port deleted by a user stays deleted, and its address may go to the next pod unless pods request it.
		if !strings.HasPrefix(p.Name, "given-") && askedFor(p) {
			cloud.Remove(p.ID)
		}
	}
}}

// askedFor reports whether pods request all addresses of a port.
func askedFor(p neutronfake.Port) bool {
	return !slices.ContainsFunc(p.FixedIPs, func(f neutronfake.FixedIP) bool { return f.IP.As4()[3] < firstFixed })
}

// restartDatabase kills and restarts the OVSDB of a node.
var restartDatabase = trouble{kills: ovsdbKill, make: func(ctx context.Context, m *troublemaker) {
	m.tally.count(ovsdbKill, 1)
	m.ok("restart OVSDB", m.model().OVN.Switch(m.node().Name).RestartDatabase(ctx))
}}

// end records the kill of a program, unless it had already ended.
func (m *troublemaker) end(e event, p *proc.Process, err error) {
	m.ok(string(e), err)
	if p.EndedByItself() {
		m.missed[e]++
		return
	}
	m.tally.count(e, 1)
}

// haltOperator halts an operator, sometimes for longer than its Lease, so that it continues as a former leader. It
// may end meanwhile, at its failpoint or because it lost its Lease.
var haltOperator = trouble{make: func(ctx context.Context, m *troublemaker) {
	o := m.someOperator()
	unlessGone := func(err error) {
		if !errors.Is(err, os.ErrProcessDone) && o.Running() {
			m.ok("halt", err)
		}
	}
	if err := o.Pause(); err != nil {
		unlessGone(err)
		return
	}
	m.tally.count(operatorHalt, 1)
	m.pause(ctx, 6*time.Second)
	unlessGone(o.Resume())
}}

var killAPIServer = trouble{kills: apiServerKill, make: func(ctx context.Context, m *troublemaker) {
	m.tally.count(apiServerKill, 1)
	m.ok("kill", m.lab.Kube.KillAPIServer())
	m.pause(ctx, 2*time.Second)
	const what = "start of the API server"
	m.ok(what, m.timed(what, "", func() error { return m.lab.Kube.StartAPIServer(ctx) }))
}}

var ec2Away = trouble{make: func(ctx context.Context, m *troublemaker) {
	m.tally.count(ec2Outage, 1)
	m.lab.Cloud.API.Outage(true)
	m.pause(ctx, 2*time.Second)
	m.lab.Cloud.API.Outage(false)
}}

// makeHasty restarts operators with short Leases: the long ones are for starting a lab on a busy machine.
func (m *troublemaker) makeHasty() {
	for _, p := range m.mode.programs(m.lab) {
		if len(p.hasty) > 0 {
			m.terminate(p.Process)
			m.ok("start", p.Start(p.hasty...))
		}
	}
}

// restart starts ended programs, half of them with a failpoint that kills them. After the troubles it restarts all
// without failpoints.
func (m *troublemaker) restart(armed bool) {
	for _, p := range m.mode.programs(m.lab) {
		if !armed {
			m.terminate(p.Process)
		}
		if p.Running() {
			continue
		}
		m.ended(p)
		var env map[string]string
		var more []string
		if armed {
			env, more = m.arms(p.points), p.hasty
		}
		p.arm(env)
		m.armed[p.Process] = env != nil
		m.ok("start", p.Start(more...))
	}
}

// ended records why a program ended that was not killed. Only a failpoint may end a program by a signal, and only
// operators end by themselves, without their Lease.
func (m *troublemaker) ended(p program) {
	signaled := p.ExitCode() < 0
	switch {
	case !p.EndedByItself():
	case signaled && m.armed[p.Process]:
		m.tally.count(p.died, 1)
	case signaled || p.died == daemonDeath:
		m.violate(other, fmt.Sprintf("%s ended unexpectedly with exit status %d (-1 means a signal)\n%s", p, p.ExitCode(), p.LogTail(15)))
	default:
		m.tally.count(endedByItself, 1)
	}
}

// arms returns the environment that kills a program at the first of three failpoints that it reaches, or at none.
func (m *troublemaker) arms(points []string) map[string]string {
	if m.dice.IntN(2) == 0 {
		return nil
	}
	var list []string
	for range 3 {
		list = append(list, fmt.Sprintf("%s=kill@%d", points[m.dice.IntN(len(points))], 1+m.dice.IntN(3)))
	}
	return map[string]string{failpoint.EnvVar: strings.Join(list, ",")}
}
