package ipam

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// FromEnv reads the Amazon VPC CNI's variables: DefaultAWS with what lookup
// (os.LookupEnv) finds set, and the cooling period of IP_COOLDOWN_PERIOD
// (seconds). An empty value is as good as none. Every malformed variable is
// named in the error.
func FromEnv(lookup func(string) (string, bool)) (Policy, time.Duration, error) {
	p, seconds := DefaultAWS(), int(DefaultCooling/time.Second)
	var errs []error
	for _, v := range []struct {
		name string
		to   *int
	}{
		{"WARM_ENI_TARGET", &p.WarmENI}, {"WARM_IP_TARGET", &p.WarmIP}, {"MINIMUM_IP_TARGET", &p.MinimumIP},
		{"WARM_PREFIX_TARGET", &p.WarmPrefix}, {"MAX_ENI", &p.MaxENI}, {"IP_COOLDOWN_PERIOD", &seconds},
	} {
		text, _ := lookup(v.name)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 1_000_000 {
			errs = append(errs, fmt.Errorf("%s=%q: want a whole number from 0", v.name, text))
			continue
		}
		*v.to = n
	}
	if text, _ := lookup("ENABLE_PREFIX_DELEGATION"); text != "" {
		on, err := strconv.ParseBool(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("ENABLE_PREFIX_DELEGATION=%q: want true or false", text))
		}
		p.PrefixDelegation = on
	}
	return p, time.Duration(seconds) * time.Second, errors.Join(errs...)
}
