package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// accounts is the usage of the packages of a run.
type accounts struct {
	dir      string // empty: usage is not recorded
	commands int    // number of commands with a folder in dir

	used     map[string]used // by import path; packages from Go's cache have none
	none     started         // by processes outside of packages, such as those of go test
	building float64         // CPU seconds of go test itself and of builders
	unknown  []string        // reasons why process starts are unknown
}

// used is the usage of one package.
type used struct {
	usage           // without builders
	starts *started // nil: unknown
}

func newAccounts(dir string) *accounts { return &accounts{dir: dir, used: map[string]used{}} }

// forCommand makes the folder for a command's usage files, and returns the variables that the command needs.
func (a *accounts) forCommand() (dir string, env []string, err error) {
	if a.dir == "" {
		return "", nil, nil
	}
	a.commands++
	dir = filepath.Join(a.dir, fmt.Sprint(a.commands))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", nil, fmt.Errorf("account for CPU time: %w", err)
	}
	namespace, err := os.Readlink(pidNamespace)
	if err != nil {
		return "", nil, fmt.Errorf("account for CPU time: %w", err)
	}
	return dir, []string{accountsVar + "=" + dir, outsideVar + "=" + namespace}, nil
}

// add adds the usage files of an ended command. cpu is the CPU time of the command and all its descendants.
func (a *accounts) add(dir string, cpu time.Duration) error {
	if dir == "" {
		return nil
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return err
	}
	all := make([]usage, len(files))
	for i, file := range files {
		data, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(data, &all[i])
		}
		if err != nil {
			return fmt.Errorf("read accounts: %w", err)
		}
	}
	a.building += cpu.Seconds()
	starts, err := a.addStarts(dir, all)
	if err != nil {
		return err
	}
	for i, u := range all {
		one := used{usage: u}
		if starts != nil {
			one.starts = &starts[i]
			one.CPU -= min(one.CPU, starts[i].builders.Seconds())
		}
		a.building -= one.CPU
		a.used[u.Package] = one
	}
	return nil
}

// addStarts reads the process accounting file. A missing file yields nil.
func (a *accounts) addStarts(dir string, all []usage) ([]started, error) {
	if why, err := os.ReadFile(filepath.Join(dir, processesError)); err == nil {
		a.unknown = append(a.unknown, string(why))
		return nil, nil
	}
	data, err := os.ReadFile(filepath.Join(dir, processesFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // no program was started
	}
	if err != nil {
		return nil, fmt.Errorf("read process accounting: %w", err)
	}
	starts, none := attribute(readProcesses(data), all)
	for i, s := range starts {
		if !s.complete { // accounting stops while the file system is almost full
			a.unknown = append(a.unknown, fmt.Sprintf("the kernel has no record of the end of %s: process accounting was suspended", all[i].Package))
		}
	}
	a.none.merge(none)
	return starts, nil
}
