package main

import (
	"debug/elf"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// A line in the output of an interpreter: "libc.so.6 => /lib/.../libc.so.6 (0x...)", or a path only.
var listedLibrary = regexp.MustCompile(`(?:=> |^\s+)(/\S+) \(0x`)

// sharedLibraries returns the interpreter of a program and the libraries that it would load, as ld.so(8) lists them; none
// for a static program.
func sharedLibraries(program string) ([]string, error) {
	interpreter, err := interpreterOf(program)
	if err != nil || interpreter == "" {
		return nil, err
	}
	out, err := exec.Command(interpreter, "--list", program).Output()
	if err != nil {
		return nil, fmt.Errorf("list the shared libraries of %s: %w", program, err)
	}
	if i := strings.Index(string(out), "not found"); i >= 0 {
		return nil, fmt.Errorf("list the shared libraries of %s: %s", program, out)
	}
	libraries := []string{interpreter}
	for line := range strings.Lines(string(out)) {
		if m := listedLibrary.FindStringSubmatch(line); m != nil {
			libraries = append(libraries, m[1])
		}
	}
	slices.Sort(libraries)
	return slices.Compact(libraries), nil
}

func interpreterOf(program string) (string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return "", fmt.Errorf("read the program %s: %w", program, err)
	}
	defer f.Close()
	section := f.Section(".interp")
	if section == nil {
		return "", nil
	}
	data, err := section.Data()
	if err != nil {
		return "", fmt.Errorf("read the interpreter of %s: %w", program, err)
	}
	return strings.TrimRight(string(data), "\x00"), nil
}
