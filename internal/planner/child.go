package planner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A server simulates in a separate process, which has one thread of Go code, a low priority, limited memory and no
// credentials in its environment, and cannot crash the server. It ends with the server.

// childArgument is the argument with which a program that calls Child becomes a simulation.
const childArgument = "simulate-scenario"

const (
	// childMemory is the soft bound on the memory of a simulation's heap.
	childMemory = "256MiB"
	// childData bounds all memory of a simulation, in bytes. It ends with an error if it needs more: in a container, the
	// kernel's out-of-memory killer would end the server, too.
	childData = 512 << 20
	// maxResult bounds a child's output, in bytes.
	maxResult = 32 << 20
)

// childReply is the output of a child.
type childReply struct {
	Result *Result `json:"result,omitempty"`
	Failure
}

// Child simulates the scenario on standard input and ends the program, if it was started by InChild. Otherwise it does
// nothing. It is called at the beginning of main.
func Child() {
	if len(os.Args) != 2 || os.Args[1] != childArgument {
		return
	}
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 10)                                     // best effort
	_ = unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: childData, Max: childData}) // lower than any bound before, or that one stays
	if err := simulateFor(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func simulateFor(in io.Reader, out io.Writer) error {
	text, err := io.ReadAll(io.LimitReader(in, MaxSize+1))
	if err != nil {
		return err
	}
	var reply childReply
	s, err := Parse(text)
	if err == nil {
		reply.Result, err = Simulate(context.Background(), s)
	}
	if err != nil {
		reply.Error = err.Error()
		if p, ok := errors.AsType[Problems](err); ok {
			reply.Fields = p
		}
	}
	return json.NewEncoder(out).Encode(reply)
}

// InChild simulates a scenario in a child process of this program, whose main must call Child. The child ends with ctx.
func InChild(ctx context.Context, s Scenario) (*Result, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start a simulation: %w", err)
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	var out, trouble bounded
	out.left, trouble.left = maxResult, 4<<10
	cmd := exec.CommandContext(ctx, program, childArgument)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(text), &out, &trouble
	cmd.Env = []string{"GOMAXPROCS=1", "GOGC=400", "GOMEMLIMIT=" + childMemory}
	cmd.WaitDelay = time.Second
	err = runChild(cmd)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		first, _, _ := strings.Cut(trouble.String(), "\n")
		return nil, fmt.Errorf("the simulation failed: %w: %s", err, first)
	}
	var reply childReply
	if err := json.Unmarshal(out.Bytes(), &reply); err != nil {
		return nil, fmt.Errorf("read the result of a simulation: %w", err)
	}
	switch {
	case len(reply.Fields) > 0:
		return nil, Problems(reply.Fields)
	case reply.Error != "":
		return nil, errors.New(reply.Error)
	}
	return reply.Result, nil
}

// bounded is a buffer that keeps no more than left bytes.
type bounded struct {
	bytes.Buffer
	left int
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	keep := p[:min(len(p), b.left)]
	b.left -= len(keep)
	_, _ = b.Buffer.Write(keep) // never fails
	return len(p), nil
}
