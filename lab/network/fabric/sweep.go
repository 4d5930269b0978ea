package fabric

import (
	"errors"
	"sync"
	"time"

	"github.com/berthnet/berth/lab/network/ns"
)

// Sweep ends every process inside the namespaces of the fabric called id and
// removes the namespaces with their links, also when the process that made
// them died. It returns the names of what it removed.
func Sweep(id string) ([]string, error) {
	names, err := ns.List(Prefix(id))
	if err != nil || len(names) == 0 {
		return nil, err
	}
	paths := make([]string, len(names))
	for i, n := range names {
		paths[i] = ns.Path(n)
	}
	if _, err := ns.Kill(time.Minute, paths...); err != nil {
		return nil, err
	}
	// Side by side, since the kernel makes each wait for its links.
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, n := range names {
		wg.Go(func() { errs[i] = ns.Remove(n) })
	}
	wg.Wait()
	return names, errors.Join(errs...)
}
