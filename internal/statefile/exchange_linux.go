package statefile

import (
	"os"

	"golang.org/x/sys/unix"
)

// Exchange exchanges the names of two files at once. The error is fs.ErrNotExist if one of them does not exist.
func Exchange(a, b string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
		return &os.LinkError{Op: "exchange", Old: a, New: b, Err: err}
	}
	return nil
}
