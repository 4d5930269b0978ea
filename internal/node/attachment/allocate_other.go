//go:build !linux

package attachment

import (
	"errors"
	"os"
)

// allocate fails: records are kept on nodes, which run Linux. Other systems only link the type, for simulations.
func allocate(*os.File, int) error { return errors.ErrUnsupported }
