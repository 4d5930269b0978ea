package rtnl

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// procSys is where the kernel has its settings. Those of net are of the network
// namespace of the thread that looks, wherever the folder is mounted.
const procSys = "/proc/sys"

// Sysctl is one of the kernel's settings as it is to be.
type Sysctl struct {
	Path   string // below /proc/sys, with '/' between the parts: names of links may contain dots
	Value  string
	Unless string // a value that may stay
}

// String reads as in sysctl.conf(5).
func (s Sysctl) String() string { return strings.ReplaceAll(s.Path, "/", ".") + " = " + s.Value }

// Look returns what the setting is below a folder, /proc/sys if empty, and whether that is as
// it is to be. The error wraps os.ErrNotExist where the kernel has no such setting.
func (s Sysctl) Look(dir string) (now string, right bool, err error) {
	have, err := os.ReadFile(s.file(dir))
	if err != nil {
		return "", false, fmt.Errorf("read sysctl %s: %w", s, err)
	}
	now = strings.TrimSpace(string(have))
	return now, now == s.Value || s.Unless != "" && now == s.Unless, nil
}

// Set makes the setting what it is to be, and reads it back. The error wraps os.ErrNotExist
// where the kernel has no such setting.
func (s Sysctl) Set(dir string) (changed bool, err error) {
	now, right, err := s.Look(dir)
	if err != nil || right {
		return false, err
	}
	if err := os.WriteFile(s.file(dir), []byte(s.Value), 0); err != nil {
		return false, fmt.Errorf("set sysctl %s (it is %s): %w", s, now, err)
	}
	now, _, err = s.Look(dir)
	if err != nil {
		return true, err
	}
	if now != s.Value {
		return true, fmt.Errorf("sysctl %s did not stay: it is %s", s, now)
	}
	return true, nil
}

func (s Sysctl) file(dir string) string { return filepath.Join(cmp.Or(dir, procSys), s.Path) }
