package source

import (
	"fmt"
	"strings"
)

// CheckPoolName refuses what cannot be the name of an AddressPool, before it reaches
// a log or a message as it is. by says who names it.
func CheckPoolName(by, pool string) error {
	outside := func(r rune) bool { return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') }
	if len(pool) > 63 || strings.ContainsFunc(pool, outside) {
		return fmt.Errorf("%s is %.80q, expected the name of an AddressPool: at most 63 lower-case letters, digits and hyphens", by, pool)
	}
	return nil
}

// CheckNetworkPool is CheckPoolName of what the network's configuration names, if it does.
func (w Wish) CheckNetworkPool() error {
	return CheckPoolName("pool of the network's configuration", w.NetworkPool)
}
