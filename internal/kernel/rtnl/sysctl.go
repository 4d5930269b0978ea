package rtnl

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// procSys is the default folder of the kernel's settings. Settings below net are those of the calling thread's network
// namespace, wherever the folder is mounted.
const procSys = "/proc/sys"

// Sysctl is the desired value of one of the kernel's settings.
type Sysctl struct {
	Path   string // below /proc/sys, with '/' between the parts, as names of links may contain dots
	Value  string
	Unless string // another value that is right, and that Set keeps; empty: none
}

// String returns the setting in the format of sysctl.conf(5).
func (s Sysctl) String() string { return strings.ReplaceAll(s.Path, "/", ".") + " = " + s.Value }

// Look returns the value below a folder, /proc/sys if empty, and whether it is right. Errors: os.ErrNotExist, if the
// kernel has no such setting.
func (s Sysctl) Look(dir string) (now string, right bool, err error) {
	have, err := os.ReadFile(s.file(dir))
	if err != nil {
		return "", false, fmt.Errorf("read sysctl %s: %w", s, err)
	}
	now = strings.TrimSpace(string(have))
	return now, now == s.Value || s.Unless != "" && now == s.Unless, nil
}

// Set writes the value unless it is right, and reads it back. Errors: os.ErrNotExist, if the kernel has no such
// setting.
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
		return true, fmt.Errorf("sysctl %s did not take effect: it is %s", s, now)
	}
	return true, nil
}

func (s Sysctl) file(dir string) string { return filepath.Join(cmp.Or(dir, procSys), s.Path) }
