//go:build !linux

package planner

import "os/exec"

// runChild runs a program. If this one is killed, the child ends with its simulation.
func runChild(cmd *exec.Cmd) error { return cmd.Run() }
