package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/lab/control"
)

func contextFor(cmd *cobra.Command, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cmd.Context(), timeout)
}

func absDir(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("--dir: %w", err)
	}
	return abs, nil
}

// absolute makes paths independent of the directory that the command runs in.
func (f *labFlags) absolute() error {
	paths := []*string{&f.dir, &f.specFile, &f.binDir, &f.containerd, &f.helm}
	for i := range f.images {
		paths = append(paths, &f.images[i])
	}
	for _, p := range paths {
		if *p == "" {
			continue
		}
		var err error
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	return nil
}

// labCommand gives a command the flag --dir, and run a client of the lab there.
func labCommand(c *cobra.Command, run func(cmd *cobra.Command, lab *control.Client, args []string) error) *cobra.Command {
	var dir string
	dirFlag(c, &dir)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		dir, err := absDir(dir)
		if err != nil {
			return err
		}
		return run(cmd, control.Dial(dir), args)
	}
	return c
}
