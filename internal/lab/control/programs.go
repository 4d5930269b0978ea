package control

import (
	"context"

	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/run/proc"
)

// program is what kill and start act on.
type program struct {
	what    string // to people
	running func() bool
	kill    func() error
	start   func(context.Context) error
	ready   func(context.Context) error // returns when it is
}

// apiServer is what the control plane's API server is called here.
const apiServer = "kube-apiserver"

// program finds one: a node's berthd by the node's name, an operator or the API
// server by its own.
func (s *server) program(name string) (program, error) {
	if name == apiServer && s.lab.Kube != nil {
		return apiServerOf(s.lab.Kube), nil
	}
	if o, err := s.lab.Operator(name); err == nil {
		return process(name, o.Process, o.WaitReady), nil
	}
	n, err := s.lab.Node(name)
	if err != nil {
		return program{}, err
	}
	return process("berthd of "+name, n.Process, n.WaitReady), nil
}

func process(what string, p *proc.Process, ready func(context.Context) error) program {
	return program{
		what: what, running: p.Running, kill: p.Kill, ready: ready,
		start: func(context.Context) error { return p.Start() },
	}
}

func apiServerOf(c *lab.Cluster) program {
	return program{
		what:    apiServer,
		running: func() bool { return c.PIDs()[apiServer] != 0 },
		kill:    c.KillAPIServer, start: c.StartAPIServer,
		ready: func(context.Context) error { return nil }, // started is ready
	}
}
