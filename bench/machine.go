package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Size of the virtual machine in which groups are measured that need its kernel.
const (
	machineCPUs   = 2
	machineMemory = 4096 // MiB
)

// inMachine measures groups in one virtual machine: this program runs there, and its results
// come back by a file in a folder that the machine shares.
func (b *bench) inMachine(ctx context.Context, chosen []group) (results []Result, err error) {
	var names []string
	for _, g := range chosen {
		names = append(names, g.name)
	}
	say("%s: in a virtual machine", strings.Join(names, ", "))
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the results of a virtual machine: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the bench's own program: %w", err)
	}
	programs, err := filepath.Abs(b.options.binDir)
	if err != nil {
		return nil, err
	}
	out := filepath.Join(dir, "results.json")
	args := []string{"--share", dir, "--cpus", strconv.Itoa(machineCPUs), "--memory", strconv.Itoa(machineMemory)}
	if slices.Contains(needed(chosen), controlPlane) {
		args = append(args, "--control-plane")
	}
	args = append(args, self, "-inside", "-only", strings.Join(names, ","), "-bin-dir", programs, "-rounds", strconv.Itoa(b.options.rounds), "-out", out)
	c := exec.CommandContext(ctx, b.options.machine, args...)
	c.Stdout, c.Stderr = os.Stderr, os.Stderr
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("measure %s in a virtual machine: %w", strings.Join(names, ", "), err)
	}
	return read(out)
}

// split parts groups into those that are measured here and those for a virtual machine.
func (b *bench) split(chosen []group) (here, machine []group) {
	for _, g := range chosen {
		if !b.options.inside && slices.Contains(parts[g.needs], virtualMachine) {
			machine = append(machine, g)
		} else {
			here = append(here, g)
		}
	}
	return here, machine
}
