package attachment

import (
	"os"

	"golang.org/x/sys/unix"
)

// allocate reserves space for the first n bytes of a file.
func allocate(file *os.File, n int) error {
	return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, int64(n))
}
