package vpc

import (
	"reflect"
	"time"
)

// clientTokens are what requests with client tokens came to. The world's lock guards them.
type clientTokens struct {
	world *world
	used  map[string]idempotent
}

// idempotent is what a client token stands for.
type idempotent struct {
	request any
	enis    []ENI
	ids     []string
	at      time.Time
}

// replay finds what a client token already stands for. An empty token never
// stands for anything. The lock is held.
func (ct *clientTokens) replay(token string, request any) (idempotent, bool, error) {
	prior, ok := ct.used[token]
	if !ok || token == "" {
		return idempotent{}, false, nil
	}
	if !reflect.DeepEqual(prior.request, request) {
		return idempotent{}, false, Errorf("IdempotentParameterMismatch",
			"Arguments on this idempotent request are inconsistent with arguments used in previous request(s).")
	}
	return prior, true, nil
}

// remember keeps what a client token stands for, for a day. The lock is held.
func (ct *clientTokens) remember(token string, v idempotent) {
	if token == "" {
		return
	}
	v.at = ct.world.clock.Now()
	ct.used[token] = v
	ct.world.eventually(24*time.Hour, func() { delete(ct.used, token) })
}
