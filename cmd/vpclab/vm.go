package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/lab/vm"
	"github.com/berthnet/berth/lab/vm/guestapi"
)

// vmFlags are the flags of `vpclab vm`.
type vmFlags struct {
	machine vm.Machine
	prepare bool
	api     bool
	verbose bool
}

func newVM() *cobra.Command {
	var f vmFlags
	c := &cobra.Command{
		Use:   "vm [--share DIR] -- COMMAND [ARG...]",
		Short: "Run a command in a virtual machine with Debian's kernel and this machine's files",
		Long: `Run a command as root in a virtual machine (QEMU without KVM) with Debian's stock
kernel, which has Foo-over-UDP. Its files are those of this machine. Changes by the command
are lost with the machine, except in folders of --share. Its output is shown as it
is printed, and vpclab exits with its exit code.

A machine that locks up is started once more, and the command with it: files that it wrote to
folders of --share and its earlier output are kept.`,
		Example: `  vpclab vm -- uname -r
  vpclab vm --share "$PWD/dist" -- sh -c 'nft list ruleset >dist/ruleset'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 && !f.prepare {
				return errors.New("want a command, such as vpclab vm -- uname -r")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	flags := c.Flags()
	flags.SetInterspersed(false) // flags after the command belong to the command
	flags.IntVar(&f.machine.CPUs, "cpus", vm.DefaultCPUs, "processors of the machine")
	flags.IntVar(&f.machine.Memory, "memory", vm.DefaultMemory, "memory of the machine in MiB; up to three quarters of it hold files that the command writes")
	flags.StringArrayVar(&f.machine.Shared, "share", nil, "folder that the command can write to, under the same path (repeatable)")
	flags.BoolVar(&f.api, "control-plane", false, "start a Kubernetes control plane with Berth's kinds on this machine, from the programs in $KUBEBUILDER_ASSETS; the command reaches it through $KUBECONFIG")
	flags.BoolVar(&f.prepare, "prepare", false, "only prepare the machine's kernel, and print its folder, for "+vm.Environment)
	flags.BoolVar(&f.verbose, "verbose", false, "print when the machine has booted")
	return c
}

func (f *vmFlags) run(cmd *cobra.Command, args []string) error {
	ctx := cmd.Context()
	image, err := vm.Prepare(ctx, func(what string) { fmt.Fprintln(os.Stderr, what+" ...") })
	if err != nil {
		return err
	}
	if f.prepare {
		fmt.Println(image)
		return nil
	}
	m := f.machine
	m.Image = image
	for i := range m.Shared {
		if m.Shared[i], err = filepath.Abs(m.Shared[i]); err != nil {
			return err
		}
	}
	if f.verbose {
		m.Booted = func(took time.Duration) {
			fmt.Fprintf(os.Stderr, "the virtual machine booted in %.1f s\n", took.Seconds())
		}
	}
	return vm.Again(func(what string) { fmt.Fprintln(os.Stderr, what) }, func() error { return f.once(ctx, m, args) })
}

// once runs the command, with its own control plane if requested.
func (f *vmFlags) once(ctx context.Context, m vm.Machine, args []string) (err error) {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	env := os.Environ()
	if f.api {
		api, startErr := guestapi.Start(ctx, os.Getenv("KUBEBUILDER_ASSETS"))
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, api.Close()) }()
		env = append(env, api.Join(&m)...)
	}
	return m.Run(ctx, vm.Command{Argv: args, Env: env, Dir: dir, Stdout: os.Stdout, Stderr: os.Stderr})
}
